"""The shared tokenisation: every rule sees the same words, sentences and character classes.

Words are runs of letters, digits, marks and underscores, joined by an apostrophe between letters;
a run of one other character (`...`, `----`) is one word, and so is each ideograph or kana, because
those scripts put no spaces. spaCy's English splitter, which datatrove uses for the same rules,
makes 112 documents a second; this makes tens of thousands and needs no language. The price: no
Thai or Khmer segmentation (such a run is one long word), and hyphenated words are three.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Any

import numpy as np
import regex
from numba import njit
from numpy.typing import NDArray

Codes = NDArray[np.uint32]
Spans = tuple[NDArray[np.int32], NDArray[np.int32]]

WORD = 1  # letters, digits, marks, underscore
SPACE = 2
ALPHABETIC = 4
SYMBOL = 8  # punctuation, symbols, controls: a word of these alone is no word in Gopher's sense
TERMINAL = 16  # ends a sentence in some script (Unicode's STerm)
LINE_BREAK = 32  # where str.splitlines cuts
IDEOGRAPH = 64
_LAST_ASSIGNED = 0x323B0  # all letters and punctuation of Unicode 17 lie below; beyond: private use
_APOSTROPHE, _RIGHT_QUOTE, _CR, _LF = 0x27, 0x2019, 0x0D, 0x0A
_SENTENCE_END = re.compile(r"""[.!?。！？…]+["'”’)\]]*(?=\s|$)|[。！？]""")


@lru_cache(1)
def character_classes() -> NDArray[np.uint8]:
    """Return the class bits of every code point, made from Python's own tables."""
    classes = np.full(0x110000, SYMBOL, dtype=np.uint8)
    characters = [chr(code) for code in range(_LAST_ASSIGNED)]
    classes[:_LAST_ASSIGNED] = [_class_of(character) for character in characters]
    ideographs = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]")
    terminals = regex.compile(r"\p{Sentence_Terminal}")
    text = "".join(
        character if not "\ud800" <= character <= "\udfff" else " " for character in characters
    )
    for pattern, bit in ((ideographs, IDEOGRAPH), (terminals, TERMINAL)):
        for match in pattern.finditer(text):
            classes[match.start()] |= bit
    return classes


def _class_of(character: str) -> int:
    category = unicodedata.category(character)
    bits = 0
    if category[0] in "LNM" or character == "_":
        bits |= WORD
    if character.isspace():
        bits |= SPACE
    if character.isalpha():
        bits |= ALPHABETIC
    if category[0] in "PSC":
        bits |= SYMBOL
    if len(f"a{character}b".splitlines()) == 2:
        bits |= LINE_BREAK
    return bits


def codes_of(text: str) -> Codes:
    """Return a text's code points."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def split_words(text: str) -> list[str]:
    """Split a text into words: the same words that the measures see."""
    starts, ends = word_spans(codes_of(text), character_classes())
    return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def split_sentences(line: str) -> list[str]:
    """Split a line after terminal punctuation that a space or the end follows."""
    sentences, start = [], 0
    for match in _SENTENCE_END.finditer(line):
        sentences.append(line[start : match.end()])
        start = match.end()
    if line[start:].strip():
        sentences.append(line[start:])
    return sentences


def count_sentences(line: str) -> int:
    """Count the sentences that `split_sentences` would return."""
    end = count = 0
    for match in _SENTENCE_END.finditer(line):
        end = match.end()
        count += 1
    return count + bool(line[end:].strip())


def word_spans(codes: Codes, classes: NDArray[np.uint8]) -> Spans:
    """Return where each word starts and ends, in code points."""
    starts = np.empty(len(codes), dtype=np.int32)
    ends = np.empty(len(codes), dtype=np.int32)
    count = _word_spans(codes, classes, starts, ends)
    return starts[:count], ends[:count]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _word_spans(codes: Any, classes: Any, starts: Any, ends: Any) -> int:
    count = 0
    at = 0
    size = len(codes)
    while at < size:
        code = codes[at]
        kind = classes[code]
        if kind & SPACE:
            at += 1
            continue
        end = at + 1
        if kind & IDEOGRAPH:
            while (
                end < size
                and classes[codes[end]] & WORD
                and not classes[codes[end]] & ALPHABETIC
                and not classes[codes[end]] & IDEOGRAPH
            ):
                end += 1  # a mark belongs to what it marks
        elif kind & WORD:
            while end < size:
                next_kind = classes[codes[end]]
                if next_kind & IDEOGRAPH:
                    break
                if next_kind & WORD or (
                    (codes[end] == _APOSTROPHE or codes[end] == _RIGHT_QUOTE)
                    and end + 1 < size
                    and classes[codes[end - 1]] & ALPHABETIC
                    and classes[codes[end + 1]] & ALPHABETIC
                ):
                    end += 1
                else:
                    break
        else:
            while end < size and codes[end] == code:
                end += 1
        starts[count] = at
        ends[count] = end
        count += 1
        at = end
    return count
