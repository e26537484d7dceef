import pytest

from lmpipe.curation.crawl.http import decode_text
from lmpipe.curation.extraction.block_text import WalkText, walk_text
from lmpipe.curation.extraction.extractors import cascade, clean_text, extract_page, extract_text
from lmpipe.curation.extraction.html_blocks import _without_junk, parse_page

SENTENCE = "A sentence of the article that is long enough to be taken for prose by its length. "
PARAGRAPHS = "".join(f"<p>Part {n}. {SENTENCE * 3}</p>" for n in range(4))


def walked(html: str) -> WalkText:
    return walk_text(parse_page(html))


def page(inside: str, around: str = "") -> str:
    return (
        f"<html><body>{around}<div id='c'>{PARAGRAPHS}{inside}<p>{SENTENCE}</p></div></body></html>"
    )


@pytest.mark.parametrize("clutter", [
    "<nav><a href=/>Home of the clutter</a></nav>",
    "<footer>Clutter 2024</footer>",
    "<div class='share-buttons'>Share the clutter</div>",
    "<div class='relatedLinks'><p>Clutter that one may read as well. " + SENTENCE + "</p></div>",
    "<div id=comments><p>clutter! " + SENTENCE + "</p></div>",
    "<div role=navigation>Clutter</div>",
    "<div style='display: none'>Clutter</div>",
    "<script>var clutter = '<p>clutter</p>';</script>",
    "<SCRIPT>clutter()</SCRIPT>",
    "<ul><li><a href=/1>Clutter one</a></li><li><a href=/2>Clutter two</a></li></ul>",
    "<div>Clutter that is no sentence</div>",
])  # fmt: skip
def test_boilerplate_does_not_survive(clutter: str) -> None:
    for html in (page(clutter), page("", clutter)):
        text, doubt = walked(html)
        assert "clutter" not in text.lower()
        assert text.count("Part ") == 4
        assert doubt == ""


def test_a_wrapper_with_the_name_of_boilerplate_that_holds_the_page_is_believed() -> None:
    text, _ = walked(f"<body><div class='with-sidebar'>{PARAGRAPHS}</div></body>")
    assert text.count("Part ") == 4


def test_the_id_of_a_section_is_its_topic_and_no_mark_of_boilerplate() -> None:
    text, _ = walked(page(f"<section id=comments><h2>Comments</h2><p>{SENTENCE}</p></section>"))
    assert "Comments\nA sentence" in text


def test_code_keeps_its_lines_and_indentation() -> None:
    code = "def f(x):\n    if x:\n        return <b>1</b>\n\n\treturn 2  \n"
    text, _ = walked(page(f"<div class='highlight'><pre>\n{code}</pre></div>"))
    assert "def f(x):\n    if x:\n        return 1\n\n        return 2\n" in text


def test_tables_are_readable_and_those_for_layout_are_walked() -> None:
    rows = "<tr><th>Name<th>Use</tr><tr><td>alpha</td><td>first\n one</td></tr><tr><td>b<td>x</tr>"
    text, _ = walked(page(f"<table>{rows}</table>"))
    assert "Name | Use\nalpha | first one\nb | x\n" in text
    layout = f"<table><tr><td><p>{SENTENCE * 4}</p></td><td>{PARAGRAPHS}</td></tr></table>"
    text, _ = walked(f"<body>{layout}</body>")
    assert " | " not in text
    assert text.count("Part ") == 4


def test_lists_keep_their_marks_numbers_and_nesting() -> None:
    items = (
        "<ol><li>first<ul><li>inner item</li></ul></li><li><p>second</p><p>more of it</p></li></ol>"
    )
    text, _ = walked(page(items))
    assert "1. first\n  - inner item\n2. second\n   more of it\n" in text


def test_headings_stay_where_text_follows_them_and_go_where_none_does() -> None:
    text, _ = walked(page(f"<h2>Kept</h2><p>{SENTENCE}</p><h2>Read on</h2><ul></ul><h2>Last</h2>"))
    assert "Kept\nA sentence" in text
    assert "Read on" not in text


def test_links_within_prose_stay_and_blocks_of_links_do_not() -> None:
    prose = f"<p>{SENTENCE}<a href=/x>and a link</a>, in the middle.</p>"
    text, _ = walked(page(prose + "<a href=/y><div><p>" + SENTENCE + "Card</p></div></a>"))
    assert "and a link, in the middle." in text
    assert "Card" not in text


def test_han_prose_needs_no_spaces() -> None:
    sentence = "這是一個足夠長的句子，用來說明沒有空格的文字也會被當作正文，而不是選單。" * 6
    text, doubt = walked(f"<body><nav>選單</nav><div><p>{sentence}</p><p>{sentence}</p></div>")
    assert text.startswith("這是")
    assert doubt == ""


@pytest.mark.parametrize(("html", "doubt"), [
    ("", "no_prose"),
    ("<!-- nothing -->", "no_prose"),
    ("<body><p>Short.</p></body>", "no_prose"),
    (f"<body><p>{SENTENCE}</p></body>", ""),
    (f"<body><p>{SENTENCE}</p>{'<div>Some words beside it</div>' * 20}</body>", "little_text"),
    ("<body>" + f"<div><p>{SENTENCE * 20}</p></div>{'<i>x</i><hr>' * 1800}" * 4, "scattered"),
    (f"<p>{SENTENCE * 20}" + f"<div class=reply><p>{SENTENCE * 17}</p></div>" * 3, "much_hidden"),
])  # fmt: skip
def test_the_walk_says_why_it_may_be_wrong(html: str, doubt: str) -> None:
    assert walked(html).doubt == doubt


def test_the_cascade_walks_what_names_no_content_and_asks_trafilatura_only_in_doubt() -> None:
    assert cascade(page("")) == (walked(page("")).text, "walk")
    words = "<div>Some words beside it</div>" * 60
    text, extracted_by = cascade(f"<html><body>{words}<p>{SENTENCE}</p></body></html>")
    assert extracted_by == "trafilatura_fast: little_text"
    assert SENTENCE.strip() in text
    assert cascade("<p></p>") == ("", "walk: no_prose")


def test_a_doubted_text_that_is_long_stands() -> None:
    here = f"<div class=a><p>{SENTENCE * 34}</p></div>"
    elsewhere = f"<div class=b><p>{SENTENCE * 6}</p><p>{SENTENCE}</p></div>"
    html = f"<html><body>{here}{'<div>Some words</div>' * 300}{elsewhere}</body></html>"
    assert cascade(html) == (walked(html).text, "walk: scattered")


def test_where_a_page_names_its_content_trafilaturas_rules_read_it() -> None:
    clutter = "<p class=teaser-related>Clutter in some words</p>"
    html = f"<html><body><div>{PARAGRAPHS}</div><article>{clutter}{PARAGRAPHS}</article></body>"
    text, extracted_by = cascade(html)
    assert extracted_by == "trafilatura_core"
    assert text.count("Part ") == 4
    assert "Clutter" not in text


def test_code_is_walked_also_where_a_page_names_its_content() -> None:
    text, extracted_by = cascade(page("<main><pre>def f():\n    return 1</pre></main>"))
    assert extracted_by == "walk"
    assert "def f():\n    return 1" in text


def test_a_named_content_of_few_words_leaves_the_page_to_the_walk() -> None:
    here = f"<div class=a><p>{SENTENCE * 34}</p></div>"
    elsewhere = f"<div class=b><p>{SENTENCE * 6}</p></div>{'<div>Some words</div>' * 300}"
    text, extracted_by = cascade(
        f"<body><article><p>Few words.</p></article>{here}{elsewhere}</body>"
    )
    assert extracted_by == "walk: short_frame, scattered"
    assert text.count("A sentence") == 34


@pytest.mark.parametrize(
    ("html", "doubt"),
    [
        (f"<article><p>Few words.</p></article><div>{PARAGRAPHS * 2}</div>", "short_frame"),
        (f"<div>{PARAGRAPHS}</div>" + "<div>Some words beside it</div>" * 200, "little_text"),
        ("<div>A line.</div>" * 300, "no_prose"),
    ],
)
def test_trafilatura_is_asked_also_where_the_walk_found_much(html: str, doubt: str) -> None:
    page = f"<html><body>{html}</body></html>"
    assert len(walked(page).text) > 1000
    text, extracted_by = cascade(page)
    assert extracted_by == f"trafilatura_fast: {doubt}"
    assert "".join(text.split()) == "".join(extract_text("trafilatura_fast", page).split())


def test_a_page_of_megabytes_is_walked() -> None:
    bold = "".join(f"<b>{number}</b> {SENTENCE}" for number in range(30_000))
    text, extracted_by = cascade(f"<html><body><article><p>{bold}</p></article></body></html>")
    assert extracted_by == "walk"
    assert len(text) > 2_000_000


def test_a_head_is_cut_before_parsing_unless_the_page_is_in_it() -> None:
    head = "<head><title>Head</title></head>"
    assert b"title" not in _without_junk(f"<html>{head}<body>{PARAGRAPHS}".encode())
    for inside in (f"<head><body>{PARAGRAPHS}</head>", f"<head>{PARAGRAPHS}</head>"):
        assert walked(f"<html>{inside}</html>").text.count("Part ") == 4


@pytest.mark.parametrize("tag", ["div", "blockquote", "ul", "span class=share", "table", "li"])
def test_deep_nesting_ends_without_a_recursion_error(tag: str) -> None:
    end = f"</{tag.split()[0]}>"
    deep = f"<{tag}>" * 5000 + f"<p>{SENTENCE * 5}</p>" + end * 5000
    text, _ = walked(f"<body>{deep}<p>{SENTENCE * 9}</p></body>")
    assert isinstance(text, str)


def test_a_text_of_more_than_ten_megabytes_is_read_whole() -> None:
    text, doubt = walked(f"<body><p>{SENTENCE * 130_000}</p></body>")
    assert len(text) == len(SENTENCE) * 130_000 - 1
    assert doubt == ""


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "latin-1", "utf-16-le"])
@pytest.mark.parametrize("bad", [b"", b"\xff\xfe", b"\0"])
def test_a_page_reads_alike_from_its_own_bytes_and_from_its_text(charset: str, bad: bytes) -> None:
    body = page("<p>Größe, naïve façade</p>", "<nav>Menü</nav>").encode(charset) + bad
    text, found, extracted_by = extract_page(("cascade", body, None))
    html = decode_text(body, found)
    assert text == clean_text(walked(html).text)
    assert extracted_by == "walk"
