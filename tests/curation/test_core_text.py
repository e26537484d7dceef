from pathlib import Path

import pytest

from lmpipe.curation.core_text import MIN_CORE_CHARACTERS, core_text
from lmpipe.curation.html import clean_text, extract_text
from lmpipe.curation.http import decode_text, page_charset
from lmpipe.curation.markup import Markup
from lmpipe.curation.warc import Census, WarcPages

REAL = Path(__file__).parents[1] / "data" / "warc" / "real"


def pages(name: str) -> list[str]:
    census = Census()
    documents = WarcPages(REAL / name, name, "web", 10_000_000, census).run()
    bodies = [d.metadata for d in documents if "body" in d.metadata]
    return [decode_text(b["body"], page_charset(b["body"], b["header_charset"])) for b in bodies]


@pytest.mark.parametrize(
    "name", ["wget-2024-0.warc.gz", "common-crawl-2020.warc.lz4", "archive-org-2008.warc.gz"]
)
def test_the_steps_give_what_trafilatura_gives_on_most_real_pages(name: str) -> None:
    equal = []
    for html in pages(name):
        text = clean_text(core_text(Markup(html).root))
        if len(text) >= MIN_CORE_CHARACTERS:
            equal.append(text == clean_text(extract_text("trafilatura_fast", html)))
    assert len(equal) > 0
    assert sum(equal) >= 0.8 * len(equal)


def test_a_page_without_a_tree_and_one_that_xml_cannot_hold_have_no_text() -> None:
    assert core_text(Markup("").root) == ""
    words = "<p>" + "Words with \x01 in them. " * 40
    assert core_text(Markup(f"<html><body><article>{words}</article></body></html>").root) == ""
