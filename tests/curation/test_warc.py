import gzip
from pathlib import Path
from typing import Any

import pytest
from datatrove.data import Document

from lmpipe.curation.warc import Census, WarcPages
from tests.curation.warcs import archive, page, response

WARC = Path(__file__).parents[1] / "data" / "warc"


def read(path: Path) -> tuple[list[Document], Census]:
    census = Census()
    pages = list(WarcPages(path, path.name, "test", 1_000_000, census).run())
    assert census.records["pages"] == len(pages)
    return pages, census


def read_bytes(tmp_path: Path, data: bytes) -> tuple[list[Document], Census]:
    path = tmp_path / "x.warc"
    path.write_bytes(data)
    return read(path)


# file → (readable pages, what else is counted or lost, offset of the first unreadable byte)
KNOWN: dict[str, tuple[int, list[str], str]] = {
    "1memento_noContentType.warc": (1, [], ""),
    "baconIpsum_chunked_httpTrailors.warc": (1, [], ""),
    "broken.warc": (1, ["bad_http_header", "unreadable_archive"], "3321"),
    "example-bad-non-chunked.warc.gz": (1, [], ""),
    "example-trunc.warc": (1, ["unreadable_archive"], "2560"),
    "example-wrong-chunks.warc.gz": (1, [], ""),
    "badexample.arc.gz": (0, ["unreadable_archive"], "0"),
    "common-crawl-2024.warc.gz": (1, [], ""),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_damaged_archives_give_what_can_be_read_and_name_where_they_break(name: str) -> None:
    readable, lost, offset = KNOWN[name]
    pages, census = read(WARC / name)
    assert sum("body" in p.metadata and b"<" in p.metadata["body"] for p in pages) == readable
    assert [p.metadata["removed"] for p in pages if "removed" in p.metadata] == lost
    assert (f"{name}: unreadable from byte {offset}:" in census.unreadable) == bool(lost and offset)
    assert bool(census.unreadable) == bool(offset)


def test_chunk_extensions_and_trailers_leave_no_trace_in_the_page() -> None:
    pages, _ = read(WARC / "baconIpsum_chunked_httpTrailors.warc")
    body = pages[0].metadata["body"]
    assert body.startswith(b"<html>")
    assert b"extraMetadata" not in body


def test_records_that_are_no_pages_are_counted_by_type(tmp_path: Path) -> None:
    data = b"".join(
        [
            response(page(0)),
            response(b"GIF89a", content_type="image/gif"),
            response(b"User-agent: *", content_type="text/plain"),
            response(page(1), kind="revisit"),
            response(page(2), status="404 Not Found"),
            response(b"\x89PNG", content_type=None, record_id="<urn:2>"),
            response(b"<!-- c --><!DOCTYPE html><p>x", content_type=None, record_id="<urn:3>"),
        ]
    )
    pages, census = read_bytes(tmp_path, data)
    assert [p.metadata["content_type"] for p in pages] == ["text/html"] * 2
    assert census.records == {
        "pages": 2,
        "skipped: image/gif": 1,
        "skipped: text/plain": 1,
        "skipped: revisit": 1,
        "skipped: status 404": 1,
        "skipped: no content type": 1,
    }


def test_a_record_cut_short_is_named_and_not_taken_for_a_page(tmp_path: Path) -> None:
    whole = gzip.compress(response(page(0), record_id="<urn:a>"))
    cut = gzip.compress(response(page(1), record_id="<urn:b>"))
    pages, _ = read_bytes(tmp_path, whole + cut[: len(cut) - 60])
    assert [p.metadata.get("removed") for p in pages] == [None, "truncated_record"]
    assert pages[1].metadata["score"] < pages[1].metadata["threshold"]


def test_garbage_after_good_records_is_located_and_costs_no_page_before_it(tmp_path: Path) -> None:
    good = archive(3)
    pages, census = read_bytes(tmp_path, good + gzip.compress(b"no record at all\r\n\r\n" * 9))
    assert [p.metadata.get("removed") for p in pages] == [None] * 3 + ["unreadable_archive"]
    assert f"byte {len(good)}:" in census.unreadable


def test_pages_larger_than_the_bound_are_removed_with_the_bound(tmp_path: Path) -> None:
    data = response(b"<html>" + b"x" * 1_000_001)
    bomb = response(
        gzip.compress(b"x" * 5_000_000), headers=("Content-Encoding: gzip",), record_id="<urn:b>"
    )
    pages, _ = read_bytes(tmp_path, data + bomb)
    assert [p.metadata["removed"] for p in pages] == ["page_too_large"] * 2
    assert pages[0].metadata["threshold"] == 1_000_000


def test_ids_come_from_record_ids_and_from_offsets_without_them(tmp_path: Path) -> None:
    named = response(page(0), record_id="<urn:uuid:1>")
    nameless = response(page(1), record_id=None)
    first, _ = read_bytes(tmp_path, named + nameless + nameless)
    second, _ = read_bytes(tmp_path, nameless + named)
    assert len({p.id for p in first}) == 3
    assert first[0].id == second[1].id
    assert first[1].id != second[0].id


def test_a_repeated_record_id_gives_distinct_documents(tmp_path: Path) -> None:
    pages, _ = read_bytes(tmp_path, response(page(0)) + response(page(1)))
    assert len({p.id for p in pages}) == 2


def test_an_empty_archive_holds_nothing(tmp_path: Path) -> None:
    pages, census = read_bytes(tmp_path, b"")
    assert pages == []
    assert census.unreadable == ""


@pytest.mark.parametrize("suffix", ["zst", "lz4"])
def test_other_compressions_read_alike(tmp_path: Path, suffix: str) -> None:
    import io

    from fastwarc.stream_io import Lz4Writer, ZstdWriter

    packed: Any = io.BytesIO()
    writer = (ZstdWriter if suffix == "zst" else Lz4Writer)(packed)
    writer.write(response(page(0)))
    writer.close()
    pages, _ = read_bytes(tmp_path, packed.getvalue())
    assert [p.metadata["url"] for p in pages] == ["http://example.com/"]
