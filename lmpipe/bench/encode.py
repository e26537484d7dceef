"""`lmpipe bench encode`: documents to token shards, beside tiktoken's bare batch encoding.

Ours is the stage `shards` whole, with files, index and checks, on as many threads as tiktoken. The
vocabulary is trained on the same text, outside the measured time.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.bench import Row, row
from lmpipe.runtime import Runtime
from lmpipe.token_data.shards import ShardsConfig, shards
from lmpipe.tokenization.config import TokenizerConfig
from lmpipe.tokenization.encoding import Encoding
from lmpipe.tokenization.tokenizer import tokenizer


class Options(BaseModel):
    """What to encode."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: list[str] = Field(min_length=1, description="Parquet files with a column `text`.")
    vocab_size: int = Field(32_768, description="Vocabulary that is trained first.")
    threads: int = Field(2, ge=1, description="Threads of both.")


class BenchDocumentsConfig(StageConfig):
    """Text from local files, in as many files as workers can share."""

    paths: list[str] = Field(description="Parquet files with a column `text`.")
    num_files: int = Field(8, ge=1, description="Files of documents.")


@stage(version=1, kind="exact")
def bench_documents(
    out: Output[Documents], config: BenchDocumentsConfig, *, runtime: Runtime
) -> Documents:
    """Deal the texts out to files by size, so that workers finish together."""
    texts = [
        text
        for path in config.paths
        for text in pq.read_table(path, columns=["text"])["text"].to_pylist()
    ]
    files: list[list[tuple[str, str]]] = [[] for _ in range(config.num_files)]
    sizes = [0] * config.num_files
    for number, text in enumerate(texts):
        smallest = sizes.index(min(sizes))
        files[smallest].append((f"{number:032x}", text))
        sizes[smallest] += len(text)
    for number, rows in enumerate(files):
        table = pa.table(
            {
                "id": [r[0] for r in rows],
                "text": [r[1] for r in rows],
                "language": ["en"] * len(rows),
            }
        )
        with out.open(f"kept/{number:05d}.parquet") as file:
            pq.write_table(table, file, compression="zstd", use_dictionary=False)
    out.metric("text_bytes", sum(len(text.encode()) for text in texts))
    return out.commit()


def run(options: dict[str, Any]) -> list[Row]:
    """Return megabytes of text per second of ours and of tiktoken."""
    settings = Options.model_validate(options)
    runtime = Runtime(workers=settings.threads)
    with tempfile.TemporaryDirectory(prefix="lmpipe-bench-") as folder:
        store = Store(Path(folder).as_uri())
        documents = build(
            bench_documents, BenchDocumentsConfig(paths=settings.paths), {},
            store=store, runtime=runtime,
        )  # fmt: skip
        vocabulary = build(
            tokenizer, TokenizerConfig(vocab_size=settings.vocab_size), {"documents": documents},
            store=store, runtime=runtime,
        )  # fmt: skip
        start = time.perf_counter()
        inputs = {"documents": documents, "tokenizer": vocabulary}
        build(shards, ShardsConfig(), inputs, store=store, runtime=runtime)  # type: ignore[arg-type]
        ours = time.perf_counter() - start

        texts = [
            text
            for name in documents.names("kept/")
            for text in pq.read_table(documents.local(name), columns=["text"])["text"].to_pylist()
        ]
        bare = Encoding.load(vocabulary).tiktoken
        start = time.perf_counter()
        bare.encode_ordinary_batch(texts, num_threads=settings.threads)
        theirs = time.perf_counter() - start
    megabytes = documents.metrics["text_bytes"] / 1e6
    case = f"{megabytes:.0f} MB, {settings.vocab_size} tokens, {settings.threads} threads"
    return [
        row("encode", "lmpipe", case, "throughput", megabytes / ours, "MB/s"),
        row("encode", "tiktoken", case, "throughput", megabytes / theirs, "MB/s"),
    ]
