"""Tokens that lie in an object store, read in blocks that are kept on the local disk.

A shuffled order asks for some kilobytes here and there. Each miss fetches one block, and a block
serves all later sequences in it, of this process and of others on the host: the file is sparse, and
a checksum per block says that it is there. Fetching whole shards first is the alternative: fewer
requests, but no step before the last byte has come.

What is kept has a limit. Once it is reached nothing is taken out: what is not there is then read by
its own bytes alone, and not kept. In a shuffled epoch every block is as likely to be asked for as
any other, so throwing an old one out for a new one (LRU) hits no more often, and another process
could be reading it.
"""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from lmpipe.artifacts import local_copies
from lmpipe.artifacts.types import TokenShards
from lmpipe.errors import InputError
from lmpipe.token_data.shard_file import HEADER_BYTES, parse_header

BLOCK_BYTES = 1 << 20
MIN_FREE_BYTES = 1 << 30  # of the disk: what checkpoints and others need is not taken by a cache


class BlockCache:
    """How much the readers of this process may add to the blocks kept on the host.

    Blocks that other processes keep of the same shards count, those of other runs do not. Processes
    that look at the same moment may each add one block past the limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._kept: list[NDArray[np.uint64]] = []
        self._num_reserved = 0
        self._is_full = limit_bytes < BLOCK_BYTES
        self._lock = threading.Lock()

    def watch(self, sums: NDArray[np.uint64]) -> None:
        """Count the blocks of one more split."""
        self._kept.append(sums)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the blocks that are on the disk now."""
        return BLOCK_BYTES * sum(int(np.count_nonzero(sums)) for sums in self._kept)

    def reserve(self) -> bool:
        """Return whether one more block may be kept; `release` follows once it is, or not."""
        with self._lock:
            kept = self.kept_bytes + BLOCK_BYTES * self._num_reserved
            if self._is_full or kept + BLOCK_BYTES > self.limit_bytes:
                return False
            if not local_copies.has_room(MIN_FREE_BYTES):
                self._is_full = True
                return False
            self._num_reserved += 1
            return True

    def release(self, *, disk_is_full: bool = False) -> None:
        """End a reservation; nothing more is kept once the disk has refused a block."""
        with self._lock:
            self._num_reserved -= 1
            # what is kept stays, so that a full cache need not be counted again
            self._is_full |= disk_is_full or self.kept_bytes + BLOCK_BYTES > self.limit_bytes


def remote_shards(
    artifact: TokenShards, split: str, names: list[str], dtype: np.dtype[Any], cache: BlockCache
) -> list["RemoteTokens"]:
    """Return the shards of a split, in the order of their names."""
    sizes = [artifact.record(f"{split}/{name}.bin").bytes for name in names]
    edges = np.cumsum([0, *(-(-size // BLOCK_BYTES) for size in sizes)])
    folder = artifact.copies_folder() / "blocks"
    # one file for the split: a run has thousands of shards, and their blocks are counted often
    sums = _shared(folder / f"{split}.{BLOCK_BYTES}.sums", 8 * int(edges[-1])).view(np.uint64)
    cache.watch(sums)
    return [
        RemoteTokens(artifact, f"{split}/{name}.bin", dtype, sums[edges[i] : edges[i + 1]], cache)
        for i, name in enumerate(names)
    ]


class RemoteTokens:
    """The tokens of one shard; slices of it are arrays. Nothing is fetched before the first."""

    def __init__(
        self,
        artifact: TokenShards,
        name: str,
        dtype: np.dtype[Any],
        sums: NDArray[np.uint64],
        cache: BlockCache,
    ) -> None:
        record = artifact.record(name)
        self._store, self._path, self._bytes = artifact.store, record.path, record.bytes
        self.url = artifact.url(name)
        self.size = (record.bytes - HEADER_BYTES) // dtype.itemsize
        self._dtype, self._sums, self._cache = dtype, sums, cache
        self._file = artifact.copies_folder() / "blocks" / name
        self._data: NDArray[np.uint8] | None = None
        self._is_checked = np.zeros(sums.size, np.bool_)

    def __getitem__(self, places: slice) -> NDArray[Any]:
        if self._data is None:
            self._open()
        return self._read(*self._range(places)).view(self._dtype)

    def missing(self, places: slice) -> list[int]:
        """Return the blocks of a slice that are not on the disk; asks the store for nothing."""
        blocks = _blocks(*self._range(places))
        return [b for b in blocks if self._data is None or not self._is_there(b)]

    def keep(self, block: int) -> None:
        """Fetch a block, if there is room for it."""
        if self._data is None:
            self._open()
        if not self._is_there(block):
            self._keep(block)

    def _range(self, places: slice) -> tuple[int, int]:
        start, stop, step = places.indices(self.size)
        assert step == 1
        width = self._dtype.itemsize
        return HEADER_BYTES + start * width, HEADER_BYTES + stop * width

    def _open(self) -> None:
        """Map the shard's file of blocks and compare its header with what the index promised."""
        self._data = _shared(self._file, self._bytes)
        head = self._read(0, min(HEADER_BYTES, self._bytes)).tobytes()
        header = parse_header(head, self.url, self._bytes)
        if header.dtype != self._dtype:
            raise InputError(
                f"{self.url}: {header.dtype.itemsize} bytes a token, {self._dtype.itemsize} by "
                "meta.json; build the token shards again (lmpipe run … --force shards)"
            )

    def _read(self, start: int, stop: int) -> NDArray[np.uint8]:
        assert self._data is not None
        if all(self._is_there(block) or self._keep(block) for block in _blocks(start, stop)):
            return self._data[start:stop]
        return np.frombuffer(self._fetch(start, stop), np.uint8)

    def _is_there(self, block: int) -> bool:
        """Return whether a block is on the disk whole; each process checks it once.

        After a loss of power the disk may have a block's checksum and not its bytes.
        """
        if self._is_checked[block]:
            return True
        expected = int(self._sums[block])
        if not expected:
            return False
        assert self._data is not None
        kept = self._data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
        self._is_checked[block] = _checksum(kept) == expected
        return bool(self._is_checked[block])

    def _keep(self, block: int) -> bool:
        """Fetch a block and keep it, if there is room."""
        if not self._cache.reserve():
            return False
        disk_is_full = False
        try:
            begin = block * BLOCK_BYTES
            data = self._fetch(begin, min(begin + BLOCK_BYTES, self._bytes))
            try:
                # not through the map: a full disk would end the process there, and here raises
                with self._file.open("r+b") as file:
                    os.pwrite(file.fileno(), data, begin)
            except OSError:
                disk_is_full = True
                return False
            self._sums[block] = _checksum(data)  # last: who sees it, sees the bytes
            self._is_checked[block] = True
            return True
        finally:
            self._cache.release(disk_is_full=disk_is_full)

    def _fetch(self, start: int, stop: int) -> bytes:
        data = self._store.read_range(self._path, start, stop)
        if len(data) != stop - start:
            raise InputError(
                f"{self.url}: bytes {start}-{stop} gave {len(data)}; the object was cut short: "
                "build the token shards again (lmpipe run … --force shards)"
            )
        return data


def _blocks(start: int, stop: int) -> range:
    return range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))


def _checksum(data: Any) -> int:
    """Return 64 bits that are never 0, which stands for a block that is not there."""
    return xxhash.xxh3_64_intdigest(data) or 1


def _shared(path: Path, num_bytes: int) -> NDArray[np.uint8]:
    """Map a file of zeros that other processes share."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:  # never truncates what another process has filled
        if file.tell() < num_bytes:
            file.truncate(num_bytes)
    return np.asarray(np.memmap(path, np.uint8, "r+", shape=(num_bytes,)))
