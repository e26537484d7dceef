"""The compiled encoder against tiktoken and the slow definition."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.tokenization.bulk_encoding import MAX_KEPT_BYTES, SCAN_BYTES, BufferEncoder
from lmpipe.tokenization.encoding import Encoding
from lmpipe.tokenization.patterns import PatternName, pattern_regex, recognise
from tests.tokenization.test_pre_tokens import PATTERNS, TRICKY

BYTES = {bytes([byte]): byte for byte in range(256)}


def ranks_of(*tokens: str) -> dict[bytes, int]:
    return BYTES | {token.encode(): 256 + i for i, token in enumerate(tokens)}


# tokens that several pairs make, that have no pair of tokens, and that are longer than a key
RANKS = ranks_of(
    "aa", "ab", "aaa", "ba", "abab", "  ", "    ", " a", "\n\n", "it", "'s", "123", "12", "中",
    "zqz", "a" * 8, "a" * 16, "a" * 31, "ab" * 10, "x" * 40, "x" * 20, "xx",
)  # fmt: skip


def both(pattern: PatternName, ranks: dict[bytes, int]) -> tuple[Encoding, BufferEncoder]:
    encoding = Encoding(ranks, pattern_regex(pattern, 0), {"<|endoftext|>": len(ranks)})
    encoder = encoding.buffer_encoder()
    assert encoder is not None
    return encoding, encoder


def encode(encoder: BufferEncoder, texts: list[str]) -> list[list[int]]:
    data = [text.encode() for text in texts]
    edges = np.cumsum([0, *map(len, data)])
    tokens, token_edges = encoder.encode(np.frombuffer(b"".join(data), np.uint8), edges)
    return [part.tolist() for part in np.split(tokens, token_edges[1:-1])]


RUNS = st.lists(
    st.tuples(st.sampled_from(["a", "ab", "x", " ", "\n", "中", "é", "1"]), st.integers(1, 90)),
    max_size=4,
).map(lambda parts: "".join(text * times for text, times in parts))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_ids_are_those_of_tiktoken_and_a_second_time_too(pattern: PatternName) -> None:
    encoding, encoder = both(pattern, RANKS)

    @given(st.lists(TRICKY | RUNS | st.text("ab", max_size=120) | st.text("ax z'"), max_size=4))
    @settings(deadline=None, max_examples=500)
    def check(texts: list[str]) -> None:
        expected = [[*encoding.encode_ordinary(text), encoding.eos] for text in texts]
        if texts:
            assert encode(encoder, texts) == expected
            assert encode(encoder, texts) == expected  # now from the table of kept pre-tokens

    check()


@given(st.text("ab", min_size=SCAN_BYTES - 4, max_size=MAX_KEPT_BYTES + 40))
@settings(deadline=None, max_examples=300)
def test_scan_and_heap_merge_alike_around_their_border(text: str) -> None:
    encoding, encoder = both("gpt2", RANKS)
    assert encode(encoder, [text]) == [[*encoding.encode_ordinary(text), encoding.eos]]


def test_any_unicode_gives_the_ids_of_tiktoken_also_what_is_younger_than_its_table() -> None:
    encoding, encoder = both("o200k", RANKS)

    @given(st.text(max_size=40))
    @settings(deadline=None, max_examples=500)
    def check(text: str) -> None:
        assert encode(encoder, [text]) == [[*encoding.encode_ordinary(text), encoding.eos]]

    check()
    assert encode(encoder, [":\U0003d000"]) == [
        [*encoding.encode_ordinary(":\U0003d000"), encoding.eos]
    ]


def test_empty_documents_give_their_end_alone() -> None:
    encoding, encoder = both("cl100k", RANKS)
    assert encode(encoder, ["", "a", "", ""]) == [[278], [97, 278], [278], [278]]
    assert encoding.eos == 278


def test_more_pre_tokens_than_are_kept_are_encoded_alike() -> None:
    encoding, encoder = both("gpt2", RANKS)
    letters = "bcdefghijklmnop"
    words = [a + b + c + d + e for a in letters for b in letters for c in letters for d in letters
             for e in "bcd"]  # fmt: skip
    text = " ".join(words)
    assert len(words) > 1 << 17
    assert encode(encoder, [text, text])[1][:-1] == encoding.encode_ordinary(text)


@pytest.mark.parametrize("run", ["a", " ", "\n", "!", "中", "ab ", "1", " \t", "aB"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_megabyte_run_takes_linear_time(pattern: PatternName, run: str) -> None:
    _, encoder = both(pattern, RANKS)
    seconds = []
    for size in (62_500, 1_000_000):
        text = run * (size // len(run.encode()))
        data = np.frombuffer(text.encode(), np.uint8)
        start = time.process_time()
        tokens, _ = encoder.encode(data, np.array([0, data.size]))
        seconds.append(time.process_time() - start)
        tokens_bytes = {rank: token for token, rank in RANKS.items()}
        assert b"".join(tokens_bytes[token] for token in tokens[:-1].tolist()) == text.encode()
    # 16 times the text: quadratic time would be 256 times as long
    assert seconds[1] < 80 * max(seconds[0], 0.002)


def test_broken_utf8_keeps_its_bytes() -> None:
    _, encoder = both("cl100k", BYTES)
    data = np.frombuffer(b"a\xff\xe4\xb8 \xf0\x9f", np.uint8)
    tokens, _ = encoder.encode(data, np.array([0, data.size]))
    assert bytes(tokens[:-1].tolist()) == data.tobytes()


def test_a_copy_encodes_as_its_original_and_learns_apart() -> None:
    encoding, encoder = both("cl100k", RANKS)
    encode(encoder, ["unseen words"])
    other = encoder.copy()
    expected = [[*encoding.encode_ordinary("unseen words, more"), encoding.eos]]
    assert encode(other, ["unseen words, more"]) == expected
    assert encode(encoder, ["unseen words, more"]) == expected


def test_a_published_pattern_is_recognised_with_its_digits_and_a_custom_one_is_not() -> None:
    assert recognise(pattern_regex("gpt2", 0)) == (0, 2**31)
    assert recognise(pattern_regex("cl100k", 0)) == recognise(pattern_regex("cl100k", 3)) == (1, 3)
    assert recognise(pattern_regex("o200k", 1)) == (2, 1)
    assert recognise(pattern_regex("custom", 0, r"\p{L}+")) is None
