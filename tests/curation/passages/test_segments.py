import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.curation.passages.segments import passage_keys, split

PIECES = [
    "a",
    "Zürich",
    "日本",
    "。",
    ".",
    "?!",
    "…",
    "”",
    ")",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "😀",
    "",
]


def parts(text: str, unit: str) -> list[str]:
    """Return the segments as texts: a cut inside a character would not decode."""
    data, bounds = text.encode(), split([text], unit).bounds.tolist()
    return [data[a:b].decode() for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize("unit", ["document", "paragraph", "sentences"])
@settings(deadline=None)  # the first call may compile
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), max_size=4))
def test_segments_put_together_are_the_texts_down_to_the_last_byte(unit: str, texts: list[str]):
    array = pa.array(["before", *texts])[1:]  # a slice: its bytes do not begin at 0
    segments = split(array, unit)
    data = "".join(texts).encode()
    bounds = segments.bounds.tolist()
    assert bounds[0] == 0 and bounds[-1] == len(data) and bounds == sorted(bounds)
    for number, text in enumerate(texts):
        first, last = segments.offsets[number : number + 2].tolist()
        pieces = [data[bounds[i] : bounds[i + 1]].decode() for i in range(first, last)]
        assert "".join(pieces) == text and (bool(pieces) or not text) and "" not in pieces


def test_paragraphs_are_lines_with_the_blank_ones_after_them():
    text = "\n Title\n\n  \nOne. Two.\n    indented\nlast"
    assert parts(text, "paragraph") == [
        "\n Title\n\n  \n", "One. Two.\n", "    indented\n", "last"
    ]  # fmt: skip
    assert parts("one\r\n\r\ntwo\r\n", "paragraph") == ["one\r\n\r\n", "two\r\n"]
    assert parts("\n \n", "paragraph") == ["\n \n"] and parts("", "paragraph") == []


def test_sentences_end_at_full_stops_before_blanks_and_at_lines():
    text = "He said “Go.” Then 3.5 left! (Really?)  Yes…\nA heading\n\n  It is. "
    assert parts(text, "sentences") == [
        "He said “Go.” ", "Then 3.5 left! ", "(Really?)  ", "Yes…\n", "A heading\n\n", "  It is. "
    ]  # fmt: skip
    assert parts("一つ。二つ！」三つ", "sentences") == ["一つ。", "二つ！」", "三つ"]
    assert parts("No. 5 is “a” or 'b' e.g. here", "sentences") == [
        "No. ", "5 is “a” or 'b' e.g. ", "here"
    ]  # fmt: skip


def test_a_key_is_that_of_the_folded_words_and_their_order():
    def keys(text: str, unit: str, length: int) -> list[int]:
        found, _, _ = passage_keys(split([text], unit), length, 1)
        return found.tolist()

    lines = keys("Über Äpfel, 5!\nuber apfel 5\nuber apfel 6\napfel uber 5", "paragraph", 1)
    assert lines[0] == lines[1] and len(set(lines)) == 3
    spans = keys("A b. C d. E f. G h.\nC d? E f; G h! Z.", "sentences", 3)
    assert len(spans) == 5 and len(set(spans)) == 5
    assert keys("a b. c d. e f.", "sentences", 3) == keys("A B!\n\nC D!\nE F", "sentences", 3)
    assert keys("a. b. c.", "sentences", 3) != keys("a. b c.", "sentences", 2)
    assert keys("a b c", "document", 1) == keys("A,\nb. c", "document", 1)


def test_short_passages_and_texts_with_too_few_sentences_have_no_key():
    segments = split(["one two\nthree\n\n...\n", "", "a b c"], "paragraph")
    keys, texts, firsts = passage_keys(segments, 1, 2)
    assert (texts.tolist(), firsts.tolist()) == ([0, 2], [0, 0]) and len(set(keys.tolist())) == 2
    assert len(passage_keys(split(["A b. C d."], "sentences"), 3, 1)[0]) == 0
    assert len(passage_keys(split([None, ""], "paragraph"), 1, 1)[0]) == 0
