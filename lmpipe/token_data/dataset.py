"""Sequences for training, read from memory-mapped token shards.

The shards of a split are one long stream. A sequence has T+1 tokens, so that inputs and targets are
both T long: tokens [i·T, i·T + T] of the stream for sequence i (concatenate and chunk), or whole
documents that fit together and padding behind them (best fit); see `packing.py`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lmpipe.artifacts.types import TokenShards
from lmpipe.errors import ConfigError, InputError
from lmpipe.token_data.block_cache import BlockCache, remote_shards
from lmpipe.token_data.index import SplitIndex
from lmpipe.token_data.packing import PackingName, lay_out
from lmpipe.token_data.shard_file import map_tokens, token_dtype

NO_DOCUMENT = -1  # the number of padding
REQUESTS_AT_A_TIME = 16  # to an object store, which answers each after milliseconds


class TokenReader:
    """Read sequences of a split, and say which document each token is from.

    Args:
        folder: a TokenShards artifact on the local disk.
        split: "train" or "validation".
        sequence_length: T; a sequence has T+1 tokens.
        packing: how documents are laid out in sequences.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        sequence_length: int,
        *,
        packing: PackingName = "concatenate",
    ) -> None:
        _check_length(sequence_length)
        paths = sorted((folder / split).glob("*.bin"), key=lambda path: path.stem)
        if not paths:
            raise InputError(
                f"{folder}: no shards of split {split!r}; splits are train and validation"
            )
        shards = [map_tokens(path) for path in paths]
        names, sizes = [path.stem for path in paths], [shard.size for shard in shards]
        index = SplitIndex(folder / "index.parquet", split, names, sizes)
        self._fill(shards, index, sequence_length, packing)

    @classmethod
    def of(
        cls,
        artifact: TokenShards,
        split: str,
        sequence_length: int,
        *,
        packing: PackingName = "concatenate",
        cache: BlockCache | None = None,
    ) -> Self:
        """Read an artifact where it lies: mapped from a disk, in blocks from an object store.

        Args:
            cache: what may be kept on this host of an object store's shards; all, if left out.
        """
        if artifact.store.is_local:
            return cls(artifact.local_dir(), split, sequence_length, packing=packing)
        _check_length(sequence_length)
        reader = cls.__new__(cls)
        index = SplitIndex.of(artifact, split)
        dtype = token_dtype(artifact.read_json("meta.json")["vocab_size"])
        cache = cache or BlockCache(1 << 62)
        shards = remote_shards(artifact, split, index.names, dtype, cache)
        reader._fill(shards, index, sequence_length, packing)
        reader._requests = ThreadPoolExecutor(REQUESTS_AT_A_TIME)
        return reader

    def _fill(
        self, shards: list[Any], index: SplitIndex, sequence_length: int, packing: PackingName
    ) -> None:
        self.sequence_length = sequence_length
        self.index = index
        self.layout = lay_out(index, sequence_length, packing)
        self._shards = shards
        self._edges: list[int] = index.edges.tolist()
        self._requests: ThreadPoolExecutor | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        return self.index.num_tokens

    @property
    def num_sequences(self) -> int:
        """Sequences of the split."""
        return self.layout.num_sequences

    @property
    def num_documents(self) -> int:
        """Documents of the split."""
        return len(self.index.document_ids)

    def sequence(self, number: int) -> NDArray[np.int64]:
        """Return the T+1 tokens of a sequence; padding is 0, which also is some token's id."""
        return self._padded([self.tokens(*span) for span in self._spans(number)], 0)

    def sequences(self, numbers: Sequence[int]) -> list[NDArray[np.int64]]:
        """Return several sequences; from an object store many blocks are fetched at a time."""
        if self._requests is None:
            return [self.sequence(number) for number in numbers]
        wanted = [self._missing(number) for number in numbers]
        # each block once, and then what no block may be kept of
        blocks = dict.fromkeys((shard, block) for part in wanted for shard, block in part)
        list(self._requests.map(lambda place: self._shards[place[0]].keep(place[1]), blocks))
        late = [n for n, part in zip(numbers, wanted, strict=True) if part and self._missing(n)]
        found = dict(zip(late, self._requests.map(self.sequence, late), strict=True))
        return [found[n] if n in found else self.sequence(n) for n in numbers]

    def _missing(self, number: int) -> list[tuple[int, int]]:
        """Return shard and block of what a sequence needs and is not on this host."""
        places: list[tuple[int, int]] = []
        for start, stop in self._spans(number):
            shard = bisect_right(self._edges, start) - 1
            while start < stop:
                begin, end = self._edges[shard], min(stop, self._edges[shard + 1])
                blocks = self._shards[shard].missing(slice(start - begin, end - begin))
                places += [(shard, block) for block in blocks]
                start, shard = end, shard + 1
        return places

    def document_numbers(self, number: int) -> NDArray[np.int64]:
        """Return the document number of each of the T+1 tokens; NO_DOCUMENT is padding's."""
        return self._padded([self.documents(*span) for span in self._spans(number)], NO_DOCUMENT)

    def is_target(self, number: int) -> NDArray[np.bool_]:
        """Return which of the T+1 tokens of a sequence are learnt.

        Not the first, which has nothing before it; not padding; and not where a piece begins inside
        its document, since that token is a target where the piece before it ends.
        """
        learnt = np.zeros(self.sequence_length + 1, np.bool_)
        place = 0
        for start, stop in self._spans(number):
            begins = place > 0 and self.index.is_document_start(start)
            learnt[place if begins else place + 1 : place + stop - start] = True
            place += stop - start
        return learnt

    def tokens(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return tokens [start, stop) of the split's stream, across shard edges."""
        first = bisect_right(self._edges, start) - 1
        out = np.empty(stop - start, np.int64)
        filled = 0
        while filled < out.size:
            begin = start + filled - self._edges[first]
            piece = self._shards[first][begin : begin + out.size - filled]
            out[filled : filled + piece.size] = piece
            filled += piece.size
            first += 1
        return out

    def documents(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the document number of each token in [start, stop) of the split's stream."""
        return self.index.documents(start, stop)

    def document_id(self, document_number: int) -> str:
        """Return the id of a document by its number in the split."""
        return self.index.document_id(document_number)

    def _spans(self, number: int) -> list[tuple[int, int]]:
        if not 0 <= number < self.num_sequences:
            raise IndexError(f"sequence {number} of {self.num_sequences}")
        return self.layout.spans(number)

    def _padded(self, pieces: list[NDArray[np.int64]], padding: int) -> NDArray[np.int64]:
        if len(pieces) == 1 and pieces[0].size == self.sequence_length + 1:
            return pieces[0]
        room = self.sequence_length + 1 - sum(piece.size for piece in pieces)
        return np.concatenate([*pieces, np.full(room, padding, np.int64)])


def _check_length(sequence_length: int) -> None:
    if sequence_length < 1:
        raise ConfigError(f"sequence_length={sequence_length} must be at least 1")
