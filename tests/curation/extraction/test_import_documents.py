import gzip
import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lmpipe.artifacts.types import Documents
from lmpipe.curation.extraction.config import ImportDocumentsConfig
from lmpipe.curation.extraction.import_documents import _rows, import_documents
from lmpipe.documents.read import (
    count_documents,
    count_rows,
    read_documents,
    read_removed,
    shard_names,
)
from lmpipe.documents.schema import DOCUMENT_SCHEMA, document_id
from lmpipe.errors import InputError
from tests.curation.conftest import Workbench

LINES = [
    json.dumps({"text": "first", "url": "http://a.example/1", "date": "2024"}).encode(),
    b"{broken",
    b'["no object"]',
    b'{"text": 3}',
    b'{"other": "x"}',
    b'{"text": " "}',
    b"",
    json.dumps({"text": "last é"}).encode(),
]
BAD = {
    "invalid_json": 1,
    "no_json_object": 1,
    "text_is_no_string": 1,
    "no_text_field": 1,
    "no_text": 1,
}


@pytest.mark.parametrize("suffix", ["", "gz", "zst"])
def test_jsonl_rows_come_in_and_bad_lines_are_named(bench: Workbench, suffix: str) -> None:
    data = b"\n".join(LINES)
    packed = {"": data, "gz": gzip.compress(data), "zst": zstandard.compress(data)}[suffix]
    source = bench.files("corpus", **{"a__jsonl" + ("__" + suffix if suffix else ""): packed})
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    rows = [row for batch in read_documents(documents) for row in batch.to_pylist()]
    assert [row["text"] for row in rows] == ["first", "last é"]
    assert (rows[0]["host"], rows[0]["date"]) == ("a.example", "2024")
    assert documents.metrics["removed"] == BAD
    lost = [row for batch in read_removed(documents) for row in batch.to_pylist()]
    places = {row["reason"]: row["url"].split("#")[1] for row in lost}
    assert places["invalid_json"] == "1"
    assert places["no_text"] == "5"


def test_parquet_and_text_files_come_in(bench: Workbench) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"body": ["one", None, "two"], "key": ["k1", "k2", "k3"]}), file)
    config = ImportDocumentsConfig(text_field="body", id_field="key")
    source = bench.files("corpus", a__parquet=file.getvalue(), b__txt="a whole\nfile")
    documents = bench.run(import_documents, config, source)
    texts = [t for batch in read_documents(documents, ["text"]) for t in batch[0].to_pylist()]
    assert texts == ["one", "two", "a whole\nfile"]
    lines = bench.run(
        import_documents,
        ImportDocumentsConfig(text_documents="line"),
        bench.files("l", b__txt="a\n\nb"),
    )
    assert lines.metrics["kept"] == 2


def test_a_file_that_breaks_off_gives_the_rows_before(bench: Workbench) -> None:
    good = gzip.compress(b'{"text": "one"}\n')
    bad = gzip.compress(b'{"text": "two"}\n' * 9000)[:60]
    source = bench.files("corpus", a__jsonl__gz=good, b__jsonl__gz=bad, c__parquet=b"PAR1junk")
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    assert documents.metrics["removed"]["unreadable_file"] == 2


def test_a_zstd_file_cut_anywhere_gives_every_row_of_its_whole_blocks(tmp_path: Path) -> None:
    text = "".join(f"{hashlib.sha256(b'%d' % i).hexdigest()}\n" for i in range(10_000)).encode()
    whole = zstandard.compress(text[:400_000]) + zstandard.compress(text[400_000:])
    path, config = tmp_path / "a.txt.zst", ImportDocumentsConfig(text_documents="line")
    for cut in range(0, len(whole) + 1, len(whole) // 40):
        path.write_bytes(whole[:cut])
        reader = zstandard.ZstdDecompressor().stream_reader(whole[:cut], read_across_frames=True)
        readable = reader.read().decode().splitlines(keepends=True)
        lines = [line for line in readable if line.endswith("\n")]
        rows = list(_rows(path, "a.txt", config))
        assert rows[: len(lines)] == [{"text": line} for line in lines]
        assert rows[len(lines) :] in ([], ["unreadable_file"])
        assert (rows[-1:] == ["unreadable_file"]) == (0 < cut < len(whole))


@pytest.mark.parametrize("damage", ["cut short", "overwritten", "no zstd at all"])
def test_a_damaged_zstd_file_gives_the_rows_before_and_says_so(
    bench: Workbench, damage: str
) -> None:
    rows = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(10_000)]  # of several blocks
    whole = zstandard.compress("".join(f'{{"text": "{row}"}}\n' for row in rows).encode())
    half = len(whole) // 2
    data = {
        "cut short": whole[:half],
        "overwritten": whole[:half] + bytes(200) + whole[half + 200 :],
        "no zstd at all": b"no zstd at all",
    }[damage]
    frames = zstandard.compress(b'{"text": "one"}\n') + zstandard.compress(b'{"text": "two"}\n')
    source = bench.files("corpus", a__jsonl__zst=frames, b__jsonl__zst=data)
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    assert documents.metrics["removed"] == {"unreadable_file": 1}
    kept = column(documents, "text")
    assert kept == ["one", "two", *rows[: len(kept) - 2]]
    assert (len(kept) > 2) == (damage != "no zstd at all")


def test_unknown_files_and_wrong_fields_are_refused_with_a_remedy(bench: Workbench) -> None:
    with pytest.raises(InputError, match=r"cannot import \['a\.docx'\]"):
        bench.run(import_documents, ImportDocumentsConfig(), bench.files("x", a__docx="x"))
    with pytest.raises(InputError, match="text_field='text' right"):
        source = bench.files("y", a__jsonl='{"content": "x"}')
        bench.run(import_documents, ImportDocumentsConfig(), source)


def parquet(*tables: pa.Table) -> bytes:
    """Return a Parquet file with one row group a table, in the schema of the last."""
    file = io.BytesIO()
    with pq.ParquetWriter(file, tables[-1].schema) as writer:
        for table in tables:
            writer.write_table(table.cast(tables[-1].schema))
    return file.getvalue()


def column(documents: Documents, name: str) -> list[object]:
    return [v for batch in read_documents(documents, [name]) for v in batch[0].to_pylist()]


@pytest.mark.parametrize("rows", [1, 1023, 1024, 1025, 2049, 4096, 4097])
def test_one_row_more_than_full_batches_is_not_lost(bench: Workbench, rows: int) -> None:
    texts = [f"text {number}" for number in range(rows)]
    lines = "\n".join(json.dumps({"text": text}) for text in texts)
    table = parquet(pa.table({"text": texts}))
    source = bench.files("corpus", a__parquet=table, b__jsonl=lines)
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    assert column(documents, "text") == texts * 2
    assert documents.metrics["kept"] == count_documents(documents) == 2 * rows


def test_urls_that_appear_after_a_batch_without_any_are_kept(bench: Workbench) -> None:
    without = pa.table({"text": ["a"] * 1500, "url": pa.nulls(1500)})
    later = pa.table({"text": ["b"], "url": ["http://b.example/"]})
    lines = [json.dumps({"text": "a"})] * 5000
    lines.append(json.dumps({"text": "b", "url": "http://b.example/", "new": [1]}))
    source = bench.files(
        "corpus",
        a__parquet=parquet(without),  # the column's type is null
        b__parquet=parquet(without, later),
        c__jsonl="\n".join(lines),
    )
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    expected = [None] * 3000 + ["http://b.example/"] + [None] * 5000 + ["http://b.example/"]
    assert column(documents, "url") == expected
    for name in shard_names(documents):
        with documents.open(name) as file:
            assert pq.read_schema(file).equals(DOCUMENT_SCHEMA)


def test_empty_files_are_empty_shards_with_the_schema_and_count_nothing(bench: Workbench) -> None:
    source = bench.files(
        "corpus",
        a__jsonl="",
        b__parquet=parquet(pa.table({"text": pa.array([], pa.string())})),
        c__jsonl__gz=gzip.compress(b""),
        d__jsonl='{"text": "one"}\n{"text": "two"}',
        e__parquet=parquet(pa.table({"text": pa.nulls(0)})),
    )
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    names = shard_names(documents)
    assert [count_rows(documents, name) for name in names] == [0, 0, 0, 2, 0]
    assert (documents.metrics["input"], documents.metrics["kept"]) == (2, 2)
    assert documents.metrics["removed"] == {}
    for name in names:
        with documents.open(name) as file:
            assert pq.read_schema(file).equals(DOCUMENT_SCHEMA)


def test_hostile_rows_cost_themselves_only(bench: Workbench) -> None:
    lines = [
        b"[" * 100_000,
        b'{"text": "half a pair \\ud800", "url": "http://a.example/\\ud800", "date": "\\udfff"}',
        b'{"text": "bytes \xff"}',
        b'{"text": "last"}',
    ]
    source = bench.files("corpus", a__jsonl=b"\n".join(lines))
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    assert column(documents, "text") == ["half a pair \ufffd", "last"]
    assert column(documents, "url") == ["http://a.example/\ufffd", None]
    assert documents.metrics["removed"] == {"invalid_json": 2}


def test_hostile_values_of_parquet_cost_themselves_only(bench: Workbench) -> None:
    """Times that Python has no year for, strings that are no UTF-8, no wanted column at all."""
    ends = pa.py_buffer(np.array([0, 2, 4, 6], np.int32))
    bad = pa.Array.from_buffers(pa.string(), 3, [None, ends, pa.py_buffer(b"ok\xff\xfeaz")])
    dates = pa.array([0, 2**62, None], pa.timestamp("us"))
    source = bench.files(
        "corpus",
        a__parquet=parquet(pa.table({"text": bad, "date": dates})),
        b__parquet=parquet(pa.table({"text": ["x", "y", "z"], "date": dates, "url": bad})),
        c__parquet=parquet(pa.table({"body": ["x", "y"]})),
        d__parquet=parquet(pa.table({"text": [1, 2]})),
    )
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    assert column(documents, "text") == ["ok", "az", "x", "y", "z"]
    assert column(documents, "date") == [
        "1970-01-01 00:00:00",
        None,
        "1970-01-01 00:00:00",
        None,
        None,
    ]
    assert column(documents, "url")[2:] == ["ok", "\ufffd\ufffd", "az"]
    assert documents.metrics["removed"] == {"no_text_field": 2, "text_is_no_string": 3}


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_that_is_none_or_ends_too_early_is_named(
    bench: Workbench, suffix: str
) -> None:
    pack = gzip.compress if suffix == "gz" else zstandard.compress
    rows = [b'{"text": "%d"}\n' % number for number in range(9_000)]
    two = pack(b"".join(rows[:10])) + pack(b"".join(rows[10:]))
    files = {"a": two, "b": two[:-9], "c": rows[0], "d": b"", "e": two[: len(two) // 2]}
    source = bench.files("x", **{f"{name}__jsonl__{suffix}": data for name, data in files.items()})
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    counts = [count_rows(documents, name) for name in shard_names(documents)]
    assert counts[0] == 9_000 and counts[2:4] == [0, 0]
    # of zstd Arrow's reader gives nothing of the 64 kB in which the break lies
    assert counts[1] <= 9_000 and counts[4] < 9_000 and (suffix == "zst" or counts[4] >= 10)
    assert documents.metrics["removed"] == {"unreadable_file": 3}


def test_rows_of_one_name_are_distinct_documents(bench: Workbench) -> None:
    rows = [{"text": "one", "id": 7}, {"text": "two", "id": 7}, {"text": "three", "id": None},
            {"text": "four", "id": 2}, {"text": "five"}]  # fmt: skip
    source = bench.files("x", a__jsonl="\n".join(json.dumps(row) for row in rows))
    documents = bench.run(import_documents, ImportDocumentsConfig(id_field="id"), source)
    ids = column(documents, "id")
    assert len(set(ids)) == 5
    assert ids[0] == document_id("x", "a.jsonl#7")


def texts_of(documents: Documents) -> list[str]:
    return [t for batch in read_documents(documents, ["text"]) for t in batch["text"].to_pylist()]


MARKED = {
    "utf-8": b"\xef\xbb\xbf",
    "utf-16-le": b"\xff\xfe",
    "utf-16-be": b"\xfe\xff",
    "utf-32-le": b"\xff\xfe\0\0",
}


@pytest.mark.parametrize("encoding", MARKED)
@pytest.mark.parametrize("pack", ["", "gz", "zst"])
def test_byte_order_marks_name_the_encoding_and_are_in_no_document(
    bench: Workbench, encoding: str, pack: str
) -> None:
    text = "The bell of the chapel rang twice.\nNobody knew why, for 鐘 is 𝄞."
    rows = '{"text": "one\u2028row"}\n{"text": "two"}\n'
    packed = {"": bytes, "gz": gzip.compress, "zst": zstandard.compress}[pack]
    ending = f"__{pack}" if pack else ""
    files = {f"a__txt{ending}": text, f"b__jsonl{ending}": rows}
    data = {name: packed(MARKED[encoding] + t.encode(encoding)) for name, t in files.items()}
    source = bench.files("corpus", **data)
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    assert texts_of(documents) == [text, "one\u2028row", "two"]
    lines = bench.run(import_documents, ImportDocumentsConfig(text_documents="line"), source)
    assert texts_of(lines) == [*text.split("\n"), "one\u2028row", "two"]


def long_window(data: bytes, window_log: int) -> bytes:
    settings = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log)
    compressor = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return compressor.compress(data) + compressor.flush()


def test_a_zstd_file_of_too_large_a_window_is_named_by_it_and_the_rest_goes_on(
    bench: Workbench,
) -> None:
    row = b'{"text": "one"}\n'
    source = bench.files(
        "corpus",
        a__jsonl__zst=zstandard.compress(row) + long_window(row, 31),
        b__jsonl__zst=long_window(row, 27),
        c__jsonl__zst=long_window(row, 28),
    )
    documents = bench.run(import_documents, ImportDocumentsConfig(), source)
    assert texts_of(documents) == ["one", "one"]
    assert documents.metrics["removed"] == {"zstd_window_too_large": 2}
    first, second = documents.metrics["unreadable"]
    assert first.startswith("a.jsonl.zst cannot be read after row 1: ")
    assert "a zstd window of 2048 MiB, and at most 128 MiB are read" in first
    assert "zstd -dc --long=31 FILE | zstd --long=27 -o NEW" in first
    assert "256 MiB" in second and "--long=28" in second
    alone = bench.files("alone", a__jsonl__zst=long_window(row, 31))
    with pytest.raises(InputError, match=r"a\.jsonl\.zst .* window of 2048 MiB"):
        bench.run(import_documents, ImportDocumentsConfig(), alone)
