import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lmpipe.curation.import_documents import ImportDocumentsConfig, import_documents
from lmpipe.documents.read import read_documents, read_removed
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


def test_unknown_files_and_wrong_fields_are_refused_with_a_remedy(bench: Workbench) -> None:
    with pytest.raises(InputError, match=r"cannot import \['a\.docx'\]"):
        bench.run(import_documents, ImportDocumentsConfig(), bench.files("x", a__docx="x"))
    with pytest.raises(InputError, match="text_field='text' right"):
        source = bench.files("y", a__jsonl='{"content": "x"}')
        bench.run(import_documents, ImportDocumentsConfig(), source)
