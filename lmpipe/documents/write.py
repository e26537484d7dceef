"""Write documents: fixed schema, zstd, bounded row groups, the same bytes for the same rows.

The file depends on the sequence of rows alone, not on the batches they came in: rows are buffered
and cut into row groups at fixed sizes. Without that, two runs with other batch sizes would hold
equal rows in unequal files, and everything below would be rebuilt.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmpipe.documents.schema import DOCUMENT_SCHEMA
from lmpipe.errors import InputError

ROW_GROUP_BYTES = 32 << 20  # half the bound of 64 MiB: the columns beside the text need room too
ROW_OVERHEAD_BYTES = 512  # a row's columns beside its text, about
_DICTIONARY_COLUMNS = (
    "host", "warc_path", "content_type", "charset", "language", "extractor", "stage", "reason"
)  # fmt: skip


class BinaryFile(Protocol):
    """A file that takes bytes."""

    def write(self, data: Any, /) -> Any: ...


class DocumentWriter:
    """Write rows or tables of documents into one Parquet file. Use as a context manager.

    Args:
        file: binary file, left open for its owner to close.
        schema: the columns; a missing one is written as nulls, an unknown one is refused.
        row_group_bytes: about how many bytes of rows go into one row group.
    """

    def __init__(
        self,
        file: BinaryFile,
        schema: pa.Schema = DOCUMENT_SCHEMA,
        row_group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        self.schema = schema
        self.num_rows = 0
        self._row_group_bytes = row_group_bytes
        self._rows: list[Mapping[str, Any]] = []
        self._rows_bytes = 0
        self._tables: list[pa.Table] = []
        self._tables_bytes = 0
        self._writer = pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=[name for name in _DICTIONARY_COLUMNS if name in schema.names],
            write_statistics=["id"],
        )

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row, given by column name."""
        if unknown := row.keys() - set(self.schema.names):
            raise InputError(f"unknown columns {sorted(unknown)}: add them to the schema")
        self._rows.append(row)
        self._rows_bytes += len(row.get("text") or "") + ROW_OVERHEAD_BYTES
        if len(self._rows) >= 4096 or self._rows_bytes >= self._row_group_bytes:
            self._take_rows()

    def write_table(self, table: pa.Table | pa.RecordBatch) -> None:
        """Append a table; its columns may come in any order, absent ones become nulls."""
        self._take_rows()
        if unknown := set(table.schema.names) - set(self.schema.names):
            raise InputError(f"unknown columns {sorted(unknown)}: add them to the schema")
        columns = [
            table.column(field.name).cast(field.type)
            if field.name in table.schema.names
            else pa.nulls(table.num_rows, field.type)
            for field in self.schema
        ]
        self._append(pa.Table.from_arrays(columns, schema=self.schema))

    def close(self) -> None:
        """Write the last row group and Parquet's footer; the file stays open."""
        self._take_rows()
        if self._tables:
            self._write_row_group(pa.concat_tables(self._tables))
        self._tables = []
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _take_rows(self) -> None:
        if self._rows:
            rows, self._rows, self._rows_bytes = self._rows, [], 0
            self._append(pa.Table.from_pylist(rows, schema=self.schema))

    def _append(self, table: pa.Table) -> None:
        """Cut row groups where the running size passes the bound: a function of the rows alone."""
        self.num_rows += table.num_rows
        ends = np.cumsum(_row_bytes(table))
        start = 0
        while start < table.num_rows:
            room = self._row_group_bytes - self._tables_bytes
            before = int(ends[start - 1]) if start else 0
            end = int(np.searchsorted(ends, before + room)) + 1
            if end > table.num_rows:
                self._tables.append(table.slice(start))
                self._tables_bytes += int(ends[-1]) - before
                return
            self._write_row_group(
                pa.concat_tables([*self._tables, table.slice(start, end - start)])
            )
            self._tables, self._tables_bytes = [], 0
            start = end

    def _write_row_group(self, table: pa.Table) -> None:
        self._writer.write_table(table.combine_chunks(), row_group_size=max(1, table.num_rows))


def _row_bytes(table: pa.Table) -> NDArray[np.int64]:
    if "text" not in table.schema.names:
        return np.full(table.num_rows, ROW_OVERHEAD_BYTES, dtype=np.int64)
    lengths = pc.fill_null(pc.binary_length(table.column("text")), 0)
    return np.asarray(lengths.to_numpy(), dtype=np.int64) + ROW_OVERHEAD_BYTES


def rows_to_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Make a table of rows, refusing columns that the schema lacks (pyarrow would drop them)."""
    for row in rows:
        if unknown := row.keys() - set(schema.names):
            raise InputError(f"unknown columns {sorted(unknown)}: add them to the schema")
    return pa.Table.from_pylist(list(rows), schema=schema)
