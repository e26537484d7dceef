import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.errors import ConfigError
from lmpipe.tokenization.patterns import PatternName, max_digits, pattern_regex
from lmpipe.tokenization.pre_tokens import (
    FAMILIES,
    LETTER,
    LOWER,
    NUMBER,
    SPACE,
    UPPER,
    PreTokenCounts,
    character_kinds,
    next_pre_token,
)
from tests.tokenization import reference

PATTERNS: tuple[PatternName, ...] = ("gpt2", "cl100k", "o200k")

CLASSES = {
    LETTER: r"\p{L}",
    NUMBER: r"\p{N}",
    SPACE: r"\p{White_Space}",
    UPPER: r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
    LOWER: r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
}


def settled(text: str) -> str:
    """Leave out characters that are younger than the table: `regex` already knows their class."""
    kinds = character_kinds()
    return "".join(
        character
        for character in text
        if all(
            bool(kinds[ord(character)] & bit) == bool(regex.match(pattern, character))
            for bit, pattern in CLASSES.items()
        )
    )


# what the patterns tell apart, close together; then anything
TRICKY = st.text(
    st.sampled_from("aZǅʰªßſé̈中१½5²_/'sdmtrvelSLRE \t\r\n\u00a0\u2003\u0085.-😀\x1c"), max_size=30
)
TEXT = st.one_of(TRICKY, st.text(max_size=30)).map(settled)


def cut(text: str, pattern: PatternName, digits: int = 0) -> list[str]:
    data = np.frombuffer(text.encode(), np.uint8)
    position, pre_tokens = 0, []
    while position < data.size:
        end = next_pre_token(
            data,
            position,
            data.size,
            character_kinds(),
            FAMILIES[pattern],
            max_digits(pattern, digits),
        )
        pre_tokens.append(data[position:end].tobytes().decode())
        position = end
    return pre_tokens


def count(texts: list[str], cap: int = 64, pattern: PatternName = "cl100k") -> dict[bytes, int]:
    counts = PreTokenCounts(pattern, 0, cap)
    data = [text.encode() for text in texts]
    edges = np.cumsum([0, *map(len, data)])
    counts.add_documents(np.frombuffer(b"".join(data), np.uint8), edges)
    return dict(counts.items())


@given(TEXT, st.sampled_from(PATTERNS), st.integers(0, 3))
@settings(deadline=None, max_examples=900)
def test_the_scanner_cuts_where_the_regular_expression_cuts(
    text: str, pattern: PatternName, digits: int
) -> None:
    expected = reference.pre_tokens(text, pattern_regex(pattern, digits))
    assert cut(text, pattern, digits) == expected


@pytest.mark.parametrize("bit", CLASSES)
def test_the_table_of_characters_is_that_of_tiktoken(bit: int) -> None:
    import tiktoken

    kinds = character_kinds()
    edges = np.nonzero(np.diff(kinds & bit))[0]
    codes = np.unique(np.concatenate([edges, edges + 1, np.arange(0, 0x110000, 997), [0x3D000]]))
    text = "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    ranks = {bytes([byte]): byte for byte in range(256)}
    pattern = CLASSES[bit].replace(r"\p{White_Space}", r"\s")
    matcher = tiktoken.Encoding(
        "class", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
    )  # what the pattern does not match gives no token
    found = matcher.decode(matcher.encode_ordinary(text))
    assert found == "".join(c for c in text if kinds[ord(c)] & bit)


def test_separators_that_are_no_unicode_white_space_are_symbols() -> None:
    assert cut("a\x1c\x1db", "gpt2") == ["a", "\x1c\x1d", "b"]


@given(st.lists(TRICKY, max_size=6))
@settings(deadline=None, max_examples=100)
def test_counts_of_halves_add_up_to_the_counts_of_the_whole(texts: list[str]) -> None:
    whole, left = PreTokenCounts("o200k", 0, 64), PreTokenCounts("o200k", 0, 64)
    right = PreTokenCounts("o200k", 0, 64)
    for counts, part in ((whole, texts), (left, texts[::2]), (right, texts[1::2])):
        data = [text.encode() for text in part]
        edges = np.cumsum([0, *map(len, data)])
        counts.add_documents(np.frombuffer(b"".join(data), np.uint8), edges)
    left.update(right)
    assert dict(left.items()) == dict(whole.items())


def test_pre_tokens_never_cross_a_document() -> None:
    assert count(["ab", "ab", "", "c"]) == {b"ab": 2, b"c": 1}


def test_the_table_grows_without_losing_a_count() -> None:
    words = [f"w{number}" for number in range(5000)]
    letters = ["".join(chr(97 + int(digit)) for digit in word[1:]) + "x" for word in words]
    found = count([" ".join(letters), " ".join(letters)])
    assert sum(found.values()) == 10_000
    assert all(found[b" " + word.encode()] == 2 for word in letters[1:])


def test_counts_pass_two_to_the_31() -> None:
    counts = PreTokenCounts("gpt2", 0, 64)
    for _ in range(3):
        counts.add_pre_tokens([b"ab"], np.array([2**31 - 1]))
    assert dict(counts.items()) == {b"ab": 3 * (2**31 - 1)}


def test_a_long_run_is_cut_at_the_cap_and_never_inside_a_character() -> None:
    assert count(["a" * 100_000]) == {b"a" * 64: 1562, b"a" * 32: 1}
    found = count(["中" * 1000])
    assert max(map(len, found)) == 63
    assert b"".join(pre_token * times for pre_token, times in found.items()).decode() == "中" * 1000


def test_broken_utf8_ends_without_reading_past_the_text() -> None:
    data = np.frombuffer(b"a\xff\xe4\xb8 \xf0\x9f", np.uint8)
    counts = PreTokenCounts("o200k", 0, 64)
    counts.add_documents(data, np.array([0, data.size]))
    assert sum(len(pre_token) * times for pre_token, times in counts.items()) == data.size


def test_a_bad_custom_pattern_is_refused_with_its_text() -> None:
    with pytest.raises(ConfigError, match=r"\(unclosed"):
        pattern_regex("custom", 0, "(unclosed")
    with pytest.raises(ConfigError, match="custom_pattern"):
        pattern_regex("custom", 0, "")
    with pytest.raises(ConfigError, match="digits"):
        pattern_regex("custom", 2, r"\S+")
