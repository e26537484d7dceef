"""A Bloom filter: which keys were seen before, in fixed memory, with a known share of errors.

    m bits, k probes a key;  after n keys a new one looks old with probability (1 − e^(−kn/m))^k

k = log2(1 / p) probes make the fullest use of m bits; half of them are then set when the capacity
n = −m ln(1 − p^(1/k)) / k is reached, and the rate is the asked p. Before that it is lower.

What it loses: it says that a key was seen and not where. There is no keeper, nothing to compare
with, and no way to tell a repeat from an error; a key cannot be taken out; and beyond its capacity
it removes what is unique, so that is an error here.

A key is looked up and put in by one call. Asking twice, once for its paragraphs and once for the
document, or once to mark and once to remove, finds every key the second time.

Source: Bloom 1970; Kirsch and Mitzenmacher 2006 (two hashes make all probes).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmpipe.curation.text.word_hashes import compiled, mix


def num_probes(false_positive_fraction: float) -> int:
    """Return how many bits a key sets."""
    return max(1, round(math.log2(1 / false_positive_fraction)))


def capacity(num_bits: int, false_positive_fraction: float) -> int:
    """Return how many keys there may be before new ones look old more often than asked."""
    probes = num_probes(false_positive_fraction)
    return int(-num_bits * math.log(1 - false_positive_fraction ** (1 / probes)) / probes)


def needed_bits(num_keys: int, false_positive_fraction: float) -> int:
    """Return how many bits hold that many keys."""
    probes = num_probes(false_positive_fraction)
    return math.ceil(-num_keys * probes / math.log(1 - false_positive_fraction ** (1 / probes)))


class BloomFilter:
    """A filter of given memory.

    Attributes:
        num_keys: keys put in that were not there.
        expected_errors: how many of those it turned away for old, by the share of its bits that
            were set when each key came: what the formula says, on this very input.
    """

    def __init__(self, memory_bytes: int, false_positive_fraction: float) -> None:
        self._words = np.zeros(memory_bytes // 8, np.uint64)
        self.num_bits = 64 * len(self._words)
        self.num_probes = num_probes(false_positive_fraction)
        self.capacity = capacity(self.num_bits, false_positive_fraction)
        self.num_keys = 0
        self.num_set = 0
        self.expected_errors = 0.0

    def add(self, keys: NDArray[np.uint64]) -> NDArray[np.bool]:
        """Put keys in, one after another; return which of them seemed to be there."""
        seen = np.zeros(len(keys), np.bool)
        self.num_set, errors = _add(
            np.ascontiguousarray(keys), self._words, self.num_probes, self.num_set, seen
        )
        self.num_keys += int(len(keys) - seen.sum())
        self.expected_errors += errors
        return seen

    @property
    def error_rate(self) -> float:
        """How likely a new key now looks old."""
        return float((self.num_set / self.num_bits) ** self.num_probes)


@compiled
def _add(
    keys: NDArray[np.uint64],
    words: NDArray[np.uint64],
    probes: int,
    num_set: int,
    seen: NDArray[np.bool],
) -> Any:
    size = np.uint64(64 * len(words))
    errors = 0.0
    for index in range(len(keys)):
        rate = (num_set / (64.0 * len(words))) ** probes
        place, step = mix(keys[index]), mix(~keys[index]) | np.uint64(1)
        is_old = True
        for _ in range(probes):
            bit = place % size
            place += step
            mask = np.uint64(1) << (bit & np.uint64(63))
            if not words[bit >> np.uint64(6)] & mask:
                words[bit >> np.uint64(6)] |= mask
                num_set += 1
                is_old = False
        seen[index] = is_old
        if not is_old:
            # of new keys a share `rate` was turned away for each that came in
            errors += rate / (1 - rate) if rate < 1 else 0.0
    return num_set, errors
