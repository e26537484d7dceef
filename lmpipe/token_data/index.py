"""From any token of a split to its document: the index of token shards, read once.

It needs the sizes of the shards and no token, so that a step of a run in an object store can be
traced without fetching the data.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmpipe.artifacts.types import TokenShards
from lmpipe.errors import ConfigError, InputError
from lmpipe.token_data.shard_file import HEADER_BYTES, token_dtype


class SplitIndex:
    """The documents of a split as one stream: shard after shard in the order of their names.

    Args:
        source: index.parquet, a path or an open file.
        names: the split's shards, sorted.
        sizes: their tokens.
    """

    def __init__(self, source: Any, split: str, names: list[str], sizes: Sequence[int]) -> None:
        self.names = names
        self.edges = np.cumsum([0, *sizes])
        # in this thread: see documents.read.find_rows
        rows = pq.ParquetFile(source, pre_buffer=False).read(use_threads=False)
        rows = rows.filter(pc.equal(rows["split"], split))
        value_set = pa.array(names, pa.string())
        shard = pc.index_in(rows["shard"], value_set=value_set).to_numpy()
        starts = self.edges[shard] + rows["start"].to_numpy()
        if (np.diff(starts) < 0).any():
            raise InputError(
                f"{source}: rows of split {split!r} are out of order; build the token shards again "
                "(lmpipe run … --force shards)"
            )
        self.document_ids, self.document_starts = rows["document_id"], starts

    @classmethod
    def of(cls, shards: TokenShards, split: str) -> "SplitIndex":
        """Read the index of an artifact, wherever it lies; the tokens stay there."""
        width = token_dtype(shards.read_json("meta.json")["vocab_size"]).itemsize
        files = shards.names(f"{split}/")
        if not files:
            raise InputError(f"{shards!r} has no split {split!r}; splits are train and validation")
        sizes = [(shards.record(name).bytes - HEADER_BYTES) // width for name in files]
        names = [name.rpartition("/")[2].removesuffix(".bin") for name in files]
        with shards.open("index.parquet") as file:
            return cls(file, split, names, sizes)

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        return int(self.edges[-1])

    def documents(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the document number of each token in [start, stop) of the split's stream."""
        # few and plain numpy calls: at 2048 tokens they took 46 us of a sequence's 57, now 7 of 13
        first = int(self.document_starts.searchsorted(start, "right")) - 1
        last = int(self.document_starts.searchsorted(stop, "left"))
        edges = np.empty(last - first + 1, np.int64)
        edges[0], edges[-1] = start, stop
        edges[1:-1] = self.document_starts[first + 1 : last]
        return np.arange(first, last).repeat(edges[1:] - edges[:-1])

    def is_document_start(self, place: int) -> bool:
        """Return whether a document begins at a token of the stream."""
        number = int(np.searchsorted(self.document_starts, place))
        return number < self.document_starts.size and int(self.document_starts[number]) == place

    def document_id(self, document_number: int) -> str:
        """Return the id of a document by its number in the split."""
        return str(self.document_ids[document_number].as_py())

    def place(self, shard: str, offset: int) -> int:
        """Return where in the stream the token at `offset` of a shard stands."""
        if shard not in self.names:
            raise InputError(f"no shard {shard!r}; the split has {', '.join(self.names[:20])}")
        position = self.names.index(shard)
        size = int(self.edges[position + 1] - self.edges[position])
        if not 0 <= offset < size:
            raise InputError(f"shard {shard}: offset={offset} must be in [0, {size})")
        return int(self.edges[position]) + offset

    def shard_of(self, place: int) -> tuple[str, int]:
        """Return the shard and the offset in it of a token of the stream."""
        position = int(np.searchsorted(self.edges, place, side="right")) - 1
        return self.names[position], place - int(self.edges[position])


def check_holds_a_sequence(shards: TokenShards, split: str, length: int, setting: str) -> None:
    """Refuse a split without one full sequence, before anything is trained on its shards.

    Args:
        setting: the config's name of the sequence length, for the message.

    Raises:
        ConfigError: the split has fewer than length + 1 tokens.
    """
    found = int(shards.read_json("meta.json")["tokens"][split])
    if found <= length:
        more = "more documents or a larger shards.validation_fraction"
        raise ConfigError(
            f"the {split} split of {shards!r} has {found} tokens, which is no full sequence: "
            f"{setting}={length} needs {length + 1}; give "
            f"{more if split == 'validation' else 'more documents'}"
            + (f", or set {setting} to {found - 1} or less" if found > 2 else "")
        )
