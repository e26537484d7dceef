import hashlib
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents, Tokenizer, TokenShards
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from lmpipe.token_data.dataset import TokenReader
from lmpipe.token_data.shard_file import map_tokens, read_header, verify_shards
from lmpipe.token_data.shards import ShardsConfig, document_hash, shards, unigram_entropy_nats
from lmpipe.tokenization.bulk_encoding import BufferEncoder
from lmpipe.tokenization.encoding import Encoding, format_ranks
from lmpipe.tokenization.patterns import pattern_regex
from tests.tokenization.conftest import Make

SPECIALS = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")
FILES = [
    [f"text number {i} of the first file" for i in range(20)],
    [],
    ["", "<|endoftext|> spelled", "long " * 300, "", "é" * 40],
    [f"more {i}" for i in range(30)],
]


class BytesConfig(StageConfig):
    eos: int = Field(257, description="Of a document; a wrong one stands for a broken tokenizer.")
    bos: int = Field(257, description="Of a document.")


@stage(version=1, kind="exact")
def bytes_tokenizer(out: Output[Tokenizer], config: BytesConfig, *, runtime: Runtime) -> Tokenizer:
    """A vocabulary of bytes, so that these tests need no training."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks[b"ex"] = 256
    specials = {name: 257 + i for i, name in enumerate(SPECIALS)}
    meta = {
        "vocab_size": 261,
        "eos": config.eos,
        "bos": config.bos,
        "pad": 257,
        "specials": specials,
        "pattern": pattern_regex("gpt2", 0),
    }
    out.write_bytes("ranks.tiktoken", format_ranks(ranks))
    out.write_bytes("meta.json", json.dumps(meta).encode())
    return out.commit()


@pytest.fixture
def tokenizer(store: Store) -> Tokenizer:
    return build(bytes_tokenizer, BytesConfig(), {}, store=store, runtime=Runtime())


def write(
    store: Store, documents: Documents, tokenizer: Tokenizer, workers: int = 1, **config: float
) -> TokenShards:
    return build(
        shards,
        ShardsConfig.model_validate({"validation_fraction": 0.2, **config}),
        {"documents": documents, "tokenizer": tokenizer},
        store=store,
        runtime=Runtime(workers=workers),
        force=True,
    )


def test_every_document_is_in_one_split_whole_in_input_order_and_ends_with_eos(
    store: Store, make_documents: Make, tokenizer: Tokenizer
) -> None:
    result = write(store, make_documents(FILES), tokenizer, shard_tokens=500)
    encoding = Encoding.load(tokenizer)
    texts = {f"{i:032x}": text for i, text in enumerate(t for texts in FILES for t in texts)}
    rows = pq.read_table(result.local("index.parquet")).to_pylist()
    seen = {"train": [], "validation": []}  # type: dict[str, list[str]]
    for row in rows:
        tokens = map_tokens(result.local(f"{row['split']}/{row['shard']}.bin"))
        found = tokens[row["start"] : row["start"] + row["length"]].tolist()
        assert found == [*encoding.encode_ordinary(texts[row["document_id"]]), encoding.eos]
        seen[row["split"]].append(row["document_id"])
    assert sorted(seen["train"] + seen["validation"]) == sorted(texts)
    assert seen["validation"]
    for split in seen:
        by_file = [row for row in rows if row["split"] == split]
        assert [row["document_id"] for row in by_file] == sorted(seen[split])

    meta = result.read_json("meta.json")
    assert meta["tokens"]["train"] + meta["tokens"]["validation"] == sum(
        len(encoding.encode_ordinary(text)) + 1 for text in texts.values()
    )
    assert meta["text_bytes"]["train"] + meta["text_bytes"]["validation"] == sum(
        len(text.encode()) for text in texts.values()
    )
    assert meta["eos"] == 257
    assert meta["tokenizer_digest"] == tokenizer.digest


def test_text_that_cannot_be_encoded_ends_the_stage_and_leaves_no_thread_waiting(
    store: Store, make_documents: Make, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: BufferEncoder, text: object, edges: object) -> None:
        raise InputError("refused")

    monkeypatch.setattr("lmpipe.token_data.shards.PORTION_BYTES", 1)  # several portions
    monkeypatch.setattr(BufferEncoder, "encode", refuse)
    with pytest.raises(InputError, match="refused"):
        write(store, make_documents(FILES), tokenizer)


def test_every_document_has_one_bos_before_it_and_one_eos_behind_it(
    store: Store, make_documents: Make, tokenizer: Tokenizer
) -> None:
    """They are one token, as in GPT-2: the end of a document begins the next of its file."""
    bos = tokenizer.read_json("meta.json")["bos"]
    result = write(store, make_documents(FILES), tokenizer, shard_tokens=500)
    rows = pq.read_table(result.local("index.parquet")).to_pylist()
    meta = result.read_json("meta.json")
    for split in ("train", "validation"):
        streams = {n: map_tokens(result.local(n)) for n in result.names(f"{split}/")}
        count = sum(int((stream == bos).sum()) for stream in streams.values())
        mine = [row for row in rows if row["split"] == split]
        # one document spells the special token: it is text there, and counts for nothing
        assert count == len(mine) == meta["documents"][split]
        for row in mine:
            stream = streams[f"{split}/{row['shard']}.bin"]
            assert row["start"] == 0 or stream[row["start"] - 1] == bos
            assert stream[row["start"] + row["length"] - 1] == bos


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ({"eos": 300}, r"eos=300 is none of its special tokens.*vocab_size=261.*--force tokenizer"),
        ({"bos": 50_256}, r"bos=50256 is none of its special tokens"),
        ({"eos": 258}, r"eos=258 is not its first special token \(257\)"),
    ],
)
def test_a_tokenizer_whose_ends_are_not_in_its_vocabulary_is_refused(
    store: Store, make_documents: Make, ends: dict[str, int], says: str
) -> None:
    broken = build(bytes_tokenizer, BytesConfig(**ends), {}, store=store, runtime=Runtime())
    with pytest.raises(InputError, match=says):
        write(store, make_documents(FILES), broken)


def test_a_document_larger_than_a_shard_has_one_to_itself_and_empty_input_gives_none(
    store: Store, make_documents: Make, tokenizer: Tokenizer
) -> None:
    result = write(store, make_documents(FILES), tokenizer, shard_tokens=100, validation_fraction=0)
    sizes = {}
    assert verify_shards(result) == sum(result.record(n).bytes for n in result.names("train/"))
    for name in result.names("train/"):
        header = read_header(result.local(name))
        assert header.tokenizer_digest == tokenizer.digest
        assert header.num_tokens > 0
        sizes[name] = header.num_tokens
    assert sum(size > 100 for size in sizes.values()) == 1
    assert not any(name.startswith("train/00001-") for name in sizes)
    assert result.names("validation/") == []
    assert result.read_json("meta.json")["unigram_entropy_nats"] is None


@stage(version=1, kind="exact")
def wide_tokenizer(out: Output[Tokenizer], config: BytesConfig, *, runtime: Runtime) -> Tokenizer:
    """Every byte and every pair of bytes is a token: 65,792 of them, then the specials."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {bytes([a, b]): 256 + 256 * a + b for a in range(256) for b in range(256)}
    specials = {name: len(ranks) + i for i, name in enumerate(SPECIALS)}
    ends = dict.fromkeys(("eos", "bos", "pad"), len(ranks))
    meta = {"vocab_size": len(ranks) + 4, "specials": specials, "pattern": pattern_regex("gpt2", 0)}
    out.write_bytes("ranks.tiktoken", format_ranks(ranks))
    out.write_bytes("meta.json", json.dumps({**meta, **ends}).encode())
    return out.commit()


def test_ids_above_65535_come_back_as_they_were(store: Store, make_documents: Make) -> None:
    wide = build(wide_tokenizer, BytesConfig(), {}, store=store, runtime=Runtime())
    result = write(store, make_documents(FILES), wide, shard_tokens=500)
    encoding = Encoding.load(wide)
    reader = TokenReader(result.local_dir(), "train", 16)
    stream = reader.tokens(0, reader.num_tokens)
    assert encoding.eos == 65_792
    assert int((stream == encoding.eos).sum()) == reader.num_documents
    assert int(stream.max()) > 65_535
    texts = [text for texts in FILES for text in texts]
    numbers = reader.documents(0, reader.num_tokens)
    for number in range(reader.num_documents):
        expected = encoding.encode_ordinary(texts[int(reader.document_id(number), 16)])
        assert stream[numbers == number].tolist() == [*expected, encoding.eos]
    assert result.read_json("meta.json")["dtype"] == "uint32"


def test_one_two_and_four_workers_write_the_same_bytes(
    store: Store, make_documents: Make, tokenizer: Tokenizer
) -> None:
    documents = make_documents(FILES)
    results = [write(store, documents, tokenizer, workers) for workers in (1, 2, 4)]
    assert len({result.digest for result in results}) == 1
    assert not any(name.startswith("parts/") for name in results[0].names())


def test_training_reads_back_what_was_written(
    store: Store, make_documents: Make, tokenizer: Tokenizer
) -> None:
    result = write(store, make_documents(FILES), tokenizer, shard_tokens=300)
    folder = result.local_dir()
    encoding = Encoding.load(tokenizer)
    texts = [text for texts in FILES for text in texts]
    for split in ("train", "validation"):
        reader = TokenReader(folder, split, 16)
        assert reader.num_tokens == result.read_json("meta.json")["tokens"][split]
        stream = reader.tokens(0, reader.num_tokens)
        numbers = reader.documents(0, reader.num_tokens)
        for number in range(reader.num_documents):
            text = encoding.decode(stream[numbers == number][:-1].tolist())
            assert text == texts[int(reader.document_id(number), 16)]


def test_at_least_one_document_is_held_out_and_at_least_one_is_not(
    store: Store, make_documents: Make, tokenizer: Tokenizer
) -> None:
    result = write(store, make_documents([["a"], ["b"]]), tokenizer, validation_fraction=1e-9)
    assert result.read_json("meta.json")["documents"] == {"train": 1, "validation": 1}
    with pytest.raises(InputError, match="validation_fraction=0"):
        write(store, make_documents([["alone"]]), tokenizer)
    with pytest.raises(InputError, match="ledger"):
        write(store, make_documents([[], []]), tokenizer)


def test_about_the_asked_share_is_held_out() -> None:
    held_out = sum(document_hash(f"{i:032x}") < 0.1 * 2**64 for i in range(10_000))
    assert 850 < held_out < 1150  # 1,000 expected, sigma 30


def test_the_unigram_entropy_is_that_of_smoothed_counts() -> None:
    train, validation = np.array([3, 0, 1]), np.array([1, 1, 0])
    expected = -(np.log(4 / 7) + np.log(1 / 7)) / 2
    assert unigram_entropy_nats(train, validation) == pytest.approx(expected)


def test_a_token_outside_the_vocabulary_is_never_written() -> None:
    from lmpipe.token_data.shard_file import pack_shard

    with pytest.raises(AssertionError, match="outside the vocabulary"):
        pack_shard(np.array([261]), 261, "00" * 32)


def test_the_shards_of_a_tiny_corpus_never_change(
    store: Store, make_documents: Make, tokenizer: Tokenizer
) -> None:
    # a new digest means a new version of the stage
    result = write(store, make_documents(FILES), tokenizer)
    names = [*result.names("train/"), *result.names("validation/"), "meta.json"]
    digest = hashlib.sha256(b"".join(map(result.read_bytes, names))).hexdigest()
    assert digest[:16] == "9d0d187d894907d2"
