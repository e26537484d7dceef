import io
import itertools
import threading
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from lmpipe.documents.read import find_rows, split_by_bytes


class Watched(io.BytesIO):
    """A file that knows which threads have read it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.threads: set[int] = set()

    def read(self, size: int | None = -1) -> bytes:
        self.threads.add(threading.get_ident())
        return super().read(size)


def a_table(num_rows: int = 1000) -> bytes:
    columns: dict[str, Any] = {
        "id": [f"{n:04d}" for n in range(num_rows)],
        "keeper": [None if n % 2 else f"{n // 10}" for n in range(num_rows)],
        "text": [f"text {n}" for n in range(num_rows)],
    }
    file = io.BytesIO()
    schema = pa.schema([(name, pa.string()) for name in columns])
    pq.write_table(pa.table(columns, schema), file, row_group_size=100)
    return file.getvalue()


def test_rows_are_found_in_every_row_group_with_the_columns_asked_for() -> None:
    data = a_table()
    assert list(find_rows(io.BytesIO(data), "id", ["0007", "0950", "none"])) == [
        {"id": "0007", "keeper": None, "text": "text 7"},
        {"id": "0950", "keeper": "95", "text": "text 950"},
    ]
    found = list(find_rows(io.BytesIO(data), "keeper", ["95"], ["id", "unknown"]))
    assert [row["id"] for row in found] == ["0950", "0952", "0954", "0956", "0958"]
    assert found[0].keys() == {"id", "keeper"}
    assert list(find_rows(io.BytesIO(data), "unknown", ["1"])) == []
    assert list(find_rows(io.BytesIO(a_table(0)), "id", ["1"])) == []


def test_no_other_thread_holds_the_file() -> None:
    """One that did would need the interpreter after its end, and abort the process."""
    data = a_table()
    file, scanned = Watched(data), Watched(data)
    assert len(list(find_rows(file, "id", ["0500"]))) == 1
    assert file.threads == {threading.get_ident()}
    pq.read_table(scanned, filters=[("id", "=", "0500")])
    assert scanned.threads - {threading.get_ident()}, "the watch sees threads of the scanner"


@given(st.lists(st.lists(st.text("aü", max_size=9) | st.none(), max_size=9), max_size=4))
def test_batches_are_cut_to_few_bytes_and_hold_the_same_rows(batches: list[list[str | None]]):
    schema = pa.schema([pa.field("text", pa.string())])
    given_batches = [
        pa.record_batch([pa.array(["x", *texts], pa.string()).slice(1)], schema=schema)
        for texts in batches
    ]
    pieces = [b.column("text").to_pylist() for b in split_by_bytes(given_batches, 12)]
    assert [*itertools.chain(*pieces)] == [*itertools.chain(*batches)]
    for piece in pieces:
        size = sum(len((text or "").encode()) for text in piece)
        assert piece and (size <= 12 or len(piece) == 1)
