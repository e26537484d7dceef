"""Sequences for training, read from memory-mapped token shards.

The shards of a split are one long stream. Sequence i is tokens [i·T, i·T + T], T+1 of them, so that
inputs and targets are both T long and every target is learnt once: concatenate and chunk. The
alternative, best-fit packing, cuts fewer documents and pays with padding; it is not written.
"""

from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lmpipe.artifacts.types import TokenShards
from lmpipe.errors import ConfigError, InputError
from lmpipe.tokenization.blocks import RemoteTokens
from lmpipe.tokenization.index import SplitIndex
from lmpipe.tokenization.shard_file import map_tokens


class TokenReader:
    """Read sequences of a split, and say which document each token is from.

    Args:
        folder: a TokenShards artifact on the local disk.
        split: "train" or "validation".
        sequence_length: T; a sequence has T+1 tokens.
    """

    def __init__(self, folder: Path, split: str, sequence_length: int) -> None:
        _check_length(sequence_length)
        paths = sorted((folder / split).glob("*.bin"), key=lambda path: path.stem)
        if not paths:
            raise InputError(
                f"{folder}: no shards of split {split!r}; splits are train and validation"
            )
        shards = [map_tokens(path) for path in paths]
        names, sizes = [path.stem for path in paths], [shard.size for shard in shards]
        index = SplitIndex(folder / "index.parquet", split, names, sizes)
        self._fill(shards, index, sequence_length)

    @classmethod
    def of(cls, artifact: TokenShards, split: str, sequence_length: int) -> Self:
        """Read an artifact where it lies: mapped from a disk, in blocks from an object store."""
        if artifact.store.is_local:
            return cls(artifact.local_dir(), split, sequence_length)
        _check_length(sequence_length)
        reader = cls.__new__(cls)
        index = SplitIndex.of(artifact, split)
        shards = [RemoteTokens(artifact, f"{split}/{name}.bin") for name in index.names]
        reader._fill(shards, index, sequence_length)
        return reader

    def _fill(self, shards: list[Any], index: SplitIndex, sequence_length: int) -> None:
        self.sequence_length = sequence_length
        self.index = index
        self._shards = shards
        self._edges = index.edges

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        return self.index.num_tokens

    @property
    def num_sequences(self) -> int:
        """Sequences of the split; the last incomplete one is left out."""
        return max(0, (self.num_tokens - 1) // self.sequence_length)

    @property
    def num_documents(self) -> int:
        """Documents of the split."""
        return len(self.index.document_ids)

    def sequence(self, number: int) -> NDArray[np.int64]:
        """Return the T+1 tokens of a sequence."""
        start = self._start(number)
        return self.tokens(start, start + self.sequence_length + 1)

    def document_numbers(self, number: int) -> NDArray[np.int64]:
        """Return the document number of each of the T+1 tokens of a sequence."""
        start = self._start(number)
        return self.documents(start, start + self.sequence_length + 1)

    def tokens(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return tokens [start, stop) of the split's stream, across shard edges."""
        first = int(np.searchsorted(self._edges, start, side="right")) - 1
        out = np.empty(stop - start, np.int64)
        filled = 0
        while filled < out.size:
            begin = start + filled - int(self._edges[first])
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

    def locate(self, shard: str, offset: int) -> str:
        """Return the id of the document that the token at `offset` of a shard is from."""
        place = self.index.place(shard, offset)
        return self.document_id(int(self.documents(place, place + 1)[0]))

    def _start(self, number: int) -> int:
        if not 0 <= number < self.num_sequences:
            raise IndexError(f"sequence {number} of {self.num_sequences}")
        return number * self.sequence_length


def _check_length(sequence_length: int) -> None:
    if sequence_length < 1:
        raise ConfigError(f"sequence_length={sequence_length} must be at least 1")
