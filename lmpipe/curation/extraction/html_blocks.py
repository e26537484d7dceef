"""HTML read as blocks of text, and its elements as intervals of them: one walk over libxml2's tree.

Trees are 256 levels deep at most, so that recursion is bounded; in a page of more than 9 MB they
are deeper, and a hostile one ends with the reason `recursion_limit`. Scripts, styles and mere menus
are cut before parsing, which is about half of the time. Not taken: a pass over the tags without a
tree, in plain Python: 2.0 ms a page of 44 kB where parsing and walking took 1.8 (LOG.md).
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from lxml import etree
from lxml.html import HtmlElement

from lmpipe.curation.extraction.depth import flattened, is_too_deep
from lmpipe.curation.extraction.line_breaks import CONTROLS, code_lines, is_line_number, words

MIN_PROSE_BYTES = 80  # about 14 words of English; UTF-8, so that 27 Han characters count as much
MAX_LINK_FRACTION = 0.5
HEADINGS = {f"h{level}": level for level in range(1, 7)}
_MAX_CELL_CHARACTERS = 300  # a table with longer cells is layout
_MAX_PLAIN_TREE_BYTES = 9_000_000  # libxml2 drops longer texts, unless asked for depth as well
_CUT = re.compile(rb"<(head|script|style|svg|noscript|select|button|nav|footer)(?=[\s/>])")
_CONTENT = re.compile(  # what a mere menu or box does not hold
    rb"<(?:body|p|pre|article|main|section|h1|h2|td|dd|nav|footer)[\s>]", re.IGNORECASE
)
_CLASSES = etree.ElementDefaultClassLookup(element=HtmlElement)  # what trafilatura reads
_CODE_CLASS = re.compile(r"(?:^|[\s_-])code(?=$|[\s_-])")  # code, blob-code, hljs-ln-code
_BREAK = "\v"  # stands for br among pieces of text, in which newlines are mere spaces

_JUNK = frozenset((
    "script", "style", "noscript", "template", "svg", "math", "iframe", "object", "embed", "canvas",
    "audio", "video", "head", "dialog", "map", *CONTROLS,
))  # fmt: skip
CODE_TAGS = ("pre", "xmp", "listing", "plaintext")
_CONTAINERS = (
    "div", "section", "article", "main", "header", "body", "dl", "figure", "figcaption", "address",
    "details", "fieldset", "center", "tbody", "thead", "tfoot", "tr", "hr", "html", "hgroup",
    "picture", "noindex", "nav", "footer", "aside", "form", "menu", "search", "legend", "marquee",
)  # fmt: skip
_TEXT_KINDS = ("p", "dt", "dd", "td", "th", "blockquote", "summary", "caption")
_BOILERPLATE_TAGS = frozenset(("nav", "footer", "aside", "form", "menu"))
_BOILERPLATE_ROLES = frozenset(
    ("navigation", "banner", "contentinfo", "complementary", "search", "dialog", "menu", "alert")
)
_BOILERPLATE_NAMES = re.compile(
    r"(?:^|[\s_-])(?:nav|navbar|navigation|menu|menubar|sidebar|footer|foot|footnav|masthead|topbar"
    r"|breadcrumbs?|shar(?:e|es|ing|ebar)|social|related|recommend(?:ed|ations?)?|recirc"
    r"|comments?|commentlist|disqus|respond|reply|cookies?|consent|gdpr|ads?|advert|advertisement"
    r"|sponsor(?:ed)?|promo|promotion|newsletter|subscri(?:be|ption)|signup|login|popup|modal"
    r"|overlay|toolbar|widget|pagination|pager|tags?|taglist|skip|paywall|outbrain|taboola"
    r"|most-?read|more-?(?:stories|news|from)|trending|popular|teasers?|byline|author-?(?:bio|box)"
    r"|linenos?|headerlink|toctree|search|hidden|caption|credits?)(?:$|[\s_-])"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NEVER_BOILERPLATE = frozenset(("body", "html", "article", "main"))
_ANCHORS = frozenset(("section", "p", "li", "dt", "dd", "span", *HEADINGS))  # ids say the topic


class Block(NamedTuple):
    """A stretch of text: its kind, and how many of its characters are inside links."""

    text: str
    kind: str
    link_characters: int
    prose: int


class Markup:
    """A page's blocks in order, and its elements as intervals of them.

    Args:
        root: what `parse_page` returns.
    """

    def __init__(self, root: Any) -> None:
        self.blocks: list[Block] = []
        self.intervals: list[tuple[int, int, str]] = []  # start, end, tag; inner before outer
        self.flagged: list[tuple[int, int]] = []  # start, end
        self._pieces: list[str] = []
        self._links = 0
        self._link_start = -1  # where in the pieces the open link began
        self._kind = "line"
        self._prefix = ""
        self._lists: list[int] = []  # numbers of the next items; -1 in lists without numbers
        self._handlers: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(_JUNK, _ignore),
            **dict.fromkeys(CONTROLS, self._control),
            **dict.fromkeys(_CONTAINERS, self._container),
            **dict.fromkeys(_TEXT_KINDS, self._text),
            **dict.fromkeys(("li", *HEADINGS), self._item),
            **dict.fromkeys(("ul", "ol", "dir"), self._list),
            **dict.fromkeys(CODE_TAGS, self._code),
            "table": self._table,
            "br": self._line_break,
            "a": self._link,
        }
        if root is not None:
            self._handlers.get(root.tag, self._inline)(root)
            self._flush()

    def _content(self, element: Any) -> None:
        """Walk what is in an element; what follows a child belongs to the element."""
        pieces = self._pieces
        if (text := element.text) and (pieces or not text.isspace()):
            pieces.append(text)
        handlers, inline = self._handlers, self._inline
        for child in element:
            handlers.get(child.tag, inline)(child)
            if (text := child.tail) and (pieces or not text.isspace()):
                pieces.append(text)

    def _inline(self, element: Any) -> None:
        attributes = element.items()
        if attributes and _is_boilerplate(element.tag, attributes):
            self._container(element)
        else:
            self._content(element)

    def _line_break(self, element: Any) -> None:
        self._break()
        self._content(element)

    def _break(self) -> None:
        self._pieces.append(_BREAK)

    def _control(self, element: Any) -> None:
        """Leave a control out; what is around it stands apart."""
        if self._pieces:
            self._pieces.append(" ")

    def _link(self, element: Any) -> None:
        if element.get("class") == "headerlink":
            return
        if self._link_start >= 0 or element.get("href") is None:
            self._content(element)
            return
        self._link_start = len(self._pieces)
        self._content(element)
        self._links += _size(self._pieces, self._link_start)
        self._link_start = -1

    def _container(self, element: Any) -> None:
        tag, attributes = element.tag, element.items()
        is_heading_part = self._kind in HEADINGS and not _is_boilerplate(tag, attributes)
        end_line = self._break if is_heading_part else self._flush  # a heading is one block
        end_line()
        start = len(self.blocks)
        self._content(element)
        end_line()
        if (end := len(self.blocks)) > start:
            is_article = ("itemprop", "articleBody") in attributes
            self.intervals.append((start, end, "article" if is_article else tag))
            if _is_boilerplate(tag, attributes):
                self.flagged.append((start, end))

    def _text(self, element: Any) -> None:
        self._flush()
        kind, self._kind = self._kind, element.tag
        self._container(element)
        self._kind = kind

    def _list(self, element: Any) -> None:
        self._flush()
        self._lists.append(1 if element.tag == "ol" else -1)
        self._container(element)
        self._lists.pop()

    def _item(self, element: Any) -> None:
        self._flush()
        start, tag = len(self.blocks), element.tag
        before = self._kind, self._prefix
        self._kind, self._prefix = tag, self._mark() if tag == "li" else ""
        self._content(element)
        self._flush()
        self._kind, self._prefix = before
        end = len(self.blocks)
        if end > start and _is_boilerplate(tag, element.items()):
            self.flagged.append((start, end))

    def _mark(self) -> str:
        number = self._lists[-1] if self._lists else -1
        if number > 0:
            self._lists[-1] += 1
        return "  " * max(0, len(self._lists) - 1) + (f"{number}. " if number > 0 else "- ")

    def _code(self, element: Any) -> None:
        self._flush()
        text = code_lines(element, _JUNK)
        if text.strip():
            self.blocks.append(Block(text, "pre", 0, len(text)))

    def _table(self, element: Any) -> None:
        if block := _code_table(element) or _data_table(element):
            self._flush()
            for caption in element.iterchildren("caption"):
                self._text(caption)
            self.blocks.append(block)
        else:
            self._container(element)

    def _flush(self) -> None:
        """End the block in work."""
        if not self._pieces:
            return
        text = "".join(self._pieces)
        if self._link_start >= 0:  # a link around blocks, as on cards
            self._links += _size(self._pieces, self._link_start)
            self._link_start = 0
        self._pieces.clear()
        if _BREAK in text:
            lines = [" ".join(line.split()) for line in text.split(_BREAK)]
            text = "\n".join(line for line in lines if line)
        else:
            text = " ".join(text.split())
        links, self._links = self._links, 0
        if text:
            self.blocks.append(_block(text, self._kind, min(links, len(text)), self._prefix))
            if self._prefix:
                self._prefix = " " * len(self._prefix)  # an item's further paragraphs are indented


def _ignore(element: Any) -> None:
    """Skip an element that holds no text of the page."""


def parse_page(html: str, utf8: bytes | None = None) -> Any:
    """Return a page's tree of `lxml.html.HtmlElement`, without its junk; None if it has none.

    Args:
        html: the page.
        utf8: the same as bytes, where they are at hand: encoding 170 kB takes 0.2 ms.
    """
    data = _without_junk(html.encode("utf-8", "replace") if utf8 is None else utf8)
    if not data.strip():
        return None
    parser = _parser(data)
    root = etree.fromstring(data, parser)
    if is_too_deep(parser):
        data = flattened(data)
        root = etree.fromstring(data, _parser(data))
    return root


def _parser(data: bytes) -> etree.HTMLParser:
    parser = etree.HTMLParser(
        encoding="utf-8",
        remove_comments=True,
        remove_pis=True,
        collect_ids=False,
        huge_tree=len(data) > _MAX_PLAIN_TREE_BYTES,
    )
    parser.set_element_class_lookup(_CLASSES)
    return parser


def _without_junk(data: bytes) -> bytes:
    """Cut scripts, styles, drawings and mere menus: much of a page, and costly to parse."""
    pieces: list[bytes] = []
    at = found = 0
    unclosed: set[bytes] = set()
    while match := _CUT.search(data, found):
        tag, found = match.group(1), match.end()
        end = -1 if tag in unclosed else data.find(b"</" + tag, found)
        if end < 0:
            unclosed.add(tag)
        elif tag not in (b"head", b"nav", b"footer") or not _CONTENT.search(data, found, end):
            pieces += (data[at:found], b">")
            at = found = end
    return b"".join([*pieces, data[at:]]) if pieces else data


def _block(text: str, kind: str, links: int, prefix: str = "") -> Block:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "ignore"))
    is_prose = size >= MIN_PROSE_BYTES and links <= MAX_LINK_FRACTION * len(text)
    prose = len(text) - links if is_prose and kind not in HEADINGS else 0
    return Block(prefix + text, kind, links, prose)


def _size(pieces: list[str], start: int) -> int:
    size = 0
    for piece in pieces[start:]:
        size += len(piece.strip())
    return size


def _string(element: Any) -> str:
    return "".join(element.itertext()) if len(element) else element.text or ""


def is_code_cell(cell: Any) -> bool:
    """Say whether a table's cell names itself one of code, as beside a cell of line numbers."""
    name = cell.get("class")
    return name is not None and _CODE_CLASS.search(name) is not None


def _code_table(table: Any) -> Block | None:
    """Return the code of a table whose other cells hold line numbers; None if it is another."""
    code: list[str] = []
    for row in table.iter("tr"):
        is_numbered = any(is_line_number(cell) for cell in row)
        for cell in row:
            if is_code_cell(cell) or (is_numbered and not is_line_number(cell)):
                code.append(code_lines(cell, _JUNK))
            elif not all(word.isdecimal() for word in _string(cell).split()):
                return None
    text = "\n".join(code).strip("\n")
    if all(word.isdecimal() for word in text.split()):
        return None
    return Block(text, "pre", 0, len(text))


def _data_table(table: Any) -> Block | None:
    """Return a table that holds data, a line for each row; None if it is there for layout."""
    if any(inner is not table for inner in table.iter("table", "pre", "ul", "ol")):
        return None
    lines: list[str] = []
    width = 0
    for row in table.iter("tr"):
        cells = []
        for cell in row:
            if cell.tag in ("td", "th"):
                cells.append(words(cell, _JUNK))
                if len(cells[-1]) > _MAX_CELL_CHARACTERS:
                    return None
        if any(cells):
            lines.append(" | ".join(cells))
            width = max(width, len(cells))
    if len(lines) < 2 or width < 2:
        return None
    links = sum(len(_string(link).strip()) for link in table.iter("a"))
    return _block("\n".join(lines), "table", links)


def _is_boilerplate(tag: str, attributes: list[tuple[str, str]]) -> bool:
    if tag in _BOILERPLATE_TAGS:
        return True
    if tag in _NEVER_BOILERPLATE:
        return False
    for name, value in attributes:
        if name == "class":
            is_bad = _is_boilerplate_name(value)
        elif name == "id":
            is_bad = tag not in _ANCHORS and _is_boilerplate_name(value)
        elif name == "style":
            is_bad = "display" in value and "display:none" in value.replace(" ", "")
        elif name == "role":
            is_bad = value in _BOILERPLATE_ROLES
        else:
            is_bad = name == "hidden" or (name == "aria-hidden" and value == "true")
        if is_bad:
            return True
    return False


@lru_cache(maxsize=8192)
def _is_boilerplate_name(name: str) -> bool:
    return _BOILERPLATE_NAMES.search(_CAMEL.sub("-", name).lower()) is not None
