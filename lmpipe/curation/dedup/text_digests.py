"""Digests of whole texts: equal if the texts are, but for blanks and Unicode's normal form.

Two texts are equal if, in NFC and with each run of blanks and line ends as one blank and none at
the ends, their bytes are. Case, punctuation and every sign count: what differs in those is told
by the words (word_hashes.py) and is another reason to go. The alternative, a digest of the bytes as
they are, would miss the same page saved with other line ends.

One compiled pass over Arrow's UTF-8 buffer. Texts with characters that NFC may change are put into
it by the interpreter and hashed again.
"""

import unicodedata
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmpipe.curation.text.word_hashes import compiled, mix, utf8

_K1 = np.uint64(0x9E3779B185EBCA87)
_K2 = np.uint64(0xC2B2AE3D27D4EB4F)
_SPACE = 0x20


def text_digests(texts: Sequence[str] | pa.Array | pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return [texts, 2], a 128-bit hash of each text; nulls count as empty texts."""
    data, ends = utf8(texts)
    digests = np.empty((len(ends) - 1, 2), np.uint64)
    plain = np.empty(len(ends) - 1, np.bool)
    _digest(data, ends, digests, plain)
    others = np.flatnonzero(~plain)
    if len(others):
        composed = [_composed(data[ends[n] : ends[n + 1]].tobytes()) for n in others.tolist()]
        data, ends = utf8(composed)
        again = np.empty((len(others), 2), np.uint64)
        _digest(data, ends, again, np.empty(len(others), np.bool))
        digests[others] = again
    return digests


def _composed(data: bytes) -> str:
    text = data.decode()
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


@compiled
def _blank_size(data: NDArray[np.uint8], at: int, end: int) -> int:
    """Return how many bytes a blank takes that stands there; 0 for any other character."""
    first = data[at]
    if first == _SPACE or 9 <= first <= 13 or 28 <= first <= 31:
        return 1
    if first == 0xC2 and at + 1 < end and (data[at + 1] == 0x85 or data[at + 1] == 0xA0):
        return 2
    if at + 2 >= end:
        return 0
    second, third = data[at + 1], data[at + 2]
    if first == 0xE2 and second == 0x80:
        return 3 if third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF else 0
    if first == 0xE2 and second == 0x81 and third == 0x9F:
        return 3
    if first == 0xE3 and second == 0x80 and third == 0x80:
        return 3
    return 3 if first == 0xE1 and second == 0x9A and third == 0x80 else 0


@compiled
def _is_stable(data: NDArray[np.uint8], at: int, end: int) -> bool:
    """Say whether a character from U+0300 on is one that NFC never changes or joins to another.

    True for Cyrillic to U+047F, general punctuation, currencies, kana, and Han to U+9FFF, of which
    most texts consist. The others are left to Unicode's own check.
    """
    first, second = data[at], data[min(at + 1, end - 1)]
    if first == 0xE3:
        voices = second == 0x82 and data[min(at + 2, end - 1)] in (0x99, 0x9A)
        return bool(second != 0x80 and not voices)
    if first == 0xE2:
        return bool(second <= 0x82)
    return bool(first == 0xD0 or first == 0xD1 or 0xE4 <= first <= 0xE9)


@compiled
def _digest(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    digests: NDArray[np.uint64],
    plain: NDArray[np.bool],
) -> None:
    """Hash each text and say whether its bytes alone show that it is in NFC."""
    for text in range(len(ends) - 1):
        at, end = ends[text], ends[text + 1]
        one, two, packed, size = _K1, _K2, np.uint64(0), np.uint64(0)
        is_plain, waiting = True, False
        while at < end:
            byte = data[at]
            if byte <= _SPACE or byte >= 0x80:
                blank = _blank_size(data, at, end)
                if blank:
                    waiting = bool(size > np.uint64(0))
                    at += blank
                    continue
                is_plain = is_plain and (bool(byte < 0xCC) or _is_stable(data, at, end))
            if waiting:
                waiting = False
                packed = (packed << np.uint64(8)) | np.uint64(_SPACE)
                size += np.uint64(1)
                if size & np.uint64(7) == np.uint64(0):
                    one, two = mix(one ^ packed) * _K1, mix(two + packed) * _K2
            packed = (packed << np.uint64(8)) | np.uint64(byte)
            size += np.uint64(1)
            if size & np.uint64(7) == np.uint64(0):
                one, two = mix(one ^ packed) * _K1, mix(two + packed) * _K2
            at += 1
        one, two = mix(one ^ packed), mix(two + packed)
        digests[text, 0], digests[text, 1] = mix(one ^ size), mix(two + size)
        plain[text] = is_plain
