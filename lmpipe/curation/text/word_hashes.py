"""Texts as sequences of word hashes: what deduplication and decontamination compare.

A word is a run of letters and digits, folded: lower case, compatibility forms and accents taken
off. In scripts that are written without spaces (Han, kana, Thai, Lao, Khmer, Myanmar, Tibetan) each
character is a word, or one sentence would be one word and n-grams would never meet. Punctuation and
blanks only separate.

What carries meaning stays: vowel signs of Indic and South-East Asian scripts (कुल is not केल; the
points of Hebrew and Arabic, which most texts leave out, go as accents do), superscripts (x² is not
x2), and operators, signs and currencies (`a + b`, -5, C++, C#, 5 %, $5), each run of which is a
word. A hyphen or a slash between two letters only separates, and so do dashes, and `!` but for `!=`
and `!x`.

One compiled pass over Arrow's UTF-8 buffer does decoding, folding and hashing through a table of
code points: about 100 MB/s on one core, where a regular expression over `str` makes 20. The price:
the table follows the interpreter's Unicode version, so letters newer than it count as blanks.

A word's hash is 64 bits (multiply and rotate over its folded code points); an n-gram's is a
polynomial in its words' hashes, modulo 2^64, finished by splitmix64, so that n-grams of any length
roll along. A text's digest is 128 bits over all its folded words, for exact duplicates.
"""

import functools
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
import pyarrow as pa
import regex
from numpy.typing import NDArray

from lmpipe.runtime import Runtime

P = ParamSpec("P")
R = TypeVar("R")

DOCUMENTS_PER_WORKER = 10_000
SKIPPED = np.uint32(1)  # accents, soft hyphens, joiners: as if they were not there
CODE = np.uint32((1 << 21) - 1)  # the folded letter within an entry of the table; flags lie above
LIGATURE = np.uint32(1 << 27)  # up to three ASCII letters, 7 bits each, in place of the letter
NEGATES = np.uint32(1 << 28)  # a sign that is punctuation unless `=` or a letter follows
JOINS = np.uint32(1 << 29)  # a sign that is punctuation between two letters
SIGN = np.uint32(1 << 30)  # an operator: a run of these is a word
ALONE = np.uint32(1 << 31)  # a character that is a word by itself
_NO_SPACES = (  # scripts without spaces between words
    (0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3040, 0x30FF),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF),
)  # fmt: skip
_ASCII_SIGNS = "#%&*/@^!-"  # with + < = > | ~ and $, which Unicode classes as such
_OPTIONAL_MARKS = regex.compile(  # of scripts that are read without them
    r"[\p{Inherited}\p{Common}\p{Latin}\p{Greek}\p{Cyrillic}\p{Hebrew}\p{Arabic}\p{Syriac}]"
)
_NUKTA = 7  # combining class of the dot that many writers leave out
_BLANK_LETTERS = "\u115f\u1160\u3164\uffa0"  # Hangul fillers: letters that show nothing
_HANGUL = range(0xAC00, 0xD7A4)  # syllables: their decomposition into letters is not wanted

_NONE, _LETTERS, _ALONE, _SIGNS = range(4)  # kinds of words
_K1 = np.uint64(0x9E3779B185EBCA87)
_K2 = np.uint64(0xC2B2AE3D27D4EB4F)
_K3 = np.uint64(0x165667B19E3779F9)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_BASE = np.uint64(0xD6E8FEB86659FD93)  # odd, so that no word's place is lost modulo 2^64


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile for the machine; integers only, so that all machines agree.

    Compiled code is kept on disk, and numba does not see that a callee in another file has changed.
    So a kernel calls kernels of its own file only, and `mix`, a published function that never does.
    """
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True)(function))


@dataclass(frozen=True)
class Words:
    """The words of a batch of texts, one after another.

    Attributes:
        hashes: a hash for each word.
        starts, ends: the word's bytes within its own text.
        offsets: text i holds words `offsets[i]:offsets[i + 1]`.
        digests: [texts, 2], a 128-bit hash of each text's folded words.
    """

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    offsets: NDArray[np.int64]
    digests: NDArray[np.uint64]

    def of(self, text: int) -> slice:
        """Return where one text's words lie."""
        return slice(int(self.offsets[text]), int(self.offsets[text + 1]))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of words in each text."""
        return np.diff(self.offsets)


def hash_words(
    texts: Sequence[str] | pa.Array | pa.ChunkedArray, fold: NDArray[np.uint32] | None = None
) -> Words:
    """Split texts into folded words and hash them. Nulls count as empty texts.

    Args:
        fold: what each character counts as; by default `fold_table`.

    Cost: one pass; memory 24 bytes a word, reserved (and not touched) for each of the texts' bytes.
    """
    data, ends = utf8(texts)
    room = int(ends[-1] - ends[0]) + 1  # `a+b` is three words
    hashes = np.empty(room, np.uint64)
    starts = np.empty(room, np.int64)
    stops = np.empty(room, np.int64)
    offsets = np.zeros(len(ends), np.int64)
    digests = np.empty((len(ends) - 1, 2), np.uint64)
    fold = fold_table() if fold is None else fold
    count = _hash_words(data, ends, fold, hashes, starts, stops, offsets, digests)
    return Words(
        hashes[:count].copy(), starts[:count].copy(), stops[:count].copy(), offsets, digests
    )


def ngram_hashes(words: Words, length: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hash each run of `length` words within a text, and return the texts' bounds among them.

    A text with fewer words has none. The n-gram number j of a text begins at its word number j.
    """
    counts = np.maximum(words.counts - length + 1, 0)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    hashes = np.empty(int(offsets[-1]), np.uint64)
    _roll(words.hashes, words.offsets, length, offsets, hashes)
    return hashes, offsets


def find_ngrams(
    words: Words, lengths: NDArray[np.int64], wanted: NDArray[np.uint64], bits: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Find known n-grams of several lengths in one pass.

    Args:
        wanted: sorted distinct hashes.
        bits: a filter of them from `hash_filter`, asked before the bisection.

    Returns:
        [found, 4]: text, first word, word after the last, number of the n-gram in `wanted`.
    """
    room = 1024
    while True:
        rows = np.empty((room, 4), np.int64)
        count = _find(words.hashes, words.offsets, lengths, wanted, bits, rows)
        if count <= room:
            return rows[:count]
        room = count


def hash_filter(hashes: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return a bit array, 16 to 32 bits a hash, in which the hashes' leading bits are set."""
    log_bits = max(10, len(hashes).bit_length() + 4)
    bits = np.zeros(1 << (log_bits - 3), np.uint8)
    places = (hashes >> np.uint64(64 - log_bits)).astype(np.int64)
    np.bitwise_or.at(bits, places >> 3, (1 << (places & 7)).astype(np.uint8))
    return bits


def enough_workers(runtime: Runtime, num_documents: int) -> Runtime:
    """Return the runtime without workers that would take longer to start than they save.

    A worker process pays 2 s for its imports, in which one core compares over 10,000 documents.
    """
    workers = min(runtime.workers, -(-num_documents // DOCUMENTS_PER_WORKER))
    return runtime.model_copy(update={"workers": max(1, workers)})


@functools.cache
def fold_table() -> NDArray[np.uint32]:
    """Map each code point to its folded letter and flags; 0 separates.

    Cost: 0.3 s once a process.
    """
    table = np.zeros(sys.maxunicode + 1, np.uint32)
    for first, last in _NO_SPACES:
        for code in range(first, last + 1):
            if chr(code).isalnum() or _is_vowel_sign(chr(code)):
                table[code] = code | int(ALONE)
    table[_HANGUL.start : _HANGUL.stop] = np.arange(_HANGUL.start, _HANGUL.stop)
    for code in range(0x20000):
        if table[code] == 0 and not 0xD800 <= code < 0xF900:
            table[code] = _fold(chr(code))
    table[[ord(letter) for letter in _BLANK_LETTERS]] = SKIPPED
    table[0xE0000:0xE1000] = SKIPPED  # tags and variation selectors
    table.flags.writeable = False
    return table


def _is_vowel_sign(character: str) -> bool:
    if unicodedata.category(character) not in ("Mn", "Mc"):
        return False
    is_optional = bool(_OPTIONAL_MARKS.match(character))
    return not is_optional and unicodedata.combining(character) != _NUKTA


def _fold(character: str) -> int:
    category = unicodedata.category(character)
    if category in ("Mn", "Me", "Mc", "Cf"):
        return ord(character) if _is_vowel_sign(character) else int(SKIPPED)
    if not character.isalnum():
        return _fold_sign(character)
    plain = unicodedata.normalize("NFKD", character).lower()
    letters = "".join(c for c in plain if not unicodedata.category(c).startswith("M"))
    if len(letters) == 1 and letters.isalnum():
        return ord(character if _is_raised_digit(character) else letters)
    if letters.isascii() and letters.isalpha() and len(letters) <= 3:
        return int(LIGATURE) | sum(ord(c) << 7 * n for n, c in enumerate(letters))
    return ord(character)  # ½ is not 1


def _fold_sign(character: str) -> int:
    plain = unicodedata.normalize("NFKC", character)
    plain = plain if len(plain) == 1 else character
    if plain in "-\u2010":
        return ord("-") | int(SIGN | JOINS)
    if plain == "\u2013":  # –5 is typeset so; elsewhere it is a dash
        return ord("-") | int(SIGN | NEGATES)
    if plain == "\u2212":
        return ord("-") | int(SIGN)
    if unicodedata.category(character) not in ("Sm", "Sc") and plain not in _ASCII_SIGNS:
        return 0
    special = {"/": JOINS, "!": NEGATES}.get(plain, np.uint32(0))
    return ord(plain) | int(SIGN | special)


def _is_raised_digit(character: str) -> bool:
    return unicodedata.decomposition(character).startswith("<super>") and character.isdigit()


def utf8(texts: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the texts' bytes and their bounds, without a copy where the type allows it."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    array = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.large_string())
    if array.null_count:
        array = array.fill_null("")
    array = array.cast(pa.large_string())
    if len(array) == 0:
        array = pa.array([""], pa.large_string()).slice(1)
    _, bounds, data = array.buffers()
    ends = np.frombuffer(bounds, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data or bytes(8), np.uint8), ends  # read-only both: one compiled variant


@compiled
def mix(value: np.uint64) -> np.uint64:
    """Spread every bit of a hash over all bits (splitmix64's finish)."""
    value = (value ^ (value >> np.uint64(30))) * _MIX1
    value = (value ^ (value >> np.uint64(27))) * _MIX2
    return value ^ (value >> np.uint64(31))


@compiled
def _step(state: np.uint64, letter: np.uint64, key: np.uint64, turn: np.uint64) -> np.uint64:
    state ^= letter * key
    state = (state << turn) | (state >> (np.uint64(64) - turn))
    return state * _K2


@compiled
def _decode(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Return the code point at a byte and the byte after it; the text is valid UTF-8."""
    first = int(data[at])
    if first < 0x80:
        return first, at + 1
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    code = first & (0x7F >> size)
    for index in range(at + 1, min(at + size, end)):
        code = (code << 6) | (int(data[index]) & 0x3F)
    return code, at + size


@compiled
def _hash_words(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    fold: NDArray[np.uint32],
    hashes: NDArray[np.uint64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    offsets: NDArray[np.int64],
    digests: NDArray[np.uint64],
) -> int:
    count = 0
    for text in range(len(ends) - 1):
        first, last = ends[text], ends[text + 1]
        one, two, word = _K1, _K3, _K3
        kind, letter = _NONE, np.uint32(0)  # of the word in work: its kind, and its last letter
        at = first
        while at <= last:
            if kind == _LETTERS:  # the plain case: an ASCII letter within a word
                while at < last and data[at] < 0x80:
                    folded = fold[data[at]]
                    if folded <= SKIPPED or folded > CODE:
                        break
                    word = _step(word, np.uint64(folded), _K1, np.uint64(29))
                    at += 1
                if data[at - 1] < 0x80:
                    letter = fold[data[at - 1]]
            folded = np.uint32(0)  # the end of the text separates too
            after = at + 1
            if at < last:
                code, after = _decode(data, at, last)
                folded = fold[code] if code < len(fold) else np.uint32(0)
                if folded & (JOINS | NEGATES):
                    following = np.uint32(0)
                    if after < last:
                        following = fold[_decode(data, after, last)[0]]
                    if not _is_operator(
                        folded, letter if kind == _LETTERS else np.uint32(0), following
                    ):
                        folded = np.uint32(0)
            if folded == SKIPPED:
                at = after
                continue
            new = _NONE if folded == 0 else _LETTERS
            new = _ALONE if folded & ALONE else _SIGNS if folded & SIGN else new
            if kind != _NONE and (new != kind or kind == _ALONE):
                word = mix(word)
                hashes[count] = word
                stops[count] = at - first
                one = _step(one, word, _K1, np.uint64(31))
                two = _step(two, word, _K3, np.uint64(23))
                count += 1
            if new != _NONE:
                if new != kind or kind == _ALONE:
                    word = _K3
                    starts[count] = at - first
                letter = folded & CODE
                if folded & LIGATURE:
                    while letter > 0x7F:
                        word = _step(word, np.uint64(letter & 0x7F), _K1, np.uint64(29))
                        letter >>= np.uint32(7)
                word = _step(word, np.uint64(letter), _K1, np.uint64(29))
            kind = new
            at = after
        digests[text, 0], digests[text, 1] = mix(one), mix(two)
        offsets[text + 1] = count
    return count


@compiled
def _is_operator(folded: np.uint32, letter: np.uint32, following: np.uint32) -> bool:
    """Tell a sign from punctuation by the letter before it, if any, and the character after it."""
    follows = (following & CODE) > SKIPPED and not following & SIGN
    if folded & NEGATES:
        return bool((following & CODE) == 61 or (letter == 0 and follows))
    joined = letter > 57 and follows and ((following & CODE) > 57 or (following & CODE) < 48)
    return bool(not joined)


@compiled
def _roll(
    hashes: NDArray[np.uint64],
    words: NDArray[np.int64],
    length: int,
    offsets: NDArray[np.int64],
    out: NDArray[np.uint64],
) -> None:
    leaving = np.uint64(1)
    for _ in range(length):
        leaving *= _BASE
    for text in range(len(words) - 1):
        value = np.uint64(0)
        first = words[text]
        for index in range(first, words[text + 1]):
            value = value * _BASE + hashes[index]
            if index >= first + length:
                value -= leaving * hashes[index - length]
            if index >= first + length - 1:
                out[offsets[text] + index - first - length + 1] = mix(value ^ np.uint64(length))


@compiled
def _find(
    hashes: NDArray[np.uint64],
    words: NDArray[np.int64],
    lengths: NDArray[np.int64],
    wanted: NDArray[np.uint64],
    bits: NDArray[np.uint8],
    rows: NDArray[np.int64],
) -> int:
    drop = np.uint64(64)
    size = 8 * len(bits)
    while size > 1:
        size >>= 1
        drop -= np.uint64(1)
    count = 0
    for text in range(len(words) - 1):
        first, last = words[text], words[text + 1]
        for length in lengths:
            leaving = np.uint64(1)
            for _ in range(length):
                leaving *= _BASE
            value = np.uint64(0)
            for index in range(first, last):
                value = value * _BASE + hashes[index]
                if index >= first + length:
                    value -= leaving * hashes[index - length]
                if index < first + length - 1:
                    continue
                gram = mix(value ^ np.uint64(length))
                place = np.int64(gram >> drop)
                if not (bits[place >> 3] >> np.uint8(place & 7)) & 1:
                    continue
                number = np.searchsorted(wanted, gram)
                if number < len(wanted) and wanted[number] == gram:
                    if count < len(rows):
                        rows[count, 0], rows[count, 1] = text, index - length + 1
                        rows[count, 2], rows[count, 3] = index + 1, number
                    count += 1
    return count
