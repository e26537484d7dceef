"""Tokens that lie in an object store, read in blocks that are kept on the local disk.

A shuffled order asks for some kilobytes here and there. Each miss fetches one block, and a block
serves all later sequences in it, of this process and of others on the host: the file is sparse,
and a byte per block says that it is there. Fetching whole shards first is the alternative: fewer
requests, but no step before the last byte has come. The cache grows to the shards' own size.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmpipe.artifacts.types import TokenShards
from lmpipe.errors import InputError
from lmpipe.tokenization.shard_file import HEADER_BYTES, parse_header

BLOCK_BYTES = 1 << 20


class RemoteTokens:
    """The tokens of one shard; slices of it are arrays."""

    def __init__(self, artifact: TokenShards, name: str) -> None:
        record = artifact.record(name)
        self._store, self._path, self._bytes = artifact.store, record.path, record.bytes
        self.url = artifact.url(name)
        local = artifact._cache_folder() / "blocks" / name
        local.parent.mkdir(parents=True, exist_ok=True)
        num_blocks = -(-record.bytes // BLOCK_BYTES)
        self._data = _shared(local, record.bytes)
        self._there = _shared(local.with_suffix(".there"), num_blocks)
        self._fetch(0, min(HEADER_BYTES, record.bytes))
        header = parse_header(self._data[:HEADER_BYTES].tobytes(), self.url, record.bytes)
        self.size = header.num_tokens
        self._tokens = self._data[HEADER_BYTES:].view(header.dtype)

    def __getitem__(self, places: slice) -> NDArray[Any]:
        start, stop, step = places.indices(self.size)
        assert step == 1
        width = self._tokens.itemsize
        self._fetch(HEADER_BYTES + start * width, HEADER_BYTES + stop * width)
        return self._tokens[start:stop]

    def _fetch(self, start: int, stop: int) -> None:
        for block in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            if self._there[block]:
                continue
            begin = block * BLOCK_BYTES
            end = min(begin + BLOCK_BYTES, self._bytes)
            data = self._store.read_range(self._path, begin, end)
            if len(data) != end - begin:
                raise InputError(
                    f"{self.url}: bytes {begin}-{end} gave {len(data)}; the object was cut short: "
                    "build the token shards again (lmpipe run … --force shards)"
                )
            self._data[begin:end] = np.frombuffer(data, np.uint8)
            self._there[block] = 1  # last: who sees it, sees the bytes


def _shared(path: Any, num_bytes: int) -> NDArray[np.uint8]:
    """Map a file of zeros that other processes share."""
    with path.open("ab") as file:  # never truncates what another process has filled
        if file.tell() < num_bytes:
            file.truncate(num_bytes)
    return np.memmap(path, np.uint8, "r+", shape=(num_bytes,))
