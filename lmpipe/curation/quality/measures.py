"""What the Gopher and FineWeb rules measure (C4: c4.py), in one pass over a document's code points.

The rules are simple, their naive form is not: thirteen kinds of repetition over words make a Python
list of joined n-grams each. Here words become 64-bit hashes once, n-grams are built from the hashes
of (n-1)-grams, and duplicates are looked up in one open-addressing table. Two different n-grams
collide with probability about (words squared) / 2^64. The alternative, numpy's sort per n, is 6
times slower, and cannot express the skipping of the duplicate n-gram rule.

Source: Rae et al. 2021 (Gopher), appendix A1; Raffel et al. 2020 (C4), section 2.2; Penedo et al.
2024 (FineWeb), section 3.6.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lmpipe.curation.quality.c4 import Facts, line_facts
from lmpipe.curation.text.word_hashes import mix
from lmpipe.curation.text.words import (
    ALPHABETIC,
    LINE_BREAK,
    SPACE,
    SYMBOL,
    TERMINAL,
    Spans,
    character_classes,
    codes_of,
    word_spans,
)

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
TOP_GRAMS = (2, 3, 4)
DUPLICATE_GRAMS = (5, 6, 7, 8, 9, 10)
SHORT_LINE_CHARACTERS = 30

# rows of the count table that the kernel fills
(
    WORDS, NON_SYMBOL_WORDS, NON_SYMBOL_CHARACTERS, ALPHABETIC_WORDS, DISTINCT_STOP_WORDS,
    HASHES, ELLIPSES, LINES, BULLET_LINES, ELLIPSIS_LINES,
    PARAGRAPHS, REPEATED_PARAGRAPHS, REPEATED_PARAGRAPH_CHARACTERS,
    BLOCK_LINES, REPEATED_BLOCK_LINES, REPEATED_BLOCK_LINE_CHARACTERS,
    FULL_LINES, PUNCTUATED_LINES, SHORT_LINES, REPEATED_LINE_CHARACTERS,
    NEWLINES, CHARACTERS, TOP_GRAM,
) = range(23)  # fmt: skip
DUPLICATE_GRAM = TOP_GRAM + len(TOP_GRAMS)
NUM_COUNTS = DUPLICATE_GRAM + len(DUPLICATE_GRAMS)
_HASH, _DOT, _ELLIPSIS, _BULLET, _DASH, _LF, _CR = 0x23, 0x2E, 0x2026, 0x2022, 0x2D, 0x0A, 0x0D


def measure(
    texts: list[str],
    spans: list[Spans] | None = None,
    sentences: Callable[[str], int] | None = None,
) -> dict[str, NDArray[Any]]:
    """Return every rule's measure for each text, by signal name.

    Args:
        spans: word spans by another splitter, in code points; ours where absent.
        sentences: another counter of a line's sentences; ours where absent.
    """
    classes = character_classes()
    counts = np.zeros((len(texts), NUM_COUNTS), dtype=np.int64)
    facts = []
    for number, text in enumerate(texts):
        codes = codes_of(text)
        starts, ends = spans[number] if spans is not None else word_spans(codes, classes)
        _count(codes, classes, starts, ends, _stop_hashes(), counts[number])
        facts.append(line_facts(text, codes, classes, sentences))
    return _signals_of(counts) | _c4_signals(facts)


def _ratio(numerator: NDArray[np.int64], denominator: NDArray[np.int64]) -> NDArray[np.float32]:
    return (numerator / np.maximum(denominator, 1)).astype(np.float32)


def _signals_of(counts: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    column = counts.T
    words, characters = column[WORDS], column[CHARACTERS]
    signals: dict[str, NDArray[Any]] = {
        "num_words": words.astype(np.int32),
        "num_non_symbol_words": column[NON_SYMBOL_WORDS].astype(np.int32),
        "mean_word_length": _ratio(column[NON_SYMBOL_CHARACTERS], column[NON_SYMBOL_WORDS]),
        "hash_word_ratio": _ratio(column[HASHES], words),
        "ellipsis_word_ratio": _ratio(column[ELLIPSES], words),
        "bullet_line_fraction": _ratio(column[BULLET_LINES], column[LINES]),
        "ellipsis_line_fraction": _ratio(column[ELLIPSIS_LINES], column[LINES]),
        "alphabetic_word_fraction": _ratio(column[ALPHABETIC_WORDS], words),
        "num_stop_words": column[DISTINCT_STOP_WORDS].astype(np.int32),
        "duplicate_paragraph_fraction": _ratio(column[REPEATED_PARAGRAPHS], column[PARAGRAPHS]),
        "duplicate_paragraph_character_fraction": _ratio(
            column[REPEATED_PARAGRAPH_CHARACTERS], characters
        ),
        "duplicate_line_fraction": _ratio(column[REPEATED_BLOCK_LINES], column[BLOCK_LINES]),
        "duplicate_line_character_fraction": _ratio(
            column[REPEATED_BLOCK_LINE_CHARACTERS], characters
        ),
        "punctuated_line_fraction": _ratio(column[PUNCTUATED_LINES], column[FULL_LINES]),
        "short_line_fraction": _ratio(column[SHORT_LINES], column[FULL_LINES]),
        "repeated_line_character_fraction": _ratio(
            column[REPEATED_LINE_CHARACTERS], characters - column[NEWLINES]
        ),
        "newline_word_ratio": _ratio(column[NEWLINES], words),
    }
    for offset, n in enumerate(TOP_GRAMS):
        signals[f"top_{n}_gram_character_fraction"] = _ratio(column[TOP_GRAM + offset], characters)
    for offset, n in enumerate(DUPLICATE_GRAMS):
        signals[f"duplicate_{n}_gram_character_fraction"] = _ratio(
            column[DUPLICATE_GRAM + offset], characters
        )
    return signals


def _c4_signals(rows: list[Facts]) -> dict[str, NDArray[Any]]:
    return {
        "num_sentences": np.array([row.num_sentences for row in rows], dtype=np.int32),
        "has_lorem_ipsum": np.array([row.has_lorem_ipsum for row in rows], dtype=np.bool_),
        "has_curly_bracket": np.array([row.has_curly_bracket for row in rows], dtype=np.bool_),
    }


_STOP_HASHES: list[NDArray[np.uint64]] = []


def _stop_hashes() -> NDArray[np.uint64]:
    if not _STOP_HASHES:
        spans = [codes_of(word) for word in STOP_WORDS]
        _STOP_HASHES.append(np.array([_hash_span(c, 0, len(c)) for c in spans], dtype=np.uint64))
    return _STOP_HASHES[0]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _hash_span(codes: Any, start: int, end: int) -> Any:
    value = np.uint64(0xCBF29CE484222325)
    for at in range(start, end):
        value = (value ^ np.uint64(codes[at])) * np.uint64(0x100000001B3)
    return mix(value) | np.uint64(1)  # zero marks a free place in the table


@njit(cache=True)  # type: ignore[untyped-decorator]
def _place(table: Any, key: Any) -> Any:
    """Return the place of `key`, or of the free slot where it belongs."""
    mask = len(table) - 1
    at = np.int64(key >> np.uint64(1)) & mask
    while table[at] != 0 and table[at] != key:
        at = (at + 1) & mask
    return at


@njit(cache=True)  # type: ignore[untyped-decorator]
def _table_size(items: int) -> int:
    size = 16
    while size < 2 * items:
        size *= 2
    return size


@njit(cache=True)  # type: ignore[untyped-decorator]
def _count_repeats(codes: Any, starts: Any, ends: Any, count: int, table: Any) -> Any:
    """Count the spans that were seen before, and their characters."""
    table[: _table_size(count)] = 0
    view = table[: _table_size(count)]
    repeats = characters = 0
    for number in range(count):
        key = _hash_span(codes, starts[number], ends[number])
        at = _place(view, key)
        if view[at] == key:
            repeats += 1
            characters += ends[number] - starts[number]
        view[at] = key
    return repeats, characters


@njit(cache=True)  # type: ignore[untyped-decorator]
def _count_words(
    codes: Any, classes: Any, starts: Any, ends: Any, stops: Any, hashes: Any, counts: Any
) -> None:
    seen = 0
    for number in range(len(starts)):
        alphabetic = plain = False
        for at in range(starts[number], ends[number]):
            kind = classes[codes[at]]
            alphabetic = alphabetic or kind & ALPHABETIC != 0
            plain = plain or kind & SYMBOL == 0
        counts[ALPHABETIC_WORDS] += alphabetic
        if plain:
            counts[NON_SYMBOL_WORDS] += 1
            counts[NON_SYMBOL_CHARACTERS] += ends[number] - starts[number]
        hashes[number] = _hash_span(codes, starts[number], ends[number])
        for stop in range(len(stops)):
            if hashes[number] == stops[stop]:
                seen |= 1 << stop
    counts[WORDS] = len(starts)
    for stop in range(len(stops)):
        counts[DISTINCT_STOP_WORDS] += (seen >> stop) & 1


@njit(cache=True)  # type: ignore[untyped-decorator]
def _count_characters(codes: Any, counts: Any) -> None:
    counts[CHARACTERS] = len(codes)
    dots = 0
    for at in range(len(codes)):
        code = codes[at]
        counts[HASHES] += code == _HASH
        counts[NEWLINES] += code == _LF
        counts[ELLIPSES] += code == _ELLIPSIS
        dots = dots + 1 if code == _DOT else 0
        if dots == 3:
            counts[ELLIPSES] += 1
            dots = 0


@njit(cache=True)  # type: ignore[untyped-decorator]
def _count_lines(codes: Any, classes: Any, counts: Any) -> None:
    """Gopher's lines end where str.splitlines cuts; bullets and ellipses ignore outer spaces."""
    start = 0
    size = len(codes)
    while start < size:
        end = start
        while end < size and not classes[codes[end]] & LINE_BREAK:
            end += 1
        first, last = start, end
        while first < last and classes[codes[first]] & SPACE:
            first += 1
        while last > first and classes[codes[last - 1]] & SPACE:
            last -= 1
        counts[LINES] += 1
        if first < last:
            counts[BULLET_LINES] += codes[first] == _BULLET or codes[first] == _DASH
            dotted = last - first >= 3 and codes[last - 1] == _DOT and codes[last - 2] == _DOT
            dotted = dotted and codes[last - 3] == _DOT
            counts[ELLIPSIS_LINES] += dotted or codes[last - 1] == _ELLIPSIS
        start = end + 1
        if end + 1 < size and codes[end] == _CR and codes[end + 1] == _LF:
            start += 1


@njit(cache=True)  # type: ignore[untyped-decorator]
def _split_blocks(codes: Any, first: int, last: int, breaks: int, starts: Any, ends: Any) -> int:
    """Cut [first, last) at runs of at least `breaks` newlines; return the number of blocks."""
    count = 0
    start = at = first
    while at < last:
        if codes[at] != _LF:
            at += 1
            continue
        run = at
        while run < last and codes[run] == _LF:
            run += 1
        if run - at >= breaks:
            starts[count] = start
            ends[count] = at
            count += 1
            start = run
        at = run
    if last > first:
        starts[count] = start
        ends[count] = last
        count += 1
    return count


@njit(cache=True)  # type: ignore[untyped-decorator]
def _count_blocks(
    codes: Any, classes: Any, table: Any, starts: Any, ends: Any, counts: Any
) -> None:
    first, last = 0, len(codes)
    while first < last and classes[codes[first]] & SPACE:
        first += 1
    while last > first and classes[codes[last - 1]] & SPACE:
        last -= 1
    number = _split_blocks(codes, first, last, 2, starts, ends)
    counts[PARAGRAPHS] = number
    repeats, characters = _count_repeats(codes, starts, ends, number, table)
    counts[REPEATED_PARAGRAPHS] = repeats
    counts[REPEATED_PARAGRAPH_CHARACTERS] = characters
    number = _split_blocks(codes, first, last, 1, starts, ends)
    counts[BLOCK_LINES] = number
    repeats, characters = _count_repeats(codes, starts, ends, number, table)
    counts[REPEATED_BLOCK_LINES] = repeats
    counts[REPEATED_BLOCK_LINE_CHARACTERS] = characters
    number = _split_blocks(codes, 0, len(codes), 1, starts, ends)
    full = 0
    for block in range(number):
        blank = True
        for at in range(starts[block], ends[block]):
            blank = blank and classes[codes[at]] & SPACE != 0
        if not blank:
            starts[full] = starts[block]
            ends[full] = ends[block]
            full += 1
            counts[PUNCTUATED_LINES] += classes[codes[ends[block] - 1]] & TERMINAL != 0
            counts[SHORT_LINES] += ends[block] - starts[block] <= SHORT_LINE_CHARACTERS
    counts[FULL_LINES] = full
    _, characters = _count_repeats(codes, starts, ends, full, table)
    counts[REPEATED_LINE_CHARACTERS] = characters


@njit(cache=True)  # type: ignore[untyped-decorator]
def _count_grams(starts: Any, ends: Any, hashes: Any, table: Any, counts: Any) -> None:
    words = len(starts)
    if words == 0:
        return
    prefix = np.zeros(words + 1, dtype=np.int64)  # characters of the words before
    for number in range(words):
        prefix[number + 1] = prefix[number] + ends[number] - starts[number]
    grams = hashes.copy()
    size = _table_size(words)
    view = table[:size]
    tally = np.zeros(size, dtype=np.int32)
    for n in range(2, DUPLICATE_GRAMS[-1] + 1):
        last = words - n + 1
        for at in range(last):
            joined = grams[at] * np.uint64(0x9E3779B97F4A7C15) + hashes[at + n - 1]
            grams[at] = mix(joined) | np.uint64(1)
        view[:] = 0
        if n <= TOP_GRAMS[-1]:
            tally[:] = 0
            most = 0
            for at in range(last):
                place = _place(view, grams[at])
                view[place] = grams[at]
                tally[place] += 1
                most = max(most, tally[place])
            for at in range(last):  # of equally frequent ones, the first
                if tally[_place(view, grams[at])] == most:
                    length = prefix[at + n] - prefix[at] + n - 1
                    counts[TOP_GRAM + n - TOP_GRAMS[0]] = most * length
                    break
        else:
            at = 0
            while at < last:
                place = _place(view, grams[at])
                if view[place] == grams[at]:
                    counts[DUPLICATE_GRAM + n - DUPLICATE_GRAMS[0]] += prefix[at + n] - prefix[at]
                    at += n
                else:
                    view[place] = grams[at]
                    at += 1


@njit(cache=True)  # type: ignore[untyped-decorator]
def _count(codes: Any, classes: Any, starts: Any, ends: Any, stops: Any, counts: Any) -> None:
    _count_characters(codes, counts)
    blocks = counts[NEWLINES] + 1
    hashes = np.empty(len(starts), dtype=np.uint64)
    table = np.zeros(_table_size(max(len(starts), blocks)), dtype=np.uint64)
    block_starts = np.empty(blocks, dtype=np.int64)
    block_ends = np.empty(blocks, dtype=np.int64)
    _count_words(codes, classes, starts, ends, stops, hashes, counts)
    _count_lines(codes, classes, counts)
    _count_blocks(codes, classes, table, block_starts, block_ends, counts)
    _count_grams(starts, ends, hashes, table, counts)
