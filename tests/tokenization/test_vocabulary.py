import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents, Measures, Source, Tokenizer, TokenShards
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from lmpipe.token_data.shards import ShardsConfig, document_hash, shards
from lmpipe.tokenization.config import TokenizerConfig, VocabularyConfig
from lmpipe.tokenization.encoding import Encoding
from lmpipe.tokenization.huggingface import byte_characters
from lmpipe.tokenization.tokenizer import tokenizer
from lmpipe.tokenization.training import count_pre_tokens, train_bpe
from lmpipe.tokenization.vocabulary import FILE, vocabulary
from tests.tokenization.conftest import Make

SENTENCE = "the cat sat on the mat and the dog ran after the hat of a man that had a fan"
WORDS = SENTENCE.split()
TEXTS = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(40)) for i in range(60)]
CONFIG = VocabularyConfig(sizes=(260, 270, 285, 300, 5000))


class Made:
    """A tokenizer and shards of given documents, and their measures."""

    def __init__(self, store: Store, documents: Documents) -> None:
        self.store, self.documents = store, documents
        self.tokenizer: Tokenizer = build(
            tokenizer, TokenizerConfig(vocab_size=300), {"documents": documents},
            store=store, runtime=Runtime(),
        )  # fmt: skip
        self.shards: TokenShards = build(
            shards, ShardsConfig(validation_fraction=0.2),
            {"documents": documents, "tokenizer": self.tokenizer},
            store=store, runtime=Runtime(),
        )  # fmt: skip

    def measure(
        self, config: VocabularyConfig = CONFIG, gpt2: Source | None = None, workers: int = 1
    ) -> Measures:
        inputs: Any = {"documents": self.documents, "tokenizer": self.tokenizer,
                       "shards": self.shards, "gpt2": gpt2}  # fmt: skip
        return build(
            vocabulary, config, inputs, store=self.store, runtime=Runtime(workers=workers),
            force=True,
        )  # fmt: skip

    @property
    def held_out(self) -> set[str]:
        import pyarrow.parquet as pq

        rows = pq.read_table(self.shards.local("index.parquet")).to_pylist()
        return {row["document_id"] for row in rows if row["split"] == "validation"}


@pytest.fixture
def made(store: Store, make_documents: Make) -> Made:
    return Made(store, make_documents([TEXTS[:30], TEXTS[30:]]))


def texts_of(made: Made) -> dict[str, str]:
    import pyarrow.parquet as pq

    tables = [pq.read_table(made.documents.local(name)) for name in made.documents.names("kept/")]
    return {row["id"]: row["text"] for table in tables for row in table.to_pylist()}


def test_every_size_is_the_vocabulary_that_training_it_alone_gives(made: Made) -> None:
    measured = made.measure().read_json(FILE)
    texts, held_out = texts_of(made), made.held_out
    assert 0 < len(held_out) < len(texts)
    config = TokenizerConfig(vocab_size=300)
    sizes = [row["vocab_size"] for row in measured["sweep"]]
    assert sizes == [260, 270, 285, 300]  # 5000 is more than this text can fill
    for row in measured["sweep"]:
        counts, _ = count_pre_tokens(
            made.documents, config, workers=1, keep=lambda name: name not in held_out
        )
        merges = train_bpe(counts, row["vocab_size"] - 260, 2)
        ranks = {bytes([byte]): byte for byte in range(256)}
        ranks |= {left + right: 256 + i for i, (left, right) in enumerate(merges)}
        encoding = Encoding(
            ranks, Encoding.load(made.tokenizer).pattern, {"<|endoftext|>": len(ranks)}
        )
        used = sum(len(encoding.encode_ordinary(texts[name])) for name in held_out)
        total = sum(len(texts[name].encode()) for name in held_out)
        assert row["bytes_per_token"] == round(total / used, 4)
    ratios = [row["bytes_per_token"] for row in measured["sweep"]]
    assert ratios == sorted(ratios) and ratios[0] == 1.0


def test_what_is_held_out_teaches_nothing(store: Store, make_documents: Make) -> None:
    texts = list(TEXTS)
    plain = Made(store, make_documents([texts]))
    strange = "zqxj" * 50
    number = next(i for i, name in enumerate(sorted(texts_of(plain))) if name in plain.held_out)
    name = sorted(texts_of(plain))[number]
    at = texts.index(texts_of(plain)[name])
    texts[at] = strange
    odd = Made(store, make_documents([texts]))
    assert odd.held_out == plain.held_out
    result = odd.measure().read_json(FILE)
    assert result["bytes_per_token"][0]["BPE"] < plain.measure().read_json(FILE)[
        "bytes_per_token"][0]["BPE"]  # fmt: skip
    longest = max(result["sweep"], key=lambda row: row["vocab_size"])
    assert longest["bytes_per_token"] < 5  # "zqxj" in one token would be far above


def test_the_plain_tokenizers_stand_beside_it_by_language(
    store: Store, make_documents: Make
) -> None:
    made = Made(store, make_documents([TEXTS, ["größe über alles " * 9] * 30]))
    result = made.measure().read_json(FILE)
    for row in result["bytes_per_token"]:
        assert row["byte"] == 1.0 and row["bytes"] > 0
        assert row["BPE"] > row["character"] >= 1.0
    texts = [text for name, text in texts_of(made).items() if name in made.held_out]
    assert result["distinct"]["character"] == len(set("".join(texts)))
    assert result["held_out"] == {
        "documents": len(texts),
        "bytes": sum(len(text.encode()) for text in texts),
    }


def test_uses_are_those_of_the_training_tokens(made: Made) -> None:
    import numpy as np

    from lmpipe.token_data.shard_file import map_tokens

    result = made.measure().read_json(FILE)["tokens"]
    encoding = Encoding.load(made.tokenizer)
    stream = np.concatenate([map_tokens(made.shards.local(n)) for n in made.shards.names("train/")])
    counts = np.bincount(stream, minlength=300)
    assert result["counted"] == stream.size
    assert result["never_used"] == int((counts[256:296] == 0).sum())
    assert result["never_used_bytes"] == int((counts[:256] == 0).sum())
    lengths = [row["bytes"] for row in result["longest"]]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == max(len(encoding.token_bytes(t)) for t in range(296))
    for row in result["longest"]:
        spelled: str = json.loads(f'"{row["token"][1:-1]}"')
        token = encoding.encode_ordinary(spelled.replace("␣", " "))
        assert len(token) != 1 or row["uses"] == counts[token[0]]


def test_gpt2_is_compared_where_its_merges_are_given(made: Made, tmp_path: Path) -> None:
    characters = byte_characters()
    space = characters[ord(" ")]
    merges = ["#version: 0.2", "t h", "th e", f"{space} the", "c a", "ca t"]
    (tmp_path / "merges.txt").write_text("\n".join(merges) + "\n")
    pinned = pin("gpt2", SourceSpec(paths=("merges.txt",)), tmp_path)
    runtime = Runtime(locations=pinned.locations)
    gpt2 = build(source, pinned.config, {}, store=made.store, runtime=runtime)
    row = made.measure(gpt2=gpt2).read_json(FILE)["bytes_per_token"][0]
    texts = [text for name, text in texts_of(made).items() if name in made.held_out]
    ranks = {bytes([b]): b for b in range(256)}
    ranks |= {t: 256 + i for i, t in enumerate((b"th", b"the", b" the", b"ca", b"cat"))}
    from lmpipe.tokenization.patterns import pattern_regex

    plain = Encoding(ranks, pattern_regex("gpt2", 0), {"<|endoftext|>": len(ranks)})
    used = sum(len(plain.encode_ordinary(text)) for text in texts)
    assert row["GPT-2"] == round(sum(map(len, texts)) / used, 4)
    assert row["GPT-2"] < row["BPE"]
    (tmp_path / "merges.txt").write_text("{}\n{}")
    for name, says in (("merges.txt", "no list of merges"), ("other.txt", "merges.txt")):
        (tmp_path / name).write_text("{}\n")
        pinned = pin("gpt2", SourceSpec(paths=(name,)), tmp_path)
        runtime = Runtime(locations=pinned.locations)
        wrong = build(source, pinned.config, {}, store=made.store, runtime=runtime)
        with pytest.raises(InputError, match=says):
            made.measure(gpt2=wrong)


def test_shards_that_hold_nothing_out_are_refused_with_the_remedy(made: Made) -> None:
    made.shards = build(
        shards, ShardsConfig(validation_fraction=0),
        {"documents": made.documents, "tokenizer": made.tokenizer},
        store=made.store, runtime=Runtime(),
    )  # fmt: skip
    with pytest.raises(InputError, match=r"shards.validation_fraction above 0"):
        made.measure()


def test_this_stage_writes_the_same_bytes_from_any_number_of_workers(made: Made) -> None:
    results = [made.measure(workers=workers) for workers in (1, 3)]
    assert len({result.digest for result in results}) == 1
    # a new digest means a new version of the stage
    assert hashlib.sha256(results[0].read_bytes(FILE)).hexdigest()[:16] == "ec8d6d5069e672f3"


def test_held_out_is_what_the_hash_says(made: Made) -> None:
    limit = max(map(document_hash, made.held_out))
    assert {name for name in texts_of(made) if document_hash(name) <= limit} == made.held_out
