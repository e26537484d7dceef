"""Texts as passages: paragraphs (CCNet) or runs of sentences (C4), each with a key of its words.

A text is cut into segments that together are the text: lines, or sentences, each with the blanks
that follow it, so that what remains after a cut reads on. A line keeps its indentation. A passage
is a run of `length` segments: one line, or three sentences, or the whole text. Its key is 64 bits
of its folded words (word_hashes.py): case, accents, punctuation and blanks do not count. CCNet
also takes all digits for zeros; here numbers count, or tables of other years would be one.

A sentence ends at a line's end, or at . ? ! … with closing quotes or brackets and a blank after
it, or at 。！？. The alternative, a trained splitter for each language, is a thousand times slower
and would change texts' keys with its version; abbreviations cut too often, and in all copies alike.

With 64 bits, one passage in two billion is taken for another by chance among ten billion.

Source: Wenzek et al. 2020 (CCNet), section 3.1; Raffel et al. 2020 (C4), section 2.2.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmpipe.curation.text.word_hashes import compiled, hash_words, mix, utf8

DOCUMENT, PARAGRAPH, SENTENCE = range(3)
UNITS = {"document": DOCUMENT, "paragraph": PARAGRAPH, "sentences": SENTENCE}

_TERMINAL, _CLOSER, _WIDE, _BLANK = 1, 2, 4, 8
_K1 = np.uint64(0x9E3779B185EBCA87)


@dataclass(frozen=True)
class Segments:
    """The segments of a batch of texts, one after another.

    Attributes:
        bounds: segment i holds the bytes `bounds[i]:bounds[i + 1]` of the texts put together.
        offsets: text number i holds segments `offsets[i]:offsets[i + 1]`; an empty text has none.
        counts: words of each segment.
        digests: a hash of each segment's folded words.
    """

    bounds: NDArray[np.int64]
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]
    digests: NDArray[np.uint64]


def split(texts: Any, unit: str) -> Segments:
    """Cut texts into the segments of a unit. Nulls count as empty texts.

    Cost: two compiled passes, 29 MB/s on a busy core; hashing the words is more than half of it.
    """
    data, ends = utf8(texts)
    room = int(np.count_nonzero(data[ends[0] : ends[-1]] == 10)) + len(ends)
    if unit == "sentences":
        room = int(ends[-1] - ends[0]) // 2 + len(ends) + 1  # a sentence has two bytes at least
    bounds = np.empty(room + 1, np.int64)
    offsets = np.zeros(len(ends), np.int64)
    count = _split(data, ends, UNITS[unit], _classes(), bounds, offsets)
    bounds = bounds[: count + 1].copy()
    places = pa.py_buffer(bounds.tobytes())
    segments = pa.LargeStringArray.from_buffers(count, places, pa.py_buffer(data))
    words = hash_words(segments)
    return Segments(bounds - ends[0], offsets, words.counts, words.digests[:, 0].copy())


def passage_keys(
    segments: Segments, length: int, min_words: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the key, text and first segment of each passage that has enough words."""
    room = len(segments.counts)
    keys = np.empty(room, np.uint64)
    texts, firsts = np.empty(room, np.int64), np.empty(room, np.int64)
    count = _keys(
        segments.digests, segments.counts, segments.offsets, length, min_words, keys, texts, firsts
    )
    return keys[:count], texts[:count], firsts[:count]


@functools.cache
def _classes() -> NDArray[np.uint8]:
    classes = np.zeros(0x10000, np.uint8)
    for characters, bit in (
        (".!?…。！？", _TERMINAL), ("\"'”’)]»」』）", _CLOSER), ("。！？", _WIDE),
        ("".join(chr(code) for code in range(0x10000) if chr(code).isspace()), _BLANK),
    ):  # fmt: skip
        for character in characters:
            classes[ord(character)] |= bit
    return classes


@compiled
def _split(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    unit: int,
    classes: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    offsets: NDArray[np.int64],
) -> int:
    count = 0
    bounds[0] = ends[0]
    for text in range(len(ends) - 1):
        at, last = ends[text], ends[text + 1]
        is_first = True  # nothing but blanks so far: they belong to the first segment
        state, line = 0, np.int64(-1)  # 1: behind a full stop; 2: it has ended; 3: behind 。
        while at < last and unit != 0:
            code = int(data[at])
            after = at + 1
            if code >= 0x80:
                size = 2 if code < 0xE0 else 3 if code < 0xF0 else 4
                code &= 0x7F >> size
                for index in range(at + 1, min(at + size, last)):
                    code = (code << 6) | (int(data[index]) & 0x3F)
                after = at + size
            kind = classes[code] if code < len(classes) else np.uint8(0)
            if kind & 8:
                if code == 10:
                    line = after
                if not is_first and (code == 10 or (state == 1 and unit == 2)):
                    state = 2
            else:
                if state == 3 and not kind & 3:  # 。 needs no blank behind it
                    state = 2
                if state == 2:
                    count += 1
                    bounds[count] = line if line >= 0 else at
                    state = 0
                is_first, line = False, np.int64(-1)
                if unit == 2:
                    if kind & 4:
                        state = 3
                    elif kind & 1:
                        state = max(state, 1)
                    elif not kind & 2:
                        state = 0
            at = after
        if last > ends[text]:
            count += 1
            bounds[count] = last
        offsets[text + 1] = count
    return count


@compiled
def _keys(
    digests: NDArray[np.uint64],
    counts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    length: int,
    min_words: int,
    keys: NDArray[np.uint64],
    texts: NDArray[np.int64],
    firsts: NDArray[np.int64],
) -> int:
    found = 0
    for text in range(len(offsets) - 1):
        for first in range(offsets[text], offsets[text + 1] - length + 1):
            key, words = np.uint64(length), 0
            for index in range(first, first + length):
                key = mix(key * _K1 + digests[index])
                words += counts[index]
            if words >= min_words:
                keys[found] = key
                texts[found], firsts[found] = text, first - offsets[text]
                found += 1
    return found
