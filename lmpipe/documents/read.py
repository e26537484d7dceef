"""Read documents, shard by shard and batch by batch, with only the columns that are asked for."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmpipe.errors import InputError


class Readable(Protocol):
    """What reading needs of an artifact: its names, and a file by name."""

    def names(self, prefix: str = "") -> list[str]: ...

    def open(self, name: str) -> IO[bytes]: ...


def shard_names(documents: Readable) -> list[str]:
    """Return the names of the kept shards, in input order."""
    return sorted(name for name in documents.names("kept/") if name.endswith(".parquet"))


def read_shard(
    documents: Readable, name: str, columns: Sequence[str] | None = None, batch_rows: int = 1024
) -> Iterator[pa.RecordBatch]:
    """Yield one shard's rows in order; memory is that of one row group."""
    with documents.open(name) as file:
        parquet = pq.ParquetFile(file)
        if missing := set(columns or ()) - set(parquet.schema_arrow.names):
            raise InputError(
                f"{name} has no columns {sorted(missing)}: was it written by a stage of documents?"
            )
        yield from parquet.iter_batches(
            batch_size=batch_rows, columns=list(columns) if columns is not None else None
        )


def split_by_bytes(
    batches: Iterable[pa.RecordBatch], max_text_bytes: int = 8 << 20
) -> Iterator[pa.RecordBatch]:
    """Cut batches so that each holds few bytes of text, or one row: a batch of books is 60 MB."""
    for batch in batches:
        sizes = pc.fill_null(pc.binary_length(batch.column("text")), 0)
        ends = np.cumsum(sizes.to_numpy(zero_copy_only=False).astype(np.int64))
        start = 0
        while start < batch.num_rows:
            room = (int(ends[start - 1]) if start else 0) + max_text_bytes
            end = max(start + 1, int(np.searchsorted(ends, room, side="right")))
            yield batch.slice(start, end - start)
            start = end


def read_documents(
    documents: Readable, columns: Sequence[str] | None = None, batch_rows: int = 1024
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all kept shards in input order."""
    for name in shard_names(documents):
        yield from read_shard(documents, name, columns, batch_rows)


def count_documents(documents: Readable) -> int:
    """Count the kept documents from the shards' footers."""
    return sum(count_rows(documents, name) for name in shard_names(documents))


def count_rows(documents: Readable, name: str) -> int:
    """Count one Parquet file's rows from its footer."""
    with documents.open(name) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)


def read_removed(documents: Readable, prefix: str = "removed/") -> Iterator[pa.RecordBatch]:
    """Yield the ledger's rows, bucket by bucket."""
    for name in sorted(documents.names(prefix)):
        yield from read_shard(documents, name)


def find_rows(
    file: IO[bytes], key: str, values: Collection[str], columns: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file whose key is one of a few values.

    The key column is read alone, other columns only of row groups that hold a value; columns that
    the file lacks are left out. All of it in this thread: the scanner behind `pq.read_table` drops
    its hold on a Python file in threads of its own, and where the interpreter has meanwhile ended
    (a command that answers and exits) the process aborts after its right answer, once in 20 times.
    """
    parquet = pq.ParquetFile(file, pre_buffer=False)
    present = set(parquet.schema_arrow.names)
    if key not in present:
        return
    wanted_keys = _strings(values)
    wanted = None if columns is None else [key, *(c for c in columns if c in present - {key})]
    for group in range(parquet.num_row_groups):
        keys = parquet.read_row_group(group, [key], use_threads=False)[key]
        found = pc.is_in(keys, value_set=wanted_keys)
        if pc.any(found).as_py():
            table = parquet.read_row_group(group, wanted, use_threads=False)
            yield from table.filter(found).to_pylist()


def _strings(values: Collection[str]) -> pa.Array:
    """Return what pa.array(values) does, without the 0.4 s of its import of pandas."""
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def find_removed(documents: Readable, document: str) -> dict[str, Any] | None:
    """Look one document up in the ledger: one bucket is read."""
    name = f"removed/{document[:1]}.parquet"
    if name not in documents.names("removed/"):
        return None
    with documents.open(name) as file:
        return next(find_rows(file, "id", [document]), None)
