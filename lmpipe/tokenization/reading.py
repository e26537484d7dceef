"""Sequences for training, read from memory-mapped token shards.

The shards of a split are one long stream. Sequence i is tokens [i·T, i·T + T], T+1 of them, so that
inputs and targets are both T long and every target is learnt once: concatenate and chunk. Best-fit
packing, the alternative, cuts fewer documents but needs a plan of the whole corpus and padding.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmpipe.errors import ConfigError, InputError
from lmpipe.tokenization.shard_file import map_tokens


class TokenReader:
    """Read sequences of a split, and say which document each token is from.

    Args:
        folder: a TokenShards artifact on the local disk.
        split: "train" or "validation".
        sequence_length: T; a sequence has T+1 tokens.
    """

    def __init__(self, folder: Path, split: str, sequence_length: int) -> None:
        if sequence_length < 1:
            raise ConfigError(f"sequence_length={sequence_length} must be at least 1")
        self.sequence_length = sequence_length
        self._names = sorted(path.stem for path in (folder / split).glob("*.bin"))
        if not self._names:
            raise InputError(
                f"{folder}: no shards of split {split!r}; splits are train and validation"
            )
        self._shards = [map_tokens(folder / split / f"{name}.bin") for name in self._names]
        self._edges = np.cumsum([0, *(shard.size for shard in self._shards)])
        self._document_ids, self._document_starts = self._read_index(folder, split)

    def _read_index(self, folder: Path, split: str) -> tuple[Any, NDArray[np.int64]]:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        index = pq.read_table(folder / "index.parquet", filters=[("split", "=", split)])
        shard = pc.index_in(index["shard"], value_set=_string_array(self._names)).to_numpy()
        start = self._edges[shard] + index["start"].to_numpy()
        if (np.diff(start) < 0).any():
            raise InputError(
                f"{folder / 'index.parquet'}: rows of split {split!r} are out of order; build the "
                "token shards again (lmpipe run … --force shards)"
            )
        return index["document_id"], start

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        return int(self._edges[-1])

    @property
    def num_sequences(self) -> int:
        """Sequences of the split; the last incomplete one is left out."""
        return max(0, (self.num_tokens - 1) // self.sequence_length)

    @property
    def num_documents(self) -> int:
        """Documents of the split."""
        return len(self._document_ids)

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
        first, last = np.searchsorted(self._document_starts, [start, stop - 1], side="right") - 1
        edges = np.clip(self._document_starts[first : last + 1], start, None)
        return np.repeat(np.arange(first, last + 1), np.diff(edges, append=stop))

    def document_id(self, document_number: int) -> str:
        """Return the id of a document by its number in the split."""
        return str(self._document_ids[document_number].as_py())

    def locate(self, shard: str, offset: int) -> str:
        """Return the id of the document that the token at `offset` of a shard is from."""
        if shard not in self._names:
            raise InputError(f"no shard {shard!r}; the split has {', '.join(self._names[:20])}")
        position = self._names.index(shard)
        size = self._shards[position].size
        if not 0 <= offset < size:
            raise InputError(f"shard {shard}: offset={offset} must be in [0, {size})")
        start = int(self._edges[position]) + offset
        return self.document_id(int(self.documents(start, start + 1)[0]))

    def _start(self, number: int) -> int:
        if not 0 <= number < self.num_sequences:
            raise IndexError(f"sequence {number} of {self.num_sequences}")
        return number * self.sequence_length


def _string_array(values: list[str]) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.string())
