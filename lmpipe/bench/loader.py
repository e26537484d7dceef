"""`lmpipe bench loader`: sequences in training order from token shards, from a disk or from S3.

Tokens are made up: what is measured is finding, fetching and copying, and those see no text. A bare
copy of the mapped file into one large array is beside it.
"""

import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import TokenShards
from lmpipe.bench import Row, row
from lmpipe.runtime import Runtime
from lmpipe.token_data.block_cache import BlockCache
from lmpipe.token_data.dataset import TokenReader
from lmpipe.token_data.order import SequenceOrder
from lmpipe.token_data.shard_file import pack_shard
from lmpipe.token_data.shards import INDEX_SCHEMA

STEP_SEQUENCES = 64  # that are asked for together, as in a training step


class Options(BaseModel):
    """What to read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_tokens: int = Field(100_000_000, ge=100_000, description="Tokens in all shards.")
    sequence_length: int = Field(2048, ge=1, description="Tokens of a sequence.")
    document_tokens: int = Field(700, ge=1, description="Tokens of a document.")
    store: str = Field("", description="Root such as s3://bucket/prefix; empty: a local folder.")


class BenchShardsConfig(StageConfig):
    """Shards of made-up tokens."""

    num_tokens: int = Field(ge=1, description="Tokens in all shards.")
    document_tokens: int = Field(ge=1, description="Tokens of a document.")
    num_shards: int = Field(4, ge=1, description="Files.")


@stage(version=1, kind="exact")
def bench_shards(
    out: Output[TokenShards], config: BenchShardsConfig, *, runtime: Runtime
) -> TokenShards:
    """Write random tokens and an index."""
    generator = np.random.default_rng(0)
    size = config.num_tokens // config.num_shards
    starts = np.arange(0, size, config.document_tokens)
    tables = []
    for number in range(config.num_shards):
        tokens = generator.integers(0, 32_768, size, np.uint16)
        name = f"{number:05d}-000"
        out.write_bytes(f"train/{name}.bin", pack_shard(tokens, 32_768, "0" * 64))
        ids = [f"{number * starts.size + i:032x}" for i in range(starts.size)]
        columns = [ids, ["train"] * len(ids), [name] * len(ids), starts,
                   np.diff(starts, append=size)]  # fmt: skip
        tables.append(pa.table(columns, INDEX_SCHEMA))
    with out.open("index.parquet") as file:
        pq.write_table(pa.concat_tables(tables), file)
    out.write_json("meta.json", {"vocab_size": 32_768})
    return out.commit()


def run(options: dict[str, Any]) -> list[Row]:
    """Return tokens per second of the first and the second reading, and of a bare copy."""
    settings = Options.model_validate(options)
    with tempfile.TemporaryDirectory(prefix="lmpipe-bench-") as folder:
        store = Store(settings.store or folder)
        config = BenchShardsConfig(
            num_tokens=settings.num_tokens, document_tokens=settings.document_tokens
        )
        shards = build(bench_shards, config, {}, store=store, runtime=Runtime())
        reader = TokenReader.of(shards, "train", settings.sequence_length)
        order = SequenceOrder(reader.num_sequences, 0).numbers(0, reader.num_sequences)
        case = f"{settings.num_tokens / 1e6:.0f}M tokens, T={settings.sequence_length}"
        case += ", S3" if settings.store else ", local"
        rows = []
        for name in ("first epoch", "second epoch"):
            seconds = _read(reader, order, documents=False)
            rows.append(_row("lmpipe", f"{case}, {name}", order.size, settings, seconds))
        seconds = _read(reader, order, documents=True)
        rows.append(_row("lmpipe", f"{case}, with documents", order.size, settings, seconds))
        if settings.store:
            bare = TokenReader.of(shards, "train", settings.sequence_length, cache=BlockCache(0))
            part = order[:2000]
            seconds = _read(bare, part, documents=False)
            rows.append(_row("lmpipe", f"{case}, no block kept", part.size, settings, seconds))
        else:
            start = time.perf_counter()
            for shard in reader._shards:
                np.array(shard, np.int64)
            seconds = time.perf_counter() - start
            rows.append(_row("numpy", f"{case}, bare copy", order.size, settings, seconds))
    return rows


def _read(reader: TokenReader, order: Any, *, documents: bool) -> float:
    start = time.perf_counter()
    numbers = order.tolist()
    for first in range(0, len(numbers), STEP_SEQUENCES):
        step = numbers[first : first + STEP_SEQUENCES]
        reader.sequences(step)
        if documents:
            for number in step:
                reader.document_numbers(number)
    return time.perf_counter() - start


def _row(impl: str, case: str, count: int, settings: Options, seconds: float) -> Row:
    rate = count * settings.sequence_length / seconds / 1e6
    return row("loader", impl, case, "throughput", rate, "M tokens/s")
