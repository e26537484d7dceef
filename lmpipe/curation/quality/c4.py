"""C4's line rules: which lines count, how many sentences they hold, and what bans a document.

A line is kept if it ends in . ? ! " or ' but not in an ellipsis, has three words or more, none
longer than 1,000 characters, and no mention of JavaScript or of a cookie policy. One compiled pass
counts the sentences of nine documents in ten; those that hold one of the phrases anywhere, or a
citation mark, take the way through Python's strings. Before, all did: 510 against 60 microseconds
a document of 900 words.

Source: Raffel et al. 2020, section 2.2.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lmpipe.curation.text.words import LINE_BREAK, SPACE, Codes, count_sentences

MAX_LINE_WORD_CHARACTERS = 1000
MIN_LINE_WORDS = 3
CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)


class Facts(NamedTuple):
    """What C4's rules ask of a text besides its lines."""

    num_sentences: int
    has_lorem_ipsum: bool
    has_curly_bracket: bool


_PHRASES = ("javascript", "lorem ipsum", *POLICY_PHRASES)
_DOT, _QUOTE, _APOSTROPHE, _CURLY, _CR, _LF = 0x2E, 0x22, 0x27, 0x7B, 0x0D, 0x0A
_STOP, _MARK, _CLOSER, _WIDE = 1, 2, 4, 8  # . ? ! ' " ends a line; ends a sentence; may follow it


def _sentence_classes() -> NDArray[np.uint8]:
    classes = np.zeros(0x10000, dtype=np.uint8)
    for characters, bit in (
        (".?!\"'", _STOP), (".!?。！？…", _MARK), ("\"'”’)]", _CLOSER), ("。！？", _WIDE),
    ):  # fmt: skip
        for character in characters:
            classes[ord(character)] |= bit
    return classes


_CLASSES = _sentence_classes()


def line_facts(
    text: str,
    codes: Codes,
    classes: NDArray[np.uint8],
    sentences: Callable[[str], int] | None = None,
) -> Facts:
    """Count the sentences of the lines that C4 keeps; say whether those hold what C4 bans.

    Args:
        sentences: another way to count a line's sentences; ours where absent.
    """
    if sentences is not None or CITATION.search(text) or _has_phrase(text.lower()):
        return _slow_facts(text, sentences or count_sentences)
    count, curly = _fast_facts(codes, classes, _CLASSES)
    return Facts(count, False, curly)


def _has_phrase(lowered: str) -> bool:
    """One search for each: an alternation of all takes 20 times as long."""
    return any(phrase in lowered for phrase in _PHRASES)


def _slow_facts(text: str, sentences: Callable[[str], int]) -> Facts:
    has_lorem = has_curly = False
    count = 0
    for raw in text.splitlines():
        line = raw.strip()
        words = line.split()
        if len(line) > MAX_LINE_WORD_CHARACTERS and max(map(len, words)) > MAX_LINE_WORD_CHARACTERS:
            continue
        line = CITATION.sub("", line)
        if not line.endswith((".", "?", "!", '"', "'")) or line.endswith("..."):
            continue
        if len(words) < MIN_LINE_WORDS:
            continue
        lowered = line.lower()
        has_lorem = has_lorem or "lorem ipsum" in lowered
        if "javascript" in lowered:
            continue
        has_curly = has_curly or "{" in line
        if any(phrase in lowered for phrase in POLICY_PHRASES):
            continue
        count += sentences(line)
    return Facts(count, has_lorem, has_curly)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _fast_facts(codes: Any, classes: Any, sentence_classes: Any) -> Any:
    """Return the sentences and the curly bracket of a text without phrases and citations."""
    sentences = 0
    curly = False
    size = len(codes)
    start = 0
    while start < size:
        end = start
        while end < size and not classes[codes[end]] & LINE_BREAK:
            end += 1
        first, last = start, end
        start = end + 1
        while first < last and classes[codes[first]] & SPACE:
            first += 1
        while last > first and classes[codes[last - 1]] & SPACE:
            last -= 1
        if first == last or codes[last - 1] >= 0x10000:
            continue
        if not sentence_classes[codes[last - 1]] & _STOP:
            continue
        dots = last - first >= 3 and codes[last - 1] == _DOT
        if dots and codes[last - 2] == _DOT and codes[last - 3] == _DOT:
            continue
        words = longest = length = 0
        has_curly = False
        for at in range(first, last):
            if classes[codes[at]] & SPACE:
                length = 0
            else:
                words += length == 0
                length += 1
                longest = max(longest, length)
            has_curly = has_curly or codes[at] == _CURLY
        if words >= MIN_LINE_WORDS and longest <= MAX_LINE_WORD_CHARACTERS:
            curly = curly or has_curly
            sentences += _count_sentences(codes, first, last, classes, sentence_classes)
    return sentences, curly


@njit(cache=True)  # type: ignore[untyped-decorator]
def _class_at(codes: Any, at: int, sentence_classes: Any) -> Any:
    return sentence_classes[codes[at]] if codes[at] < 0x10000 else np.uint8(0)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _count_sentences(codes: Any, first: int, last: int, classes: Any, sentence_classes: Any) -> int:
    """Count what words.count_sentences counts: runs of marks and closers before space or end."""
    count = 0
    rest = at = first
    while at < last:
        if not _class_at(codes, at, sentence_classes) & _MARK:
            at += 1
            continue
        end = at
        while end < last and _class_at(codes, end, sentence_classes) & _MARK:
            end += 1
        after = end
        while after < last and _class_at(codes, after, sentence_classes) & _CLOSER:
            after += 1
        if after == last or classes[codes[after]] & SPACE:
            count += 1
            rest = at = after
            continue
        for inner in range(at, end):  # a full-width mark ends a sentence wherever it stands
            if _class_at(codes, inner, sentence_classes) & _WIDE:
                count += 1
                rest = inner + 1
        at = end
    for tail in range(rest, last):
        if not classes[codes[tail]] & SPACE:
            return count + 1
    return count
