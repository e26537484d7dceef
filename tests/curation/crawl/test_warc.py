import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datatrove.data import Document
from fastwarc.warc import ArchiveIterator

from lmpipe.bench.archives import num_undefined
from lmpipe.curation.crawl.warc import Census, WarcPages
from lmpipe.errors import InputError
from tests.curation.warcs import archive, page, response

WARC = Path(__file__).parents[2] / "data" / "warc"


def read(path: Path) -> tuple[list[Document], Census]:
    census = Census()
    pages = list(WarcPages(path, path.name, "test", 1_000_000, census).run())
    assert census.records["pages"] == len(pages)
    return pages, census


def read_bytes(tmp_path: Path, data: bytes, name: str = "x.warc") -> tuple[list[Document], Census]:
    path = tmp_path / name
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
    "clipped.warc.gz": (0, ["truncated_record"], ""),
    "common-crawl-2024.warc.gz": (1, [], ""),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_damaged_archives_give_what_can_be_read_and_name_where_they_break(name: str) -> None:
    readable, lost, offset = KNOWN[name]
    pages, census = read(WARC / name)
    assert sum("body" in p.metadata and b"<" in p.metadata["body"] for p in pages) == readable
    assert [p.metadata["removed"] for p in pages if "removed" in p.metadata] == lost
    found = [message.partition(": unreadable from byte ")[2] for message in census.unreadable]
    assert [message.partition(":")[0] for message in found] == ([offset] if offset else [])


# file → (pages, all records)
REAL = {
    "archive-org-2008.arc.gz": (4, 15),
    "archive-org-2008.warc.gz": (2, 23),
    "common-crawl-2020.warc.lz4": (2, 8),
    "wget-2024-0.warc.gz": (7, 16),
}


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_archives_give_all_their_records(name: str) -> None:
    pages, census = read(WARC / "real" / name)
    assert all(b"<" in page.metadata["body"] for page in pages)
    assert (len(pages), census.records.total()) == REAL[name]
    assert census.unreadable == []


@pytest.mark.parametrize("name", [*sorted(KNOWN), *(f"real/{name}" for name in sorted(REAL))])
def test_a_cut_anywhere_costs_no_page_before_it_and_what_is_lost_is_named(name: str) -> None:
    assert num_undefined(WARC / name, num_cuts=53) == 0


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


@pytest.mark.parametrize("before", [b"WARC-Target-URI", b"Content-Type", b"Content-Length"])
def test_a_record_cut_inside_its_header_is_named_as_well(tmp_path: Path, before: bytes) -> None:
    whole, cut = response(page(0)), response(page(1), record_id="<urn:b>")
    pages, census = read_bytes(tmp_path, whole + cut[: cut.index(before)])
    assert "removed" not in pages[0].metadata
    assert pages[1].metadata["removed"] in ("truncated_record", "unreadable_archive")
    assert census.records.total() == 2
    assert pages[1].metadata["warc_offset"] == len(whole)


def test_garbage_after_good_records_is_located_and_costs_no_page_before_it(tmp_path: Path) -> None:
    good = archive(3)
    pages, census = read_bytes(tmp_path, good + gzip.compress(b"no record at all\r\n\r\n" * 9))
    assert [p.metadata.get("removed") for p in pages] == [None] * 3 + ["unreadable_archive"]
    assert f"byte {len(good)}:" in census.unreadable[0]


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
    assert census.unreadable == []


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


def packed(data: bytes, suffix: str) -> bytes:
    import io

    from fastwarc.stream_io import Lz4Writer, ZstdWriter

    if suffix == "gz":
        return gzip.compress(data, mtime=0)
    if suffix == "":
        return data
    file: Any = io.BytesIO()
    writer = (ZstdWriter if suffix == "zst" else Lz4Writer)(file)
    writer.write(data)
    writer.close()
    return bytes(file.getvalue())


def records(count: int) -> list[bytes]:
    return [
        response(page(n, words=40 * (n % 5)), url=f"http://h.example/{n}", record_id=f"<urn:{n}>")
        for n in range(count)
    ]


@pytest.mark.parametrize("suffix", ["", "gz", "zst", "lz4"])
@pytest.mark.parametrize("size", [300, 1_000, 7_777])
def test_ranges_of_an_archive_hold_each_record_once(tmp_path: Path, suffix: str, size: int) -> None:
    path = tmp_path / "x.warc"
    path.write_bytes(b"".join(packed(record, suffix) for record in records(23)))
    whole, _ = read(path)
    parts = [
        document.id
        for low in range(0, path.stat().st_size, size)
        for document in WarcPages(
            path, path.name, "test", 1_000_000, Census(), (low, low + size)
        ).run()
    ]
    assert len(parts) == 23
    assert parts == [document.id for document in whole]


def test_an_archive_in_one_compressed_stream_lies_in_its_first_range(tmp_path: Path) -> None:
    path = tmp_path / "x.warc.gz"
    path.write_bytes(gzip.compress(b"".join(records(9))))
    ranges = [(0, 50), (50, 100)]
    counts = [
        len(list(WarcPages(path, path.name, "test", 1_000_000, Census(), each).run()))
        for each in ranges
    ]
    assert counts == [9, 0]


@pytest.mark.parametrize("suffix", ["", "gz", "zst", "lz4"])
@pytest.mark.parametrize("per_member", [1, 4, 9])
def test_a_record_is_found_again_by_its_offset_and_id(
    tmp_path: Path, suffix: str, per_member: int
) -> None:
    """Also in archives that some writers compress as one stream, or several records at a time."""
    path, all_ = tmp_path / "x.warc", records(9)
    groups = [b"".join(all_[at : at + per_member]) for at in range(0, 9, per_member)]
    path.write_bytes(b"".join(packed(group, suffix) for group in groups))
    pages, census = read(path)
    assert len(pages) == 9 and not census.unreadable
    for number, document in enumerate(pages):
        with path.open("rb") as file:
            file.seek(document.metadata["warc_offset"])
            found = [record.record_id for record in ArchiveIterator(file, parse_http=False)]
        place = number % per_member if suffix else 0
        assert found[place] == document.metadata["warc_record_id"]


def test_a_start_that_is_none_is_refused_with_the_remedy(tmp_path: Path) -> None:
    inner = b"<html><p>" + b"x" * 500 + b"\r\n\r\n" + response(page(1)) + b"</html>"
    path = tmp_path / "x.warc"
    path.write_bytes(response(inner) + response(page(2), record_id="<urn:2>"))
    with pytest.raises(InputError, match="split_bytes=0"):
        list(WarcPages(path, path.name, "test", 1_000_000, Census(), (0, 600)).run())


@pytest.mark.parametrize("suffix", ["", "gz", "zst", "lz4"])
def test_reading_goes_on_after_a_damaged_stretch(tmp_path: Path, suffix: str) -> None:
    members = [packed(record, suffix) for record in records(6)]
    damaged = bytearray(members[2])
    damaged[0:300] = b"\x55" * min(300, len(damaged))
    whole = b"".join([*members[:2], bytes(damaged), *members[3:]])
    pages, census = read_bytes(tmp_path, whole)
    urls = [p.metadata["url"][-1] for p in pages if "body" in p.metadata]
    assert urls == ["0", "1", "3", "4", "5"]
    assert [p.metadata["removed"] for p in pages if "removed" in p.metadata] == [
        "unreadable_archive"
    ]
    assert len(census.unreadable) == 1
    start = len(members[0]) + len(members[1])
    named = int(census.unreadable[0].partition("from byte ")[2].partition(":")[0])
    assert named in ((start,) if suffix in ("", "gz") else (len(members[0]), start))


def arc(count: int) -> list[bytes]:
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n%s"
    head = b"1 0 InternetArchive\nURL IP-address Archive-date Content-type Archive-length\n"
    found = [b"filedesc://x.arc 0.0.0.0 20080430204825 text/plain %d\n%s\n" % (len(head), head)]
    for n in range(count):
        block = body % page(n)
        line = b"http://h.example/%d 127.0.0.1 2008043020482%d text/html %d\n" % (n, n, len(block))
        found.append(line + block + b"\n")
    dns = b"dns:h.example 127.0.0.1 20080430204825 text/dns 4\nabcd\n"
    return [*found, dns]


@pytest.mark.parametrize("way", ["plain", "members", "one stream"])
def test_arc_files_are_read_like_warc_files(tmp_path: Path, way: str) -> None:
    parts = arc(3)
    data = b"".join(gzip.compress(part) for part in parts) if way == "members" else b"".join(parts)
    pages, census = read_bytes(tmp_path, gzip.compress(data) if way == "one stream" else data)
    assert [p.metadata["url"] for p in pages] == [f"http://h.example/{n}" for n in range(3)]
    assert pages[2].metadata["date"] == "2008-04-30T20:48:22Z"
    assert pages[1].metadata["body"] == page(1)
    assert len({p.id for p in pages}) == 3
    assert census.records["skipped: response dns"] == 1
    offsets = [p.metadata["warc_offset"] for p in pages]
    if way == "one stream":
        assert offsets == [0, 0, 0]
    else:
        sizes = [len(gzip.compress(part)) if way == "members" else len(part) for part in parts]
        assert offsets == [sizes[0], sum(sizes[:2]), sum(sizes[:3])]


def test_an_arc_cut_short_gives_the_pages_before_the_cut(tmp_path: Path) -> None:
    parts = arc(3)
    data = b"".join(parts)[: -len(parts[-1]) - 20]
    pages, census = read_bytes(tmp_path, data)
    assert [p.metadata.get("removed") for p in pages] == [None, None, "unreadable_archive"]
    assert f"byte {sum(map(len, parts[:3]))}: a record of" in census.unreadable[0]


def in_case(record: bytes, change: Callable[[bytes], bytes], newline: bytes) -> bytes:
    """Return a record with its field names changed, and lines that end otherwise."""
    head, _, block = record.partition(b"\r\n\r\n")
    version, *lines = head.split(b"\r\n")
    fields = [line.partition(b":") for line in lines]
    names = [b"".join((change(name), *rest)) for name, *rest in fields]
    return newline.join((version, *names, b"", b"")) + block


@pytest.mark.parametrize("newline", [b"\r\n", b"\n"])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(
    "change", [bytes.lower, bytes.upper, lambda name: name.replace(b"-Length", b"-length")]
)
def test_field_names_in_any_case_give_the_same_documents(
    tmp_path: Path, change: Callable[[bytes], bytes], is_packed: bool, newline: bytes
) -> None:
    records = [response(page(n), record_id=f"<urn:uuid:{n}>") for n in range(3)]
    records.append(response(b"", kind="request"))
    found = []
    for number, name_change in enumerate((bytes, change)):
        parts = [in_case(record, name_change, newline) for record in records]
        data = b"".join(gzip.compress(part, mtime=0) if is_packed else part for part in parts)
        found.append(read_bytes(tmp_path, data, f"{number}.warc"))
    (expected, counts), (pages, census) = found
    assert len(pages) == 3
    assert census == counts
    assert [p.id for p in pages] == [p.id for p in expected]
    for ours, theirs in zip(pages, expected, strict=True):
        name = {"warc_path": "", "warc_offset": 0}
        assert ours.metadata | name == theirs.metadata | name
        if not is_packed:
            assert ours.metadata["warc_offset"] == theirs.metadata["warc_offset"]


def test_a_file_in_another_case_that_is_cut_gives_the_pages_before(tmp_path: Path) -> None:
    parts = [in_case(response(page(n)), bytes.lower, b"\r\n") for n in range(2, 5)]
    size, data = len(parts[0]), b"".join(parts)
    assert len(data) == 3 * size
    for cut in range(1, len(data), 29):
        pages, census = read_bytes(tmp_path, data[:cut])
        num_whole, rest = divmod(cut + len(b"\r\n\r\n"), size)
        is_cut = rest > 4
        assert sum("body" in page.metadata for page in pages) == num_whole
        assert len(pages) == num_whole + is_cut
        if is_cut and num_whole:
            assert f"from byte {num_whole * size}:" in census.unreadable[0]


@pytest.mark.parametrize("length", [b"", b"-", b"x", b"9" * 12, b"9" * 5000])
def test_a_length_that_cannot_be_ends_a_rewritten_file_by_name(
    tmp_path: Path, length: bytes
) -> None:
    good = in_case(response(page(1)), bytes.lower, b"\r\n")
    bad = b"WARC/1.0\r\nwarc-type: response\r\ncontent-length: %b\r\n\r\nx" % length
    line = b"http://h.example/ 127.0.0.1 20080430204820 text/html %b\nx" % length
    for data, start in ((good + bad, len(good)), (b"".join(arc(1)) + line, len(b"".join(arc(1))))):
        pages, census = read_bytes(tmp_path, data)
        assert [p.metadata.get("removed") for p in pages] == [None, "unreadable_archive"]
        assert f"from byte {start}:" in census.unreadable[0]


def test_a_header_without_end_ends_a_rewritten_file_by_name(tmp_path: Path) -> None:
    good = in_case(response(page(1)), bytes.lower, b"\r\n")
    endless = b"WARC/1.0\r\nwarc-type: response\r\n" + b"x: y\r\n" * 100_000
    pages, census = read_bytes(tmp_path, good + endless)
    assert [p.metadata.get("removed") for p in pages] == [None, "unreadable_archive"]
    assert "a header of over 262144 bytes" in census.unreadable[0]


def test_the_text_of_a_wet_file_is_taken_as_it_is() -> None:
    pages, census = read(WARC / "common-crawl-2024.warc.wet.gz")
    assert pages[0].metadata["plain_text"].startswith(b"Escopete")
    assert pages[0].metadata["url"] == "https://an.wikipedia.org/wiki/Escopete"
    assert census.records == {"pages": 1, "skipped: warcinfo": 1}


def test_bodies_in_brotli_and_dates_cut_short_are_read(tmp_path: Path) -> None:
    import io

    from fastwarc.stream_io import BrotliWriter

    file: Any = io.BytesIO()
    writer = BrotliWriter(file)
    writer.write(page(3))
    writer.close()
    data = response(file.getvalue(), headers=("Content-Encoding: br", "Transfer-Encoding: chunked"))
    data = data.replace(b"2024-01-01T00:00:00Z", b"2024-01-01T00:0")
    pages, _ = read_bytes(tmp_path, data)
    assert pages[0].metadata["body"] == page(3)
    assert pages[0].metadata["date"] == "2024-01-01T00:0"


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("per_member", [1, 9])
def test_a_stream_that_ends_too_early_is_named_whatever_record_it_ends_in(
    tmp_path: Path, suffix: str, per_member: int
) -> None:
    """Readers take the end of the file for that of the records: pages after it went in silence."""
    kinds = b"WARC-Type: response", b"WARC-Type: request"
    requests = [record.replace(*kinds) for record in records(9)]
    all_ = [*requests[:5], *records(9)[5:]] if per_member > 1 else [records(9)[0], *requests[1:]]
    members = [
        packed(b"".join(all_[at : at + per_member]), suffix) for at in range(0, 9, per_member)
    ]
    data = b"".join(members)
    last = len(data) - len(members[-1])
    whole, census = read_bytes(tmp_path, data)
    assert not census.unreadable and all("body" in page.metadata for page in whole)
    for size in range(last + 40, len(data), max(1, len(members[-1]) // 40)):
        pages, census = read_bytes(tmp_path, data[:size])
        reasons = {page.metadata.get("removed") for page in pages[-1:]}
        assert reasons <= {"unreadable_archive", "truncated_record"} and reasons, size
        if reasons == {"unreadable_archive"}:
            named = int(census.unreadable[-1].partition("from byte ")[2].partition(":")[0])
            # of zstd the last good record is known
            assert named == last or (suffix == "zst" and named == last - len(members[-2])), size


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("error", [-100, 1, 3, 100, 800, 1500])
def test_a_length_that_is_wrong_hides_no_other_record(
    tmp_path: Path, error: int, is_packed: bool
) -> None:
    records = [
        response(page(n), record_id=f"<urn:uuid:{n}>", length_error=error if n == 12 else 0)
        for n in range(10, 16)
    ]
    data = b"".join(gzip.compress(record) if is_packed else record for record in records)
    pages, census = read_bytes(tmp_path, data)
    found = [str(p.metadata["warc_record_id"]) for p in pages if "body" in p.metadata]
    assert found == [f"<urn:uuid:{n}>" for n in range(10, 16)]
    assert len(census.unreadable) == (abs(error) > 3)  # less is taken for the padding


@pytest.mark.parametrize("length", ["-", "x", "9" * 20, "9" * 15, ""])
@pytest.mark.parametrize("suffix", ["", "gz"])
def test_a_length_that_cannot_be_costs_its_record_and_no_other(
    tmp_path: Path, length: str, suffix: str
) -> None:
    all_ = records(3)
    all_[1] = all_[1].replace(b"Content-Length: ", f"Content-Length: {length}".encode(), 1)
    if not length:  # one that is too small
        all_[1] = all_[1].replace(b"Content-Length: ", b"Content-Length: 1 #", 1)
    pages, _ = read_bytes(tmp_path, b"".join(packed(record, suffix) for record in all_))
    good = [page.metadata["url"][-1] for page in pages if "body" in page.metadata]
    assert good == ["0", "2"]
    assert any(page.metadata.get("removed") for page in pages)


def longer(part: bytes, change: int) -> bytes:
    """Return an ARC record whose first line lies about its length."""
    line, _, rest = part.partition(b"\n")
    words = line.split(b" ")
    return b" ".join([*words[:-1], b"%d" % (int(words[-1]) + change)]) + b"\n" + rest


@pytest.mark.parametrize(
    "damage",
    [
        lambda part: b"\0\1 no line\n" + part[40:],
        lambda part: part.partition(b"\n")[2],
        lambda part: longer(part, 1 << 31),
    ],
)
@pytest.mark.parametrize("way", ["plain", "members"])
def test_a_damaged_arc_record_costs_itself_alone(
    tmp_path: Path, damage: Callable[[bytes], bytes], way: str
) -> None:
    parts = arc(12)
    start = sum(len(gzip.compress(part)) if way == "members" else len(part) for part in parts[:5])
    parts[5] = damage(parts[5])
    data = b"".join(gzip.compress(part) if way == "members" else part for part in parts)
    pages, census = read_bytes(tmp_path, data)
    good = [page.metadata["url"] for page in pages if "removed" not in page.metadata]
    named = [page.metadata["warc_offset"] for page in pages if "removed" in page.metadata]
    assert good == [f"http://h.example/{n}" for n in range(12) if n != 4]
    assert len({page.id for page in pages}) == len(pages)
    assert named == [start] and len(census.unreadable) == 1


def test_an_arc_record_that_is_cut_short_hides_no_other(tmp_path: Path) -> None:
    parts = arc(12)
    parts[5] = parts[5][: len(parts[5]) // 2] + b"\n"
    pages, census = read_bytes(tmp_path, b"".join(parts))
    good = [page.metadata["url"] for page in pages if "removed" not in page.metadata]
    assert good == [f"http://h.example/{n}" for n in range(12)]
    assert len(census.unreadable) == 1


@pytest.mark.parametrize("change", [-300, 300, 3000])
def test_a_wrong_length_in_an_arc_hides_no_other_record(tmp_path: Path, change: int) -> None:
    parts = arc(12)
    parts[5] = longer(parts[5], change)
    pages, census = read_bytes(tmp_path, b"".join(parts))
    good = [page.metadata["url"] for page in pages if "removed" not in page.metadata]
    assert good == [f"http://h.example/{n}" for n in range(12)]
    assert len(census.unreadable) == 1


def test_damage_anywhere_in_a_gzip_arc_or_warc_is_named_once(tmp_path: Path) -> None:
    for members in (
        [gzip.compress(part, mtime=0) for part in arc(7)[1:-1]],
        [archive(1, start=n) for n in range(7)],
    ):
        head = (
            gzip.compress(arc(1)[0], mtime=0) if b"WARC" not in gzip.decompress(members[0]) else b""
        )
        for at in range(4, len(members[3]), 7):
            damaged = bytearray(members[3])
            damaged[at] ^= 0x5A
            data = head + b"".join([*members[:3], bytes(damaged), *members[4:]])
            pages, census = read_bytes(tmp_path, data)
            removed = [p.metadata["warc_offset"] for p in pages if "removed" in p.metadata]
            assert len(pages) == 7 and len({p.id for p in pages}) == 7
            assert removed in ([], [len(head) + sum(map(len, members[:3]))])
            assert len(census.unreadable) == len(removed)


def test_a_large_page_whose_member_is_damaged_is_removed_once(tmp_path: Path) -> None:
    noise = b"".join(hashlib.sha256(b"%d" % n).hexdigest().encode() for n in range(9000))
    middle = gzip.compress(response(b"<html>" + noise, record_id="<urn:x:9>"), mtime=0)
    for at in (len(middle) // 3, len(middle) - 6):
        damaged = bytearray(middle)
        damaged[at] ^= 0x5A
        data = archive(2) + bytes(damaged) + archive(2, start=5)
        pages, _ = read_bytes(tmp_path, data)
        removed = [p.metadata["warc_offset"] for p in pages if "removed" in p.metadata]
        assert removed == [len(archive(2))]
        assert len(pages) == 5
