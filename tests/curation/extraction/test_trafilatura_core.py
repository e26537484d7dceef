from pathlib import Path

import pytest

from lmpipe.curation.crawl.http import decode_text, page_charset
from lmpipe.curation.crawl.warc import Census, WarcPages
from lmpipe.curation.extraction.element_names import has_frame
from lmpipe.curation.extraction.extractors import cascade, clean_text, extract_text
from lmpipe.curation.extraction.html_blocks import parse_page
from lmpipe.curation.extraction.trafilatura_core import core_text

REAL = Path(__file__).parents[2] / "data" / "warc" / "real"
SENTENCE = "A sentence of the article that is long enough to be taken for prose by its length. "
PROSE = "".join(f"<p>Part {n}. {SENTENCE * 3}</p>" for n in range(4))
LINKS = "".join(f"<a href=/{n}>Link {n}</a> " for n in range(8))


def pages(name: str) -> list[str]:
    census = Census()
    documents = WarcPages(REAL / name, name, "web", 10_000_000, census).run()
    bodies = [d.metadata for d in documents if "body" in d.metadata]
    return [decode_text(b["body"], page_charset(b["body"], b["header_charset"])) for b in bodies]


def bare(text: str) -> str:
    """Return a text without white space, of which trafilatura leaves out some between blocks."""
    return "".join(clean_text(text).split())


@pytest.mark.parametrize(
    ("name", "least"), [("wget-2024-0.warc.gz", 5), ("common-crawl-2020.warc.lz4", 1)]
)
def test_the_text_of_real_pages_is_that_of_trafilatura(name: str, least: int) -> None:
    num_texts = 0
    for html in pages(name):
        root = parse_page(html)
        text, doubt = ("", "no tree") if root is None else core_text(root)
        if not doubt:
            num_texts += 1
            assert bare(text) == bare(extract_text("trafilatura_fast", html))
    assert num_texts >= least


@pytest.mark.parametrize("markup", [
    f"<article>{PROSE}</article>",
    f"<main><div class=entry-content>{PROSE}</div></main>",
    f"<section id=story-body>{PROSE}</section>",
    f"<div role=main class=Main-Content>{PROSE}</div>",
    f"<div class=mainly>{PROSE}</div>",
    f"<article>Text of its own.{PROSE}and after it</article>",
    f"<div class=post-text>{SENTENCE * 3}<br>{SENTENCE}<br><b>Bold</b> {SENTENCE}</div>",
    f"<article><div>{SENTENCE * 4}</div><div>{SENTENCE}</div></article>",
    f"<article>{PROSE}<ol><li>one<ul><li>inner</ul><li><p>two<p>more</ol>after it{PROSE}</article>",
    f"<article>{PROSE}<table><tr><th>Name<th>Use<tr><td>a<td>first</table>tail</article>",
    f"<article>{PROSE}<table role=none><tr><td>{SENTENCE}</table>{PROSE}</article>",
    f"<article>{PROSE}<figure><table><tr><td>{SENTENCE}<td>x</table></figure></article>",
    f"<article>{PROSE}<blockquote>Quoted <i>words</i></blockquote>tail<h2>Last</h2></article>",
    f"<article>{PROSE}<p>Twice {SENTENCE}</p><p>Twice {SENTENCE}</p></article>",
    f"<article>{PROSE}<dl><dt>term<dd>what it is</dl><details><summary>S</summary>D</details>",
    f"<article>{PROSE}<div class=w3-code>x = 1</div><code>y</code></article>",
    f"<article>{PROSE}<div class=share-bar>Share</div><p class='x teaser'>{SENTENCE}</p></article>",
    f"<article class=sidebar>{PROSE}<div class=sidebar>{PROSE * 40}</div></article>",
    f"<article>{PROSE}<p id=hidden style=a>{SENTENCE}</p><b style='display:none'>No</b></article>",
    f"<article>{PROSE}<div class=caption>{SENTENCE}</div><b aria-hidden=true>No</b></article>",
    f"<article>{PROSE}<div>{LINKS}</div><p>{LINKS}</p><ul><li>{LINKS}</ul></article>",
    f"<article>{PROSE}<div>{LINKS}{SENTENCE}</div><p>{LINKS}{SENTENCE * 2}</p></article>",
    f"<article>{PROSE}<div><p><a href=/>{SENTENCE * 2}</a></p></div>{PROSE}</article>",
    f"<article>{PROSE}</article><div id=comments>{PROSE}</div><ul class=commentlist><li>No</ul>",
    f"<article>{PROSE}</article><div class=infinite-scroll><article>{PROSE}</article></div>",
    f"<form action=/><article>{PROSE}</article></form>",
    f"<article>{PROSE}<form><p>Search</p></form><math><annotation encoding='application/x-tex'>x^2"
    f"</annotation></math> tail<aside>{SENTENCE}</aside></article>",
    f"<div class=post-content></div><article>{PROSE}</article>",
])  # fmt: skip
def test_the_rules_are_those_of_trafilatura(markup: str) -> None:
    html = f"<html><body><h1>Title</h1>{markup}<footer>End</footer></body></html>"
    found = core_text(parse_page(html))
    assert found.doubt == ""
    assert "Part 3." in found.text or SENTENCE.strip() in found.text
    assert bare(found.text) == bare(extract_text("trafilatura_fast", html))


def test_lists_quotes_and_tables_survive_where_a_page_names_its_content() -> None:
    items = "<ul><li>first<ul><li>inner item</li></ul></li><li>second</li></ul>"
    rows = "<tr><th>Name<th>Use</tr><tr><td>alpha<td>first\n one</tr><tr><td>b<td>x</tr>"
    quote = "<blockquote>Quoted words</blockquote><h2>Next</h2><p>Use <code>x = 1</code>.</p>"
    html = f"<html><body><main>{PROSE}{items}<table>{rows}</table>{quote}</main></body></html>"
    text, extracted_by = cascade(html)
    assert extracted_by == "trafilatura_core"
    for expected in ("- first\n  - inner item\n- second\n", "| alpha | first one |", "| b | x |",
                     "\nQuoted words\nNext\nUse x = 1."):  # fmt: skip
        assert expected in text


def test_a_frame_of_which_over_a_quarter_would_be_lost_is_doubted() -> None:
    bare = f"<div>Bare text beside paragraphs. {SENTENCE}</div>"
    for num_bare, doubt in ((1, ""), (8, "lossy_frame")):
        html = f"<html><body><article>{PROSE}{bare * num_bare}</article></body></html>"
        assert core_text(parse_page(html)).doubt == doubt
        assert "Bare" not in extract_text("trafilatura_fast", html)
        text, extracted_by = cascade(html)
        assert ("Bare" in text) == bool(doubt)
        assert extracted_by == (f"walk: {doubt}" if doubt else "trafilatura_core")


@pytest.mark.parametrize(("html", "doubt"), [
    ("<html><body><article><p>Few words.</article></body></html>", "short_frame"),
    (f"<html><body><div>{PROSE}</div></body></html>", "short_frame"),
    ("<html><body><article><p>" + "Words with \x01 in them. " * 40, "bad_characters"),
    (f"<html><body><article>{PROSE}</article><p class=comments>No</p>\x01", ""),
    (f"<html><body><article>{PROSE}</article><div class=comments>No</div>\x01", "bad_characters"),
])  # fmt: skip
def test_the_doubt_says_what_is_wrong(html: str, doubt: str) -> None:
    assert core_text(parse_page(html)).doubt == doubt


def test_a_page_says_whether_it_names_its_content() -> None:
    for markup in ("<article>", "<main>", "<div class=content>", "<div itemprop=articleBody>"):
        assert has_frame(parse_page(f"<html><body>{markup}{PROSE}"))
    assert not has_frame(parse_page(f"<html><body><div id=page>{PROSE}"))
