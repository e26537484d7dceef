from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.curation.text.words import (
    LINE_BREAK,
    SPACE,
    TERMINAL,
    character_classes,
    count_sentences,
    split_sentences,
    split_words,
)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_words_hold_every_character_but_spaces_in_order(text: str) -> None:
    assert "".join(split_words(text)) == "".join(text.split())


def test_words_are_cut_as_readers_expect() -> None:
    assert split_words("Don't stop... it's 3.5%!!") == [
        "Don't", "stop", "...", "it's", "3", ".", "5", "%", "!!",
    ]  # fmt: skip
    assert split_words("l’été snake_case x--y") == ["l’été", "snake_case", "x", "--", "y"]
    assert split_words("漢字かな text") == ["漢", "字", "か", "な", "text"]


def test_character_classes_follow_python_and_unicode() -> None:
    classes = character_classes()
    for code in (0x0A, 0x0D, 0x1C, 0x85, 0x2028):
        assert classes[code] & LINE_BREAK
        assert classes[code] & SPACE
    for mark in ".?!。؟।":
        assert classes[ord(mark)] & TERMINAL, mark
    assert not classes[ord("…")] & TERMINAL


@given(st.text(alphabet="ab .!?。\"'", max_size=40))
def test_sentences_are_counted_as_they_are_split(line: str) -> None:
    assert count_sentences(line) == len(split_sentences(line))


def test_sentences_end_at_marks_before_spaces() -> None:
    assert split_sentences('He said "No." Version 3.5 came. And') == [
        'He said "No."', " Version 3.5 came.", " And",
    ]  # fmt: skip
