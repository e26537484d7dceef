import gzip
from collections.abc import Callable
from typing import Any

import pytest

from lmpipe.curation.extraction.config import ExtractConfig
from lmpipe.curation.extraction.extract import extract
from lmpipe.documents.read import find_removed, read_documents, read_removed
from lmpipe.documents.schema import DOCUMENT_SCHEMA
from lmpipe.documents.stage import DocumentPart
from lmpipe.errors import InputError
from tests.curation.conftest import WARC, Workbench
from tests.curation.warcs import archive, page, response

FAST = ExtractConfig(extractor="resiliparse")


def archives(bench: Workbench, name: str = "crawl") -> object:
    return bench.files(
        name, a__warc__gz=archive(6), b__warc__gz=archive(5, 6), c__warc=b"", d__warc=b"no archive"
    )


def test_documents_carry_their_origin_and_the_schema(bench: Workbench) -> None:
    documents = bench.run(extract, FAST, bench.files("crawl", a__warc__gz=archive(3)))
    rows = [row for batch in read_documents(documents) for row in batch.to_pylist()]
    assert [row["url"] for row in rows] == [f"http://host{n}.example/{n}" for n in range(3)]
    assert rows[1]["host"] == "host1.example"
    assert rows[1]["warc_path"] == "a.warc.gz"
    assert rows[0]["warc_offset"] == 0 < rows[1]["warc_offset"]
    assert rows[1]["warc_record_id"] == "<urn:uuid:1>"
    assert rows[1]["charset"] == "utf-8"
    assert "Page 1 has a sentence about subject 7" in rows[1]["text"]
    assert next(read_documents(documents)).schema.equals(DOCUMENT_SCHEMA)


def test_a_broken_file_costs_itself_only_and_is_in_the_ledger(bench: Workbench) -> None:
    documents = bench.run(extract, FAST, archives(bench))
    lost = [row for batch in read_removed(documents) for row in batch.to_pylist()]
    assert [(row["reason"], row["url"]) for row in lost] == [("unreadable_archive", "d.warc#0")]
    assert find_removed(documents, lost[0]["id"]) == lost[0]
    assert documents.metrics["input"] == 12
    assert documents.metrics["kept"] == 11
    assert "d.warc: unreadable from byte 0" in documents.metrics["unreadable"][0]
    assert any(event.get("level") == "warning" for event in bench.events)


def test_shipped_damaged_archives_run_to_the_end(bench: Workbench) -> None:
    source = bench.source("damaged", WARC / "*.warc", WARC / "*.gz")
    documents = bench.run(extract, ExtractConfig(), source)
    assert documents.metrics["kept"] >= 6
    assert documents.metrics["removed"]["unreadable_archive"] == 3
    assert len(documents.metrics["unreadable"]) == 3


@pytest.mark.parametrize("extractor", ["cascade", "trafilatura", "trafilatura_fast", "resiliparse"])
def test_every_extractor_finds_the_prose(bench: Workbench, extractor: str) -> None:
    source = bench.files("crawl", a__warc=response(page(5, words=160)))
    documents = bench.run(extract, ExtractConfig(extractor=extractor), source)
    text = next(read_documents(documents, ["text", "extractor"])).to_pylist()[0]
    assert text["extractor"] == ("trafilatura_core" if extractor == "cascade" else extractor)
    assert text["text"].count("Page 5 has a sentence about subject 35") >= 12


def test_a_page_that_hits_a_limit_marks_the_artifact_as_inexact(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lmpipe.curation.extraction.extractors as html

    whole = html.extract_text

    def hang_on_page_1(extractor: html.Extractor, markup: str) -> str:
        while "Page 1 " in markup:
            pass
        return whole(extractor, markup)

    monkeypatch.setattr(html, "extract_text", hang_on_page_1)
    config = ExtractConfig(extractor="resiliparse", max_page_seconds=0.3)
    documents = bench.run(extract, config, bench.files("crawl", a__warc__gz=archive(4)))
    assert documents.metrics["removed"] == {"time_limit": 1}
    assert documents.metrics["kept"] == 3
    assert [record["reason"] for record in documents.manifest.inexact] == ["time_limit"]


@pytest.mark.parametrize("limit", [10_000_000, 64_000_000])
def test_a_page_of_50_megabytes_costs_its_neighbours_nothing(bench: Workbench, limit: int) -> None:
    sentence = b"A sentence of a page that does not come to an end. "
    huge = b"<html><body><p>" + sentence * (50_000_000 // len(sentence))
    packed = response(gzip.compress(huge, 1), headers=("Content-Encoding: gzip",))
    records = archive(2) + gzip.compress(packed) + archive(2, 2)
    config = ExtractConfig(extractor="cascade", max_page_bytes=limit)
    documents = bench.run(extract, config, bench.files("crawl", a__warc__gz=records))
    lengths = [
        len(row["text"])
        for batch in read_documents(documents, ["text"])
        for row in batch.to_pylist()
    ]
    if limit < len(huge):
        assert documents.metrics["removed"] == {"page_too_large": 1}
        assert len(lengths) == 4
    else:
        assert max(lengths) == len(huge) - len(b"<html><body><p>") - 1
        assert len(lengths) == 5


def test_a_source_without_pages_stops_with_what_it_held(bench: Workbench) -> None:
    image = response(b"GIF89a", content_type="image/gif")
    with pytest.raises(InputError, match=r"kept no page of source 'crawl'.*image/gif 1"):
        bench.run(extract, FAST, bench.files("crawl", a__warc=image))


def test_ranges_and_the_order_of_paths_change_neither_rows_nor_worker_bytes(
    new_bench: Callable[[str], Workbench],
) -> None:
    whole, parts, two, four = (new_bench(name) for name in ("whole", "parts", "two", "four"))
    files = {"a__warc__gz": archive(20), "b__warc__gz": archive(9, 20)}
    split = FAST.model_copy(update={"split_bytes": 1500})
    first = whole.run(extract, FAST, whole.files("crawl", **files))
    second = parts.run(extract, split, parts.files("crawl", **files))
    assert len(second.names("kept/")) > 4
    ids = [
        [row["id"] for batch in read_documents(made, ["id"]) for row in batch.to_pylist()]
        for made in (first, second)
    ]
    assert ids[0] == ids[1]
    folder = two.root / "files"
    folder.mkdir()
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    turned = two.source("crawl", folder / "b.warc.gz", folder / "a.warc.gz")
    assert two.run(extract, split, turned, workers=2).digest == second.digest
    source = four.files("crawl", **files)
    assert four.run(extract, split, source, workers=4).digest == second.digest


def test_a_killed_run_goes_on_with_the_ranges_that_are_not_done(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lmpipe.curation.extraction.extract as module

    whole = module._extract_range
    done: list[str] = []

    def killed_at_the_third(part: DocumentPart, **bound: Any) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(part.key)
        whole(part, **bound)

    source = bench.files("crawl", a__warc__gz=archive(20))
    split = FAST.model_copy(update={"split_bytes": 1500})
    monkeypatch.setattr(module, "_extract_range", killed_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        bench.run(extract, split, source)
    monkeypatch.setattr(module, "_extract_range", whole)
    documents = bench.run(extract, split, source)
    assert documents.metrics["kept"] == 20
    assert any("adopted 2 of" in str(event) for event in bench.events)


def test_revisits_are_counted_and_resolved_where_the_original_is_in_the_input(
    bench: Workbench,
) -> None:
    digest = ("WARC-Payload-Digest: sha1:AAAA",)
    first = with_warc_headers(response(page(0)), *digest)
    same = with_warc_headers(response(page(0), kind="revisit", record_id="<urn:r1>"), *digest)
    by_id = with_warc_headers(
        response(b"", kind="revisit", record_id="<urn:r2>"), "WARC-Refers-To: <urn:uuid:0>"
    )
    other = with_warc_headers(
        response(b"", kind="revisit", record_id="<urn:r3>"), "WARC-Payload-Digest: sha1:BBBB"
    )
    documents = bench.run(
        extract, FAST, bench.files("crawl", a__warc=same + by_id + other, b__warc=first)
    )
    assert documents.metrics["revisits"] == {"records": 3, "original_in_input": 2}
    assert documents.metrics["kept"] == 1
    assert documents.names("parts/") == []


def with_warc_headers(record: bytes, *headers: str) -> bytes:
    head = b"WARC/1.0\r\n"
    return head + "".join(f"{header}\r\n" for header in headers).encode() + record[len(head) :]


def test_wet_records_become_documents_without_an_extractor(bench: Workbench) -> None:
    source = bench.source("wet", WARC / "common-crawl-2024.warc.wet.gz")
    documents = bench.run(extract, ExtractConfig(extractor="cascade"), source)
    row = next(read_documents(documents)).to_pylist()[0]
    assert row["extractor"] == "wet"
    assert row["content_type"] == "text/plain"
    assert row["text"].startswith("Escopete")


def test_an_archive_under_two_names_is_refused_by_both(bench: Workbench) -> None:
    """Its records have one id each: each would be kept twice, and remove itself in dedup."""
    data = archive(3)
    source = bench.files("crawl", a__warc__gz=data, b__warc__gz=archive(2, 5), c__warc__gz=data)
    with pytest.raises(InputError, match=r"a\.warc\.gz and c\.warc\.gz hold the same bytes"):
        bench.run(extract, ExtractConfig(extractor="resiliparse"), source)
