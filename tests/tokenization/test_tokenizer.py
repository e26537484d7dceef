import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents, Tokenizer
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from lmpipe.tokenization.config import TokenizerConfig
from lmpipe.tokenization.encoding import Encoding
from lmpipe.tokenization.patterns import PatternName, pattern_regex
from lmpipe.tokenization.tokenizer import tokenizer
from lmpipe.tokenization.training import count_pre_tokens, train_bpe
from lmpipe.training.pretrain import write_tokenizer_files
from tests.tokenization import reference
from tests.tokenization.conftest import Make
from tests.tokenization.test_pre_tokens import TRICKY as TEXT

TEXTS = [
    "The cat sat on the mat, didn't it? The 12345 cats' hats cost £9.99 in 2024!",
    "Der Kater saß auf der Matte;  die Kätzchen schliefen.\n\n\tUnd 1000 Mäuse tanzten…",
    "猫がマットの上に座った。猫は眠る。猫がマットの上に座った。",
    "<|endoftext|> is text here, and so is <|user|>. The cat sat on the mat again and again.",
]
CONFIG = TokenizerConfig(vocab_size=340)


def train(
    store: Store, documents: Documents, config: TokenizerConfig = CONFIG, workers: int = 1
) -> Tokenizer:
    return build(
        tokenizer,
        config,
        {"documents": documents},
        store=store,
        runtime=Runtime(workers=workers),
        force=True,
    )


@pytest.fixture
def trained(store: Store, make_documents: Make) -> Tokenizer:
    return train(store, make_documents([TEXTS, TEXTS]))


def test_ids_are_equal_in_tiktoken_tokenizers_transformers_and_the_slow_reference(
    trained: Tokenizer, tmp_path: Path
) -> None:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    encoding = Encoding.load(trained)
    hugging = tokenizers.Tokenizer.from_file(str(trained.local("tokenizer.json")))
    fast = PreTrainedTokenizerFast(tokenizer_file=str(trained.local("tokenizer.json")))
    merges = [tuple(encoding.token_bytes(t) for t in pair) for pair in _merges(trained, encoding)]
    assert len(merges) == CONFIG.num_merges

    # letters and marks of old standing: the three libraries carry Unicode tables of three years
    characters = st.characters(max_codepoint=0x24F) | st.sampled_from(
        "猫がマ中\u0301\u2003😀ʰǅ1² '\n"
    )

    @given(st.text(characters, max_size=40) | st.sampled_from(TEXTS[:3]))
    @settings(deadline=None, max_examples=400)
    def check(text: str) -> None:
        for special in encoding.specials:
            text = text.replace(special, "")
        ids = encoding.encode_ordinary(text)
        assert hugging.encode(text).ids == ids
        assert encoding.encode_numpy(text).tolist() == ids
        assert encoding.decode(ids) == text
        slow = reference.encode(text, encoding.pattern, merges)  # type: ignore[arg-type]
        assert [encoding.token_bytes(token) for token in ids] == slow

    check()
    assert fast.encode(TEXTS[0]) == encoding.encode_ordinary(TEXTS[0])
    assert hugging.get_vocab_size() == encoding.vocab_size == CONFIG.vocab_size


ODD_SPECIALS = (
    "<|endoftext|>",
    "<|učitel|>",
    "<|élève|>",
    "<|Schüler|>",
    "<|Ġ|>",
    "<|žák|>",
    "<|猫|>",
    "a. (č)* [^é]",
    "č\n$",
)


def test_special_tokens_of_any_letters_are_decoded_as_they_are_spelled(
    store: Store, make_documents: Make, tmp_path: Path
) -> None:
    import tokenizers
    from transformers import AutoTokenizer

    config = TokenizerConfig(vocab_size=320, specials=ODD_SPECIALS)
    made = train(store, make_documents([TEXTS, TEXTS]), config)
    encoding = Encoding.load(made)
    write_tokenizer_files(made, tmp_path, 64)
    hugging = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    fast = AutoTokenizer.from_pretrained(tmp_path)
    for special in ODD_SPECIALS:
        assert hugging.decode([encoding.special(special)], skip_special_tokens=False) == special
    # what text is like a special's letters in bytes stays what it is
    text = "<|u\ritel|> der Kater, učitel élève 猫."
    mixed = [t for name in ODD_SPECIALS for t in (*encoding.encode_ordinary(text),
             encoding.special(name))]  # fmt: skip
    expected = "".join(text + special for special in ODD_SPECIALS)
    assert encoding.decode(mixed) == expected
    assert hugging.decode(mixed, skip_special_tokens=False) == expected
    assert fast.decode(mixed, skip_special_tokens=False) == expected
    assert hugging.decode(mixed) == text * len(ODD_SPECIALS)
    assert hugging.encode(text + ODD_SPECIALS[1]).ids[-1] == encoding.special(ODD_SPECIALS[1])


@pytest.mark.parametrize("special", ["a", "Ġ", "č"])
def test_a_special_token_spelled_like_a_byte_is_refused_by_name(
    store: Store, make_documents: Make, special: str
) -> None:
    config = TokenizerConfig(vocab_size=300, specials=("<|endoftext|>", special))
    with pytest.raises(InputError, match=rf"special token '{special}' is spelled like token \d+"):
        train(store, make_documents([TEXTS, TEXTS]), config)


def _merges(artifact: Tokenizer, encoding: Encoding) -> list[tuple[int, int]]:
    model = artifact.read_json("tokenizer.json")["model"]
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
    return [(model["vocab"][left], model["vocab"][right]) for left, right in pairs]


def test_training_equals_the_slow_trainer_on_the_same_pre_tokens(
    make_documents: Make,
) -> None:
    import regex

    words: dict[bytes, int] = {}
    for text in TEXTS:
        for part in regex.split(r"<\|endoftext\|>|<\|user\|>", text):
            for pre_token in reference.pre_tokens(part, pattern_regex("o200k", 1)):
                words[pre_token.encode()] = words.get(pre_token.encode(), 0) + 1
    config = TokenizerConfig(vocab_size=320, pattern="o200k", digits=1)
    counts, _ = count_pre_tokens(make_documents([TEXTS]), config, workers=1)
    assert dict(counts.items()) == words
    assert train_bpe(counts, 60, 2) == reference.train(words, 60, 2)


def test_five_runs_with_other_workers_hash_seeds_and_processes_give_the_same_bytes(
    store: Store, make_documents: Make
) -> None:
    documents = make_documents([TEXTS, [], TEXTS[:2], TEXTS[1:]])
    digests = {train(store, documents, workers=workers).digest for workers in (1, 2, 4)}
    program = (
        "import sys\n"
        "from lmpipe.artifacts.build import build\n"
        "from lmpipe.artifacts.lookup import read_manifest\n"
        "from lmpipe.artifacts.types import open_artifact\n"
        "from lmpipe.artifacts.store import Store\n"
        "from lmpipe.runtime import Runtime\n"
        "from lmpipe.tokenization.tokenizer import TokenizerConfig, tokenizer\n"
        "from tests.tokenization.conftest import given_documents\n"
        "store = Store(sys.argv[1])\n"
        "manifest = read_manifest(store, 'given_documents', sys.argv[2])[0]\n"
        "documents = open_artifact(store, manifest)\n"
        "print(build(tokenizer, TokenizerConfig(vocab_size=340), {'documents': documents},\n"
        "            store=store, runtime=Runtime(workers=2), force=True).digest)\n"
    )
    for seed in ("1", "77"):
        run = subprocess.run(
            [sys.executable, "-c", program, store.root, documents.id],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(run.stdout.strip())
    assert len(digests) == 1


def test_text_that_spells_a_special_token_never_becomes_one(trained: Tokenizer) -> None:
    encoding = Encoding.load(trained)
    text = "a<|endoftext|>b <|user|>"
    for ids in (encoding.encode_ordinary(text), encoding.encode_numpy(text).tolist()):
        assert not set(ids) & set(encoding.specials.values())
        assert encoding.decode(ids) == text


def test_no_pre_token_learns_or_crosses_a_spelled_special(make_documents: Make) -> None:
    config = TokenizerConfig(vocab_size=300, pattern="custom", custom_pattern=r"\S+|\s+")
    documents = make_documents([["xx<|endoftext|>yy <|end|><|user|>", "plain"]])
    counts, num_bytes = count_pre_tokens(documents, config, workers=1)
    assert dict(counts.items()) == {b"xx": 1, b"yy": 1, b" ": 1, b"plain": 1}
    assert num_bytes == len("xxyy plain")


RUNS = ("a", " ", "\n", "!", "中", "ab ", "1", " \t")


@pytest.mark.parametrize(
    ("pattern", "run"),
    [("gpt2", "a"), ("gpt2", "\n"), ("o200k", "A"), *(("cl100k", run) for run in RUNS)],
)
def test_a_megabyte_run_is_encoded_in_linear_time(pattern: PatternName, run: str) -> None:
    import time

    ranks = {bytes([byte]): byte for byte in range(256)}
    for size in (2, 4, 8, 16):
        for pre_token in ("a", " ", "\n", "!"):
            ranks[pre_token.encode() * size] = len(ranks)
    encoding = Encoding(ranks, pattern_regex(pattern, 0), {"<|endoftext|>": len(ranks)})
    seconds = []
    for size in (62_500, 1_000_000):
        text = run * (size // len(run.encode()))
        start = time.process_time()
        ids = encoding.encode_ordinary(text)
        seconds.append(time.process_time() - start)
        assert encoding.decode(ids) == text
    # 16 times the text: quadratic time would be 256 times as long
    assert seconds[1] < 80 * max(seconds[0], 0.002)


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k"])
def test_a_text_that_tiktoken_cannot_cut_gets_the_ids_that_it_would_have_given(
    pattern: PatternName,
) -> None:
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {b"  ": 256, b"    ": 257, b"it": 258}
    encoding = Encoding(ranks, pattern_regex(pattern, 0), {"<|endoftext|>": 259})

    @given(TEXT)
    @settings(deadline=None, max_examples=200)
    def check(text: str) -> None:
        assert encoding._encode_by_pre_tokens(text) == encoding.encode_ordinary(text)

    check()


def test_a_panic_of_tiktoken_is_an_error_that_names_the_text_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = Encoding(ranks, pattern_regex("cl100k", 0), {"<|endoftext|>": 256})
    text = "a" + " " * 1_000_000 + "b"
    with pytest.raises(BaseException) as raised:
        encoding.tiktoken.encode_ordinary(text)
    assert not isinstance(raised.value, Exception)  # no `except Exception` would have met it
    monkeypatch.setattr("lmpipe.tokenization.encoding.LONG_RUN", 10**9)
    for encode in (encoding.encode_ordinary, encoding.encode_numpy):
        with pytest.raises(InputError, match=r"1000002 characters that begins 'a  .*remove the"):
            encode(text)


def test_training_on_runs_of_a_hundred_thousand_characters_stays_small(
    store: Store, make_documents: Make
) -> None:
    documents = make_documents([["a" * 100_000, "中文" * 30_000, "b" * 100_000]])
    config = TokenizerConfig(vocab_size=270, max_piece_bytes=64)
    encoding = Encoding.load(train(store, documents, config))
    assert max(len(encoding.token_bytes(token)) for token in range(266)) <= 64


def test_more_text_than_the_limit_is_sampled_the_same_way_by_any_worker(
    make_documents: Make,
) -> None:
    documents = make_documents([[f"document number {i} of many" for i in range(400)]] * 2)
    config = TokenizerConfig(vocab_size=270, max_training_bytes=4000)
    found = [count_pre_tokens(documents, config, workers=workers) for workers in (1, 3)]
    assert dict(found[0][0].items()) == dict(found[1][0].items())
    assert 2000 < found[0][1] == found[1][1] < 6000


def test_specials_come_last_and_the_first_one_ends_documents(trained: Tokenizer) -> None:
    meta = trained.read_json("meta.json")
    encoding = Encoding.load(trained)
    assert list(meta["specials"]) == list(CONFIG.specials)
    assert list(meta["specials"].values()) == [336, 337, 338, 339]
    assert encoding.eos == meta["eos"] == encoding.special("<|endoftext|>") == 336
    assert encoding.decode([encoding.special("<|user|>"), 97]) == "<|user|>a"


def test_the_token_that_begins_a_text_is_the_one_that_ends_documents(
    store: Store, make_documents: Make
) -> None:
    import tokenizers

    config = TokenizerConfig(vocab_size=300, specials=("</s>", "<s>"))
    trained = train(store, make_documents([TEXTS]), config)
    meta = trained.read_json("meta.json")
    assert meta["bos"] == meta["eos"] == meta["pad"] == meta["specials"]["</s>"] == 298
    hugging = tokenizers.Tokenizer.from_file(str(trained.local("tokenizer.json")))
    assert hugging.id_to_token(meta["bos"]) == "</s>"
    # no post-processor adds it, which would be lost or doubled where shards put it in themselves
    for text in ("a cat", ""):
        assert hugging.encode(text).ids == Encoding.load(trained).encode_ordinary(text)


def test_an_encoding_loads_from_a_folder_as_from_the_artifact(
    trained: Tokenizer, tmp_path: Path
) -> None:
    for name in ("meta.json", "ranks.tiktoken"):
        (tmp_path / name).write_bytes(trained.read_bytes(name))
    encoding = Encoding.load(tmp_path)
    for text in TEXTS:
        assert encoding.encode_ordinary(text) == Encoding.load(trained).encode_ordinary(text)


def test_bytes_per_token_are_reported_by_language(store: Store, make_documents: Make) -> None:
    documents = make_documents([TEXTS[:2]], languages=("en", None))
    ratios = train(store, documents, TokenizerConfig(vocab_size=270)).metrics["bytes_per_token"]
    assert set(ratios) == {"en", "unknown"}
    assert all(1 < ratio < 5 for ratio in ratios.values())


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"vocab_size": 259}, "at least 260: 256 bytes and 4 specials; raise vocab_size, or name"),
        ({"vocab_size": 100}, "at least 260"),
        ({"specials": ("<|a|>", "<|b|>", "<|a|>")}, r"distinct and not empty: take '<\|a\|>' out"),
        ({"specials": ("<|a|>", "")}, "take '' out, or spell it otherwise"),
        ({"specials": ()}, "at least 1"),
        ({"pattern": "custom"}, "custom_pattern"),
        ({"pattern": "custom", "custom_pattern": r"\d*"}, "empty string"),
        ({"pattern": "gpt3"}, "gpt2"),
    ],
)
def test_a_bad_config_is_refused_with_a_remedy(change: dict[str, object], remedy: str) -> None:
    with pytest.raises(ValidationError, match=remedy):
        TokenizerConfig.model_validate(change)


def test_a_corpus_that_is_empty_or_too_small_is_refused_with_a_remedy(
    store: Store, make_documents: Make
) -> None:
    with pytest.raises(InputError, match=r"is empty: .*lmpipe why DOC_ID.*more documents"):
        train(store, make_documents([[], ["", ""]]))
    says = r"lower vocab_size to 261 or less, give more documents, or lower min_frequency=2"
    with pytest.raises(InputError, match=says):
        train(store, make_documents([["ab ab"]]))


def test_a_custom_pattern_loses_no_text_that_it_does_not_match(
    store: Store, make_documents: Make
) -> None:
    config = TokenizerConfig(vocab_size=262, pattern="custom", custom_pattern=r"\p{L}+")
    encoding = Encoding.load(train(store, make_documents([["aaa bbb aaa bbb, 12"]]), config))
    assert encoding.decode(encoding.encode_ordinary("aaa, 12 bbb!\n")) == "aaa, 12 bbb!\n"


def test_the_tokenizer_of_a_tiny_corpus_never_changes(trained: Tokenizer) -> None:
    # a new digest means a new version of the stage
    assert json.loads(trained.read_bytes("meta.json"))["vocab_size"] == 340
    assert trained.digest[:16] == "39ba3374dd6ed003"
