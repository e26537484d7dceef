import random
import re

import pytest
from lxml import etree

from lmpipe.curation.extraction.block_text import walk_text
from lmpipe.curation.extraction.extractors import cascade, extract_text
from lmpipe.curation.extraction.html_blocks import parse_page
from lmpipe.curation.extraction.line_breaks import MARK
from lmpipe.curation.extraction.trafilatura_core import core_text

SENTENCE = "A sentence of the article that is long enough to be taken for prose by its length. "
PARAGRAPHS = "".join(f"<p>Part {n}. {SENTENCE * 3}</p>" for n in range(4))
BLOCKS = {"address", "article", "blockquote", "body", "caption", "dd", "details", "div", "dl", "dt",
          "figcaption", "figure", "h2", "h3", "hgroup", "hr", "html", "li", "ol", "p", "section",
          "summary", "table", "td", "th", "tr", "ul"}  # fmt: skip
PARTING = BLOCKS | {"br", "button", "option", "select"}
_WORD = re.compile(r"q\d+z")


def page(inside: str, around: str) -> str:
    return f"<html><body><{around}>{PARAGRAPHS}{inside}<p>{SENTENCE}</p></{around}></body></html>"


def found(text: str) -> str:
    """Return what stands between the paragraphs of `page`."""
    return text.rpartition("Part 3. " + (SENTENCE * 3).strip())[2].rpartition(SENTENCE.strip())[0]


TABLE = "<table><tr>{}</tr><tr><td>1</td><td>2</td></tr></table>"


@pytest.mark.parametrize("around", ["article", "div"])
@pytest.mark.parametrize(("markup", "words"), [
    (TABLE.format("<td>Monday<br>Tuesday</td><td><p>morning</p><p>evening</p></td><td><div>Anna"
                  "</div><div>Bruno</div></td>"), "Monday Tuesday morning evening Anna Bruno 1 2"),
    (TABLE.format("<td>One<hr>two<h3>three</h3>four<blockquote>five</blockquote></td><td>7</td>"),
     "One two three four five 7 1 2"),
    (TABLE.format("<th>One<button>No</button>two</th><th>t<b>hr</b>e<wbr><i>e</i></th>"),
     "One two three 1 2"),
    ("<table><caption>One<br>two<p>three</p></caption><tr><td>1<td>2<tr><td>3<td>4</table>",
     "One two three 1 2 3 4"),
    ("<ul><li>One<br>two<div>three</div><p>four</p>five</li><li><div>six</div><div>seven</div></li>"
     "</ul>", "One two three four five six seven"),
    (f"<h2><div>One</div><div>two</div>three<br>four</h2><p>{SENTENCE}</p>", "One two three four"),
    ("<dl><dt>One<br>two</dt><dd>three<p>four</p><div>five</div>six</dd></dl>",
     "One two three four five six"),
    ("<blockquote>One<br>two<p>three</p><div>four</div>five</blockquote>",
     "One two three four five"),
    ("<p>One.<br>Two<button>No</button>three<select><option>No</option></select>fo<b>u</b>r.</p>",
     "One. Two three four."),
])  # fmt: skip
def test_words_of_different_blocks_are_parted_and_inline_elements_part_none(
    markup: str, words: str, around: str
) -> None:
    text, extracted_by = cascade(page(markup, around))
    assert extracted_by == ("trafilatura_core" if around == "article" else "walk")
    assert re.findall(r"[\w.]+", found(text))[: len(words.split())] == words.split()


@pytest.mark.parametrize(("markup", "lines"), [
    ("<pre>for a in b:<br>    c = d<br>print(c)</pre>", ["for a in b:", "    c = d", "print(c)"]),
    ("<pre><div>one</div><div>  two</div><div><br></div><div>four</div></pre>",
     ["one", "  two", "", "four"]),
    ("<pre><div>one\n</div>\n<div>  two\n</div><div>\n</div><div>four</div></pre>",
     ["one", "  two", "", "four"]),
    ("<pre><code><span class='line'>one</span><span class='line'>  t<i>w</i>o</span></code></pre>",
     ["one", "  two"]),
    ("<pre><code><span class=line>one</span>\n<span class=line></span>\n<span class=line>  two"
     "</span></code></pre>", ["one", "", "  two"]),
    ("<pre><span style='display: block'>one\n</span><span style='display:block'>two\n</span></pre>",
     ["one", "two"]),
    ("<pre>x = <span class='comment multi-line'>1</span>\ny</pre>", ["x = 1", "y"]),
    ("<pre><ol><li>one</li><li>  two</li></ol></pre>", ["one", "  two"]),
    ("<pre><span class=lineno>1 </span>one\n<span class=lineno>2 </span>  two</pre>",
     ["one", "  two"]),
    ("<pre>ab<wbr>c<button>Copy</button></pre><p>x", ["abc"]),
    ("<table class=highlighttable><tr><td class=linenos><pre>1\n2</pre></td><td class=code><pre>one"
     "\n  two</pre></td></tr></table>", ["one", "  two"]),
    ("<table><tr><td class=blob-num data-line-number=1></td><td class=blob-code>one</td></tr><tr>"
     "<td class=blob-num></td><td class='blob-code js'>    <span>two</span></td></tr></table>",
     ["one", "    two"]),
    ("<table><tr><td class=gutter><div class='line number1'>1</div><div class='line number2'>2"
     "</div></td><td class=code><div><div class='line number1'>one</div><div class='line'>  two"
     "</div></div></td></tr></table>", ["one", "  two"]),
    ("<table><tr><td class=ln>1</td><td>one</td></tr><tr><td class=ln>2</td><td>  two</td></tr>"
     "</table>", ["one", "  two"]),
    ("<xmp>one\n  two</xmp>", ["one", "  two"]),
])  # fmt: skip
@pytest.mark.parametrize("around", ["article", "div"])
def test_code_keeps_its_lines(markup: str, lines: list[str], around: str) -> None:
    if around == "article" and "class=ln" in markup:
        return
    text, extracted_by = cascade(page(markup, around))
    assert extracted_by == "walk"
    assert found(text).strip("\n").split("\n")[: len(lines)] == lines


def test_a_column_of_codes_beside_names_is_a_table() -> None:
    rows = "".join(f"<tr><td>Town {n}</td><td class=zip-code>1011{n}</td></tr>" for n in range(3))
    assert "Town 1 | 10111\n" in cascade(page(f"<table>{rows}</table>", "div"))[0]


@pytest.mark.parametrize("around", ["article", "div"])
def test_a_page_keeps_the_symbol_that_serves_as_mark(around: str) -> None:
    assert f"Use {MARK} for a space." in cascade(page(f"<p>Use {MARK} for a space.</p>", around))[0]
    short = f"<body><ul><li>Use {MARK} here</li></ul></body>"
    assert MARK in cascade(short)[0]


class Pages:
    """Random nests of elements, whose words are all different, with hardly a space between."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._num_words = 0

    def word(self) -> str:
        self._num_words += 1
        return f"q{self._num_words}z"

    def line(self) -> str:
        """Return a word or some, partly in inline elements."""
        pieces = [self.word()]
        for _ in range(self._draw.randrange(3)):
            tag = self._draw.choice(("b", "i", "span", "em", "a href=/x", "code", "br", "button"))
            end = "" if tag == "br" else f"{self.word()}</{tag.split()[0]}>"
            gap = " " if tag == "code" else ""
            pieces += (gap, f"<{tag}>{end}", gap or self._draw.choice((self.word(), "", " ")))
        return "".join(pieces)

    def blocks(self, depth: int) -> str:
        """Return elements of all kinds with text between them."""
        between = (self.line, self.word, str, str, lambda: "\n ")
        num_blocks = self._draw.randint(1, 3)
        return "".join(
            self._draw.choice(between)() + self._block(depth) for _ in range(num_blocks)
        ) + self._draw.choice((self.word(), ""))

    def _block(self, depth: int) -> str:
        draw = self._draw
        inner = (lambda: self.blocks(depth - 1)) if depth and draw.random() < 0.6 else self.line
        tag = draw.choice(("div", "p", "ul", "ol", "dl", "blockquote", "h2", "table", "section",
                           "address", "details", "hr", "select"))  # fmt: skip
        if tag in ("hr", "select"):
            return "<hr>" if tag == "hr" else f"<select><option>{self.word()}</option></select>"
        if tag in ("ul", "ol"):
            return f"<{tag}>" + f"<li>{inner()}</li><li>{self.line()}</li>" + f"</{tag}>"
        if tag == "dl":
            return f"<dl><dt>{self.line()}</dt><dd>{inner()}</dd></dl>"
        if tag == "table":
            rows = f"<tr><td>{inner()}</td><td>{self.line()}</td></tr>"
            caption = f"<caption>{self.line()}</caption>" if draw.random() < 0.3 else ""
            return f"<table>{caption}{rows}<tr><td>{inner()}</td><td>{inner()}</td></tr></table>"
        if tag == "details":
            return f"<details><summary>{self.line()}</summary>{inner()}</details>"
        return f"<{tag}>{self.line() if tag == 'p' else inner()}</{tag}>"


def inner_text(html: str) -> str:
    """Return a page's text as HTML's `innerText` has it, as far as white space matters."""

    def walk(element: etree._Element) -> str:
        edge = "\n" if element.tag in PARTING else ""
        inside = (element.text or "") + "".join(
            walk(child) + (child.tail or "") for child in element
        )
        return edge + inside + edge

    return walk(etree.fromstring(html, etree.HTMLParser()))


def glued(text: str, html: str) -> list[str]:
    """Return the words of a text that hold several of the page's."""
    numbers = {
        word: number
        for number, token in enumerate(inner_text(html).split())
        for word in _WORD.findall(token)
    }
    tokens = [(token, {numbers[word] for word in _WORD.findall(token)}) for token in text.split()]
    return [token for token, words in tokens if len(words) > 1]


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_no_two_words_of_different_blocks_are_glued(first: int) -> None:
    num_words = 0
    for seed in range(first, first + 40):
        inside = Pages(seed).blocks(2)
        for around in ("article", "div"):
            html = page(inside, around)
            texts = [
                walk_text(parse_page(html)).text,
                core_text(parse_page(html)).text,
                extract_text("trafilatura_fast", html, is_parted=True),
            ]
            for text in texts[::] if around == "article" else texts[::2]:
                assert glued(text, html) == [], (seed, around, inside)
                num_words += len(_WORD.findall(text))
    assert num_words > 1000
