import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow.parquet as pq
import pytest

from lmpipe.documents.ledger import BUCKETS, assert_conserved, removal, write_ledger
from lmpipe.documents.read import count_documents, find_removed, read_documents, read_removed
from lmpipe.documents.schema import DOCUMENT_SCHEMA, REMOVED_SCHEMA, document_id
from lmpipe.documents.write import DocumentWriter
from lmpipe.errors import InputError


class MemoryFiles:
    """An output that can be read back as an artifact."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.rows: dict[str, int] = {}

    @contextmanager
    def open(self, name: str, mode: str = "rb") -> Iterator[BinaryIO]:
        if mode == "rb":
            yield io.BytesIO(self.files[name])
            return
        file = io.BytesIO()
        yield file
        self.files[name] = file.getvalue()

    def set_rows(self, name: str, rows: int) -> None:
        self.rows[name] = rows

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.files if name.startswith(prefix))


def some_removals(count: int) -> list[dict[str, object]]:
    return [removal(document_id("t", str(n)), "select", "too_short", score=n) for n in range(count)]


def test_the_ledger_is_the_same_for_any_order_of_removals_and_looks_up_by_id() -> None:
    one, two = MemoryFiles(), MemoryFiles()
    rows = some_removals(100)
    assert write_ledger(one, rows) == write_ledger(two, reversed(rows)) == 100
    assert one.files == two.files
    assert sum(one.rows.values()) == 100
    found = find_removed(one, str(rows[42]["id"]))
    assert found is not None and found["score"] == 42
    assert find_removed(one, document_id("t", "unknown")) is None


def test_an_empty_ledger_has_all_buckets_with_their_schema() -> None:
    out = MemoryFiles()
    assert write_ledger(out, []) == 0
    assert out.names() == [f"removed/{digit}.parquet" for digit in BUCKETS]
    assert pq.read_schema(io.BytesIO(out.files["removed/0.parquet"])).equals(REMOVED_SCHEMA)


def test_a_ledger_read_back_and_written_again_is_unchanged() -> None:
    one, two = MemoryFiles(), MemoryFiles()
    write_ledger(one, some_removals(50))
    write_ledger(two, read_removed(one))
    assert one.files == two.files


def test_documents_are_read_in_shard_order_with_only_the_asked_columns() -> None:
    out = MemoryFiles()
    for shard in (1, 0):
        with out.open(f"kept/{shard:05d}.parquet", "wb") as file, DocumentWriter(file) as writer:
            for number in range(3):
                writer.write({"id": f"{shard}{number}", "text": "t"})
    batches = list(read_documents(out, ["id"]))
    assert [id for batch in batches for id in batch["id"].to_pylist()] == [
        "00", "01", "02", "10", "11", "12",
    ]  # fmt: skip
    assert batches[0].schema.names == ["id"]
    assert count_documents(out) == 6
    with pytest.raises(InputError, match="no_such"):
        list(read_documents(out, ["no_such"]))
    assert next(read_documents(out)).schema.equals(DOCUMENT_SCHEMA)


def test_a_lost_document_is_noticed() -> None:
    assert_conserved("stage", 10, 7, 3)
    with pytest.raises(AssertionError, match="kept 7"):
        assert_conserved("stage", 10, 7, 2)
