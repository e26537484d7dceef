"""MinHash signatures and locality-sensitive hashing: near-duplicates without comparing all pairs.

Pr[minhash equal] is the Jaccard similarity s of two documents' sets of word n-grams. A signature
holds bands · rows minima; two documents meet when all rows of one band agree, which happens with
probability 1 − (1 − s^rows)^bands: for FineWeb's 14 × 8, .565 / .772 / .924 / .988 at
s = .70 / .75 / .80 / .85.

The hash family is multiply-shift, h(x) = (a·x + b mod 2^64) >> 32 with odd 64-bit a over a 32-bit x
that is already the finished hash of an n-gram: two instructions a value, and vectorised. The
alternative, (a·x + b) mod (2^61 − 1), is 2-universal too and needs 128-bit products, several times
the time; the measured meeting rates follow the curve with either.

Source: Broder 1997 (resemblance); Dietzfelbinger et al. 1997 (multiply-shift); Penedo et al. 2024,
FineWeb, appendix E.1 (14 × 8 over word 5-grams).
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lmpipe.curation.text.word_hashes import Words, compiled, ngram_hashes

_ONES = np.uint32(0xFFFFFFFF)
_LOW = 2**64 - 1
_BAND_KEY = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class HashFamily:
    """The coefficients of the signature's hash functions, a function of seed and count alone."""

    factors: NDArray[np.uint64]
    shifts: NDArray[np.uint64]

    @classmethod
    def from_seed(cls, seed: int, count: int) -> Self:
        """Draw coefficients by splitmix64: numpy promises no equal streams between its versions."""
        numbers = [_splitmix(seed, index) for index in range(2 * count)]
        factors = np.array([number | 1 for number in numbers[:count]], np.uint64)
        return cls(factors, np.array(numbers[count:], np.uint64))


def match_probability(similarity: float, bands: int, rows: int) -> float:
    """Return how likely two documents of a Jaccard similarity meet in at least one band."""
    return float(1 - (1 - similarity**rows) ** bands)


def signatures(words: Words, ngram: int, family: HashFamily) -> NDArray[np.uint32]:
    """Return one row of minima for each text; a text with fewer words than `ngram` gets all ones.

    Such a row means nothing: the caller tells it by the word count, never by its value, so that
    short texts do not collide with one another.
    """
    rows = np.full((len(words.offsets) - 1, len(family.factors)), _ONES, np.uint32)
    shingles, offsets = ngram_hashes(words, ngram)
    _minima(shingles, offsets, family.factors, family.shifts, rows)
    return rows


def band_keys(minima: NDArray[np.uint32], bands: int) -> NDArray[np.uint64]:
    """Return [bands, texts] keys: equal where all rows of a band are equal."""
    texts, width = minima.shape
    keys = np.empty((bands, texts), np.uint64)
    _band_keys(minima, width // max(1, bands), keys)
    return keys


def choose_keepers(
    members: NDArray[np.uint32], bounds: NDArray[np.int64], similarity: float, max_keepers: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Decide who stays in each cluster.

    The first member stays. Each further one goes if it agrees with one that stays in at least
    `similarity` of its minima, else it stays too: a chain a ~ b ~ c does not remove c for a that it
    hardly resembles. At most `max_keepers` are compared with, which bounds the time of a template's
    huge cluster; beyond that more stay than must.

    Args:
        members: signatures, cluster after cluster, each in order of preference.
        bounds: cluster number i holds members `bounds[i]:bounds[i + 1]`.

    Returns:
        For each member the number of its keeper (its own if it stays), and their similarity.
    """
    keepers = np.arange(len(members), dtype=np.int64)
    scores = np.ones(len(members), np.float64)
    needed = int(np.ceil(similarity * members.shape[1] - 1e-9))
    _choose(members, bounds, needed, max_keepers, keepers, scores)
    return keepers, scores


def _splitmix(seed: int, index: int) -> int:
    value = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _LOW
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _LOW
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _LOW
    return value ^ (value >> 31)


@compiled
def _minima(
    shingles: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    factors: NDArray[np.uint64],
    shifts: NDArray[np.uint64],
    rows: NDArray[np.uint32],
) -> None:
    # Four n-grams a pass over the row: 21,000 → 41,500 documents of 700 words a second and core
    # (112 minima, AVX-512), because each minimum is loaded and stored a quarter as often.
    half = np.uint64(32)
    for text in range(len(offsets) - 1):
        row = rows[text]
        index, last = offsets[text], offsets[text + 1]
        while index + 4 <= last:
            one, two = shingles[index] >> half, shingles[index + 1] >> half
            three, four = shingles[index + 2] >> half, shingles[index + 3] >> half
            for k in range(len(row)):
                factor, shift = factors[k], shifts[k]
                value = min(
                    min(factor * one + shift, factor * two + shift),
                    min(factor * three + shift, factor * four + shift),
                )
                row[k] = min(row[k], np.uint32(value >> half))
            index += 4
        while index < last:
            shingle = shingles[index] >> half
            for k in range(len(row)):
                row[k] = min(row[k], np.uint32((factors[k] * shingle + shifts[k]) >> half))
            index += 1


@compiled
def _band_keys(minima: NDArray[np.uint32], rows: int, keys: NDArray[np.uint64]) -> None:
    for band in range(keys.shape[0]):
        for text in range(keys.shape[1]):
            value = np.uint64(band + 1) * _BAND_KEY
            for row in range(band * rows, (band + 1) * rows):
                value = (value ^ np.uint64(minima[text, row])) * _BAND_KEY
                value ^= value >> np.uint64(32)
            keys[band, text] = value


@compiled
def _choose(
    members: NDArray[np.uint32],
    bounds: NDArray[np.int64],
    needed: int,
    max_keepers: int,
    keepers: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    staying = np.empty(max_keepers, np.int64)
    for cluster in range(len(bounds) - 1):
        num_staying = 0
        for member in range(bounds[cluster], bounds[cluster + 1]):
            best, most = -1, needed - 1
            for index in range(num_staying):
                equal = 0
                for k in range(members.shape[1]):
                    equal += members[member, k] == members[staying[index], k]
                if equal > most:
                    best, most = staying[index], equal
            if best >= 0:
                keepers[member] = best
                scores[member] = most / members.shape[1]
            elif num_staying < max_keepers:
                staying[num_staying] = member
                num_staying += 1
