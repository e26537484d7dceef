import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.documents.schema import DOCUMENT_SCHEMA, SIGNAL_COLUMNS, document_id
from lmpipe.documents.write import DocumentWriter
from lmpipe.errors import InputError


def row(number: int, **values: Any) -> dict[str, Any]:
    return {
        "id": document_id("test", str(number)),
        "text": f"text {number} " * (number % 7),
    } | values


def written(rows: list[dict[str, Any]], cuts: list[int], row_group_bytes: int = 4096) -> bytes:
    """Write rows in batches that end at `cuts`, as rows and as tables by turns."""
    file = io.BytesIO()
    with DocumentWriter(file, row_group_bytes=row_group_bytes) as writer:
        start = 0
        for turn, end in enumerate([*sorted(cuts), len(rows)]):
            if turn % 2:
                writer.write_table(pa.Table.from_pylist(rows[start:end], schema=DOCUMENT_SCHEMA))
            else:
                for one in rows[start:end]:
                    writer.write(one)
            start = end
    return file.getvalue()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.lists(st.integers(0, 60), max_size=4))
def test_bytes_depend_on_the_rows_and_not_on_the_batches_they_came_in(
    count: int, cuts: list[int]
) -> None:
    rows = [row(number) for number in range(count)]
    data = written(rows, [min(cut, count) for cut in cuts])
    assert data == written(rows, [])
    table = pq.read_table(io.BytesIO(data))
    assert table.column("id").to_pylist() == [one["id"] for one in rows]
    assert table.column("text").to_pylist() == [one["text"] for one in rows]


def test_an_empty_shard_keeps_the_whole_schema() -> None:
    assert pq.read_schema(io.BytesIO(written([], []))).equals(DOCUMENT_SCHEMA)


def test_a_column_null_in_the_first_rows_keeps_values_that_appear_later() -> None:
    rows = [row(number) for number in range(20)] + [row(20, charset="utf-8", num_words=3)]
    table = pq.read_table(io.BytesIO(written(rows, [5])))
    assert table.column("charset").to_pylist() == [None] * 20 + ["utf-8"]
    assert table.column("num_words").to_pylist() == [None] * 20 + [3]


def test_a_table_whose_column_is_null_or_absent_takes_no_type_from_a_later_one() -> None:
    file = io.BytesIO()
    with DocumentWriter(file) as writer:
        writer.write_table(pa.table({"id": ["a"], "text": ["t"], "charset": pa.nulls(1)}))
        writer.write_table(pa.table({"text": ["t"], "id": ["b"]}))
        writer.write_table(pa.table({"charset": ["utf-8"], "id": ["c"], "text": ["t"]}))
        writer.write_table(DOCUMENT_SCHEMA.empty_table())
        writer.write_table(pa.table({"id": pa.nulls(0), "text": pa.nulls(0)}))
    table = pq.read_table(io.BytesIO(file.getvalue()))
    assert table.schema.equals(DOCUMENT_SCHEMA)
    assert table.column("charset").to_pylist() == [None, None, "utf-8"]
    assert table.column("id").to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize("rows", [4096, 4097])
def test_one_row_more_than_full_buffers_is_written_on_close(rows: int) -> None:
    data = written([row(number) for number in range(rows)], [], row_group_bytes=1 << 20)
    table = pq.read_table(io.BytesIO(data))
    assert table.column("id").to_pylist()[-1] == row(rows - 1)["id"]
    assert table.num_rows == rows


def test_row_groups_stay_within_their_bound_and_one_row_too_many_is_not_lost() -> None:
    rows = [row(number, text="x" * 1000) for number in range(9)]
    file = pq.ParquetFile(io.BytesIO(written(rows, [], row_group_bytes=3 * 1512)))
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    assert sizes == [3, 3, 3]
    more = pq.ParquetFile(io.BytesIO(written([*rows, row(9)], [], row_group_bytes=3 * 1512)))
    assert more.metadata.num_rows == 10
    assert more.num_row_groups == 4


def test_unknown_columns_are_refused_and_not_dropped() -> None:
    writer = DocumentWriter(io.BytesIO())
    with pytest.raises(InputError, match="extra"):
        writer.write(row(1, extra=1))
    with pytest.raises(InputError, match="extra"):
        writer.write_table(pa.table({"id": ["a"], "text": ["b"], "extra": [1]}))
    writer.close()


def test_ids_have_128_bits_and_tell_source_and_key_apart() -> None:
    assert len(document_id("a", "b")) == 32
    assert document_id("ab", "c") != document_id("a", "bc")
    assert document_id("a", "b") == document_id("a", "b")


def test_signals_are_columns_of_the_documents() -> None:
    assert set(SIGNAL_COLUMNS) <= set(DOCUMENT_SCHEMA.names)
