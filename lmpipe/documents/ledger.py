"""The ledger: every removed document with its reason, in 16 buckets by the first digit of its id.

`lmpipe why ID` then reads one bucket. Each bucket is sorted by id, so its bytes do not depend on
which worker removed what.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lmpipe.documents.schema import REMOVED_SCHEMA
from lmpipe.documents.write import DocumentWriter, rows_to_table

BUCKETS = "0123456789abcdef"


class Writable(Protocol):
    """What writing needs of an output: a binary file by name, and its number of rows."""

    def open(
        self, name: str, mode: str = "wb", *, digest: bool = True
    ) -> AbstractContextManager[Any, Any]: ...

    def set_rows(self, name: str, rows: int) -> None: ...


def removal(
    id: str,
    stage: str,
    reason: str,
    *,
    reasons: Iterable[str] | None = None,
    score: float | None = None,
    threshold: float | None = None,
    keeper: str | None = None,
    similarity: float | None = None,
    url: str | None = None,
) -> dict[str, Any]:
    """Make one row of the ledger."""
    return {
        "id": id,
        "stage": stage,
        "reason": reason,
        "reasons": list(reasons) if reasons is not None else [reason],
        "score": score,
        "threshold": threshold,
        "keeper": keeper,
        "similarity": similarity,
        "url": url,
    }


def write_ledger(
    out: Writable, removed: Iterable[Mapping[str, Any]] | Iterable[pa.Table | pa.RecordBatch]
) -> int:
    """Write the ledger's 16 buckets, empty ones too, and return how many rows it holds.

    Args:
        removed: rows (dicts of REMOVED_SCHEMA's columns) or tables of them, in any order.
    """
    tables: list[pa.Table] = []
    rows: list[Mapping[str, Any]] = []
    for item in removed:
        if isinstance(item, pa.RecordBatch):
            tables.append(
                pa.Table.from_batches([item]).select(REMOVED_SCHEMA.names).cast(REMOVED_SCHEMA)
            )
        elif isinstance(item, pa.Table):
            tables.append(item.select(REMOVED_SCHEMA.names).cast(REMOVED_SCHEMA))
        else:
            rows.append(item)
    table = pa.concat_tables([rows_to_table(rows, REMOVED_SCHEMA), *tables])
    digits = pc.utf8_slice_codeunits(table.column("id"), 0, 1)
    for digit in BUCKETS:
        bucket = table.filter(pc.equal(digits, digit)).sort_by(
            [("id", "ascending"), ("reason", "ascending")]
        )
        name = f"removed/{digit}.parquet"
        with out.open(name, "wb") as file, DocumentWriter(file, REMOVED_SCHEMA) as writer:
            writer.write_table(bucket)
        out.set_rows(name, bucket.num_rows)
    return int(table.num_rows)


def assert_conserved(stage: str, num_input: int, num_kept: int, num_removed: int) -> None:
    """Hold that no document came from nowhere or went without a reason."""
    assert num_kept + num_removed == num_input, (
        f"{stage}: kept {num_kept} + removed {num_removed} != input {num_input}"
    )


def write_part(shard: Writable, key: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write what one shard removed, for `gather_parts` to sort into buckets."""
    with (
        shard.open(f"parts/{key}.parquet", "wb") as file,
        DocumentWriter(file, REMOVED_SCHEMA) as writer,
    ):
        for row in rows:
            writer.write(row)
    return writer.num_rows


def gather_parts(out: Any, keys: Iterable[str]) -> int:
    """Sort the parts of all shards into the ledger's buckets, and drop them from the artifact.

    Args:
        out: the stage's Output, after `run_shards`.
        keys: the shards' keys, in input order.
    """
    tables = []
    for key in keys:
        with out.store.open(out.take(f"parts/{key}.parquet")) as file:
            tables.append(pq.read_table(file))
    return write_ledger(out, tables)
