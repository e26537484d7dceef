"""From a token and from a training step back to the WARC record."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import Field
from rich.console import Console

from flows.cli.token_origin import print_tokens, step_rows, token_rows
from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Checkpoint, Documents, TokenShards
from lmpipe.errors import ConfigError, InputError
from lmpipe.runtime import Runtime
from lmpipe.token_data.dataset import TokenReader
from lmpipe.token_data.packing import PackingName
from lmpipe.token_data.shards import ShardsConfig, shards
from lmpipe.tokenization.encoding import Encoding
from lmpipe.training.data import GlobalBatches
from lmpipe.training.mixing import MixedSequences, MixtureConfig
from tests.token_data.test_shards import BytesConfig, bytes_tokenizer

TEXTS = [f"page {i} " * (1 + i % 7) for i in range(60)]


class PagesConfig(StageConfig):
    pass


@stage(version=1, kind="exact")
def pages(out: Output[Documents], config: PagesConfig, *, runtime: Runtime) -> Documents:
    """Two files of documents that know their record."""
    for file in range(2):
        numbers = range(file * 30, file * 30 + 30)
        table = pa.table(
            {
                "id": [f"{i:032x}" for i in numbers],
                "text": [TEXTS[i] for i in numbers],
                "url": [f"http://a/{i}" for i in numbers],
                "warc_path": ["crawl.warc.gz"] * 30,
                "warc_offset": [1000 * i for i in numbers],
                "warc_record_id": [None] * 30,
            }
        )
        with out.open(f"kept/{file:05d}.parquet") as target:
            pq.write_table(table, target)
    return out.commit()


class RunConfig(StageConfig):
    seed: int = Field(5, description="Of the order.")
    sequence_length: int = Field(16, description="T.")
    batch_tokens: int = Field(64, description="Per step.")
    total_tokens: int = Field(640, description="Of the run.")
    packing: PackingName = Field("concatenate", description="Of documents in sequences.")
    mixture: MixtureConfig | None = Field(None, description="Several token sets.")


@stage(version=1, kind="exact")
def pretrain(
    out: Output[Checkpoint],
    config: RunConfig,
    shards: TokenShards,
    others: list[TokenShards],
    *,
    runtime: Runtime,
) -> Checkpoint:
    """Stands for a training: its manifest is all that is read."""
    out.write_json("meta.json", {})
    return out.commit()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def tokens(store: Store) -> TokenShards:
    plain = Runtime()
    inputs = {
        "documents": build(pages, PagesConfig(), {}, store=store, runtime=plain),
        "tokenizer": build(bytes_tokenizer, BytesConfig(), {}, store=store, runtime=plain),
    }
    config = ShardsConfig(shard_tokens=200, validation_fraction=0.1)
    return build(shards, config, inputs, store=store, runtime=plain)


def test_every_document_is_found_from_its_first_and_its_last_token(
    store: Store, tokens: TokenShards
) -> None:
    rows = pq.read_table(tokens.local("index.parquet")).to_pylist()
    for row in [*rows[:9], *rows[-9:]]:
        number = int(row["document_id"], 16)
        for offset in (0, row["length"] - 1):
            place = f"{row['split']}/{row['shard']}:{row['start'] + offset}"
            (found,) = token_rows(store, tokens.id, place)
            assert found["document"] == row["document_id"]
            assert found["offset_in_document"] == offset
            assert found["url"] == f"http://a/{number}"
            assert (found["warc_path"], found["warc_offset"]) == ("crawl.warc.gz", 1000 * number)


def test_a_step_names_the_documents_that_training_reads(store: Store, tokens: TokenShards) -> None:
    made = build(pretrain, RunConfig(), {"shards": tokens}, store=store, runtime=Runtime())
    reader = TokenReader(tokens.local_dir(), "train", 16)
    batches = GlobalBatches(reader, 5, 4, document_masking=True)
    encoding = Encoding.load(build(bytes_tokenizer, BytesConfig(), {}, store=store,
                                   runtime=Runtime()))  # fmt: skip
    for step in (0, 3, 9):
        rows = step_rows(store, made.id, step)
        (part,) = batches.micro_batches(step, 0, 1, 4, torch.device("cpu"))
        assert {row["sequence"] for row in rows} == set(range(4 * step, 4 * step + 4))
        for position in range(4):
            mine = [row for row in rows if row["sequence"] == 4 * step + position]
            assert sum(row["tokens"] for row in mine) == 17
            read = encoding.decode(part.token_BT[position].tolist())
            for text, row in zip(read.split("<|endoftext|>"), mine, strict=False):
                assert text in TEXTS[int(row["document"], 16)]
                assert row["url"] == f"http://a/{int(row['document'], 16)}"


def test_a_step_of_a_packed_mixture_names_sets_and_documents(
    store: Store, tokens: TokenShards
) -> None:
    inputs = {
        "documents": build(pages, PagesConfig(), {}, store=store, runtime=Runtime()),
        "tokenizer": build(bytes_tokenizer, BytesConfig(), {}, store=store, runtime=Runtime()),
    }
    config = ShardsConfig(shard_tokens=300, validation_fraction=0.5)
    other = build(shards, config, inputs, store=store, runtime=Runtime())
    weights = [{"main": 3, "code": 1}, {"main": 1, "code": 3}]
    mixture = MixtureConfig.model_validate(
        {"stages": [{"fraction": 0.5, "weights": each} for each in weights]}
    )
    made = build(
        pretrain,
        RunConfig(packing="best_fit", mixture=mixture),
        {"shards": tokens, "others": [other]},
        store=store,
        runtime=Runtime(),
    )
    readers = [
        TokenReader(part.local_dir(), "train", 16, packing="best_fit") for part in (tokens, other)
    ]
    order = mixture.order([reader.num_sequences for reader in readers], (10, 4), seed=5)
    mixed = MixedSequences(readers)
    seen = []
    for step in range(10):
        rows = step_rows(store, made.id, step)
        for position, number in enumerate(order.numbers(4 * step, 4).tolist()):
            mine = [row for row in rows if row["sequence"] == 4 * step + position]
            source, inner = order.place_of(number)
            seen.append(source)
            assert {row["set"] for row in mine} == {("main", "code")[source]}
            numbers = mixed.document_numbers(number)
            named = [readers[source].document_id(i) for i in dict.fromkeys(numbers[numbers >= 0])]
            assert [row["document"] for row in mine] == named
            assert sum(row["tokens"] for row in mine) == int((numbers >= 0).sum())
            assert all(row["url"] == f"http://a/{int(row['document'], 16)}" for row in mine)
            (first,) = token_rows(store, (tokens, other)[source].id, mine[0]["token"])
            assert first["document"] == mine[0]["document"]
            assert np.array_equal(mixed.sequence(number), readers[source].sequence(inner))
    assert (seen[:20].count(1), seen[20:].count(1)) == (5, 15)


def test_what_cannot_be_traced_is_refused_with_a_remedy(store: Store, tokens: TokenShards) -> None:
    made = build(pretrain, RunConfig(), {"shards": tokens}, store=store, runtime=Runtime())
    with pytest.raises(ConfigError, match=r"must be in \[0, 10\)"):
        step_rows(store, made.id, 10)
    with pytest.raises(ConfigError, match="not made by pretrain"):
        step_rows(store, tokens.id, 0)
    with pytest.raises(ConfigError, match="no token shards"):
        token_rows(store, made.id, "00000-000:1")
    with pytest.raises(ConfigError, match="SHARD:OFFSET"):
        token_rows(store, tokens.id, "00000-000")
    with pytest.raises(InputError, match="no shard 'x'"):
        token_rows(store, tokens.id, "x:0")
    with pytest.raises(ConfigError, match="or a checkpoint's id"):
        print_tokens(Console(), "", "", None, store.root)
