from collections.abc import Callable

import pytest

from lmpipe.curation.extract import ExtractConfig, extract
from lmpipe.documents.read import count_documents, find_removed, read_documents, read_removed
from lmpipe.documents.schema import DOCUMENT_SCHEMA
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


def test_one_and_two_workers_give_the_same_bytes(new_bench: Callable[[str], Workbench]) -> None:
    one, two = new_bench("one"), new_bench("two")
    first = one.run(extract, FAST, archives(one))
    second = two.run(extract, FAST, archives(two), workers=2)
    assert first.digest == second.digest
    assert count_documents(first) == 11


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


@pytest.mark.parametrize("extractor", ["trafilatura", "trafilatura_fast", "resiliparse"])
def test_every_extractor_finds_the_prose(bench: Workbench, extractor: str) -> None:
    source = bench.files("crawl", a__warc=response(page(5, words=160)))
    documents = bench.run(extract, ExtractConfig(extractor=extractor), source)
    text = next(read_documents(documents, ["text", "extractor"])).to_pylist()[0]
    assert text["extractor"] == extractor
    assert text["text"].count("Page 5 has a sentence about subject 35") >= 12


def test_a_page_that_hits_a_limit_marks_the_artifact_as_inexact(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lmpipe.curation.html as html

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


def test_a_source_without_pages_stops_with_what_it_held(bench: Workbench) -> None:
    image = response(b"GIF89a", content_type="image/gif")
    with pytest.raises(InputError, match=r"kept no page of source 'crawl'.*image/gif 1"):
        bench.run(extract, FAST, bench.files("crawl", a__warc=image))
