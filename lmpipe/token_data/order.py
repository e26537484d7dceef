"""The data order: which sequence the n-th step of a run reads, as a function of (seed, n) alone.

Every epoch is a permutation of range(num_sequences) with a key of its own, computed one number at a
time. So any rank of any world size, and a run resumed at any n, finds its sequences without state.
The alternative is a shuffled array of indices per epoch: simpler, but eight bytes per sequence in
every rank, and an order that hangs on the library that shuffled it.

The permutation is a Feistel network over Z_a × Z_b with a·b just above num_sequences, and numbers
that land outside are sent through again (cycle walking).

Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002, methods 2 and 3.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmpipe.errors import ConfigError

NUM_ROUNDS = 8


@dataclass(frozen=True)
class SequenceOrder:
    """Shuffle range(num_sequences) anew in every epoch, without materialising it."""

    num_sequences: int
    seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_sequences < 2**62:
            raise ConfigError(
                f"num_sequences={self.num_sequences} must be in [1, 2^62): with no full sequence "
                "to read, give more documents or a shorter sequence_length"
            )

    def epoch(self, n: int) -> int:
        """Return the epoch of the run's n-th sequence."""
        return n // self.num_sequences

    def __call__(self, n: int) -> int:
        """Return the number of the sequence that the run reads n-th."""
        return int(self.numbers(n, 1)[0])

    def numbers(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the sequence numbers of positions first … first+count-1, across epoch edges."""
        if first < 0 or count < 0:
            raise ValueError(f"first={first} and count={count} must not be negative")
        parts = [np.empty(0, np.int64)]
        position, end = first, first + count
        while position < end:
            epoch = self.epoch(position)
            stop = min(end, (epoch + 1) * self.num_sequences)
            start = epoch * self.num_sequences
            place = np.arange(position - start, stop - start, dtype=np.uint64)
            parts.append(self._permute(place, epoch))
            position = stop
        return np.concatenate(parts)

    def _permute(self, place: NDArray[np.uint64], epoch: int) -> NDArray[np.int64]:
        keys = _round_keys(self.seed, epoch)
        left_size = math.isqrt(self.num_sequences - 1) + 1
        right_size = -(-self.num_sequences // left_size)
        image = _feistel(place, left_size, right_size, keys)
        # at most left_size - 1 numbers lie outside, so a walk is rare and short
        while (outside := image >= self.num_sequences).any():
            image[outside] = _feistel(image[outside], left_size, right_size, keys)
        return image.astype(np.int64)


def _round_keys(seed: int, epoch: int) -> list[int]:
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8 * NUM_ROUNDS).digest()
    return [int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(NUM_ROUNDS)]


def _feistel(
    value: NDArray[np.uint64], left_size: int, right_size: int, keys: list[int]
) -> NDArray[np.uint64]:
    a, b = np.uint64(left_size), np.uint64(right_size)
    left, right = value // b, value % b
    for turn, key in enumerate(keys):
        if turn % 2 == 0:
            left = (left + _mix(right, key) % a) % a
        else:
            right = (right + _mix(left, key) % b) % b
    return left * b + right


def _mix(value: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Scramble 64 bits (the finaliser of splitmix64; array arithmetic wraps silently)."""
    z = value ^ np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
