"""Clusters of documents that share a key, in bounded memory.

Documents that meet in a band have equal keys there. To find them, (key, number) pairs are dealt by
the key's leading bits into parts small enough for the allowed memory, spilled to scratch if more
than one is needed; each part is joined by a hash table, and the pairs found feed one union-find.
Memory is 4 bytes a document for the union-find plus the allowed bytes, whatever the number of
bands; disk is 12 bytes a document, one band at a time; time is linear.

Sorting all keys of a band, as is common, takes 40 bytes a document and n log n. Keeping the
union-find in one process is the limit: beyond 2^32 documents it needs 8 bytes each and, beyond a
machine's memory, a distributed one (DECISIONS has the plan). The joins themselves may run as tasks
on other machines: band_joins.py.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmpipe.curation.text.word_hashes import compiled

PAIR = np.dtype([("key", "<u8"), ("number", "<u4")])
WIDE_PAIR = np.dtype([("key", "<u8"), ("number", "<u8")])
BYTES_PER_PAIR = 80  # of a part in work: the pair (12), its copies (20), a table of 4 slots (48)
MAX_PARTS = 4096  # files open at a time, half of the usual limit
CHUNK = 1 << 20  # pairs dealt at a time

Keys = NDArray[np.uint64]
Numbers = NDArray[Any]


class Clusters:
    """Union-find over document numbers. The smallest number of a cluster is its root."""

    def __init__(self, size: int) -> None:
        self._parents: Numbers = np.arange(size, dtype=number_type(size))

    def join(self, one: Numbers, two: Numbers) -> None:
        """Join pairs of documents."""
        kind = self._parents.dtype
        _join(one.astype(kind), two.astype(kind), self._parents)

    def join_equal(self, keys: Keys, members: Numbers) -> None:
        """Join members that share a key, in memory."""
        self.join(*equal_pairs(keys, members))

    def roots(self) -> Numbers:
        """Return each document's root."""
        _flatten(self._parents)
        return self._parents

    def members(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the documents that have company, and their roots."""
        roots = self.roots()
        shared = np.zeros(len(roots), np.bool)
        _mark_shared(roots, shared)
        members = np.flatnonzero(shared)
        return members, roots[members].astype(np.int64)


def number_type(size: int) -> np.dtype[Any]:
    """Return the type for numbers below `size`; the largest value of the type stays free."""
    return np.dtype(np.uint32 if size < 2**32 - 1 else np.uint64)


def join_keys(
    clusters: Clusters,
    batches: Iterable[tuple[Keys, Numbers]],
    expected: int,
    scratch: Path,
    memory_bytes: int,
    threads: int = 1,
) -> int:
    """Join all documents that share a key, and return how many bytes were spilled.

    Args:
        batches: keys and document numbers; each document at most once.
        expected: how many there will be, at most.
        memory_bytes: what the parts in work may take, all threads together.
    """
    num_parts = 1
    while num_parts < MAX_PARTS and expected * BYTES_PER_PAIR * threads > memory_bytes * num_parts:
        num_parts *= 2
    if num_parts == 1:
        pairs = list(batches)
        if pairs:
            clusters.join_equal(
                np.concatenate([keys for keys, _ in pairs]),
                np.concatenate([numbers for _, numbers in pairs]),
            )
        return 0
    kind = PAIR if number_type(expected) == np.uint32 else WIDE_PAIR
    paths = [scratch / f"part-{part:04d}" for part in range(num_parts)]
    spilled = _deal(batches, paths, kind)
    with ThreadPoolExecutor(threads) as pool:
        for one, two in pool.map(lambda path: _read_pairs(path, kind), paths):
            clusters.join(one, two)
    for path in paths:
        path.unlink()
    return spilled


def equal_pairs(keys: Keys, numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return for each number whose key came before that earlier number and itself."""
    size = 16
    while size < 2 * len(keys):
        size *= 2
    kind = number_type(int(numbers.max()) + 1) if len(numbers) else np.dtype(np.uint32)
    numbers = np.ascontiguousarray(numbers, kind)
    table_keys = np.empty(size, np.uint64)
    table = np.full(size, np.iinfo(kind).max, kind)
    one, two = np.empty_like(numbers), np.empty_like(numbers)
    count = _equal_pairs(np.ascontiguousarray(keys), numbers, table_keys, table, one, two)
    return one[:count].copy(), two[:count].copy()


def _deal(batches: Iterable[tuple[Keys, Numbers]], paths: list[Path], kind: np.dtype[Any]) -> int:
    """Write pairs to the part that the key's leading bits name."""
    drop = np.uint64(64 - (len(paths) - 1).bit_length())
    files = [path.open("wb", buffering=0) for path in paths]
    total = 0
    try:
        for keys, numbers in _gathered(batches):
            parts = (keys >> drop).astype(np.int64)
            starts = np.zeros(len(paths) + 1, np.int64)
            starts[1:] = np.cumsum(np.bincount(parts, minlength=len(paths)))
            rows = np.empty(len(keys), kind)
            places = np.empty(len(keys), np.int64)
            _places(parts, starts.copy(), places)
            rows["key"][places], rows["number"][places] = keys, numbers
            for part in np.flatnonzero(np.diff(starts)).tolist():
                files[part].write(rows[starts[part] : starts[part + 1]].tobytes())
            total += rows.nbytes
    finally:
        for file in files:
            file.close()
    return total


def _gathered(batches: Iterable[tuple[Keys, Numbers]]) -> Iterator[tuple[Keys, Numbers]]:
    """Yield the pairs in chunks of about CHUNK, however they come."""
    waiting: list[tuple[Keys, Numbers]] = []
    size = 0
    for keys, numbers in batches:
        for start in range(0, len(keys), CHUNK):
            waiting.append((keys[start : start + CHUNK], numbers[start : start + CHUNK]))
            size += len(waiting[-1][0])
            if size >= CHUNK:
                yield _joined(waiting)
                waiting, size = [], 0
    if size:
        yield _joined(waiting)


def _joined(parts: list[tuple[Keys, Numbers]]) -> tuple[Keys, Numbers]:
    return np.concatenate([k for k, _ in parts]), np.concatenate([n for _, n in parts])


def _read_pairs(path: Path, kind: np.dtype[Any]) -> tuple[Numbers, Numbers]:
    rows = np.fromfile(path, kind)
    return equal_pairs(rows["key"].copy(), rows["number"].copy())


@compiled
def _places(
    parts: NDArray[np.int64], next_place: NDArray[np.int64], places: NDArray[np.int64]
) -> None:
    for index in range(len(parts)):
        places[index] = next_place[parts[index]]
        next_place[parts[index]] += 1


@compiled
def _equal_pairs(
    keys: Keys, numbers: Numbers, table_keys: Keys, table: Numbers, one: Numbers, two: Numbers
) -> int:
    free = np.iinfo(table.dtype).max  # no document has this number
    mask = np.uint64(len(table) - 1)
    count = 0
    for index in range(len(keys)):
        key = keys[index]
        slot = (key ^ (key >> np.uint64(32))) & mask
        while table[slot] != free and table_keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if table[slot] == free:
            table_keys[slot] = key
            table[slot] = numbers[index]
        else:
            one[count], two[count] = table[slot], numbers[index]
            count += 1
    return count


@compiled
def _root(parents: Numbers, node: int) -> int:
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = parents[node]
    return node


@compiled
def _join(one: Numbers, two: Numbers, parents: Numbers) -> None:
    for index in range(len(one)):
        a, b = _root(parents, one[index]), _root(parents, two[index])
        if a < b:
            parents[b] = a
        else:
            parents[a] = b


@compiled
def _flatten(parents: Numbers) -> None:
    for node in range(len(parents)):
        parents[node] = parents[parents[node]]  # a parent is smaller, so it is flat already


@compiled
def _mark_shared(roots: Numbers, shared: NDArray[np.bool]) -> None:
    for node in range(len(roots)):
        if roots[node] != node:
            shared[node] = True
            shared[roots[node]] = True
