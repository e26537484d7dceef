"""Where words and lines end although no white space says so: at `br` and at the edges of blocks.

HTML's `innerText` is the model: a block begins and ends on a line of its own, a cell, a list item
or a form control stands apart from its neighbours, and inline elements part nothing. The HTML may
hold no space at such an edge (minified pages hold none), so that joining texts glues words:
`<td>Monday<br>Tuesday</td>`. A walk with handlers breaks lines as it goes (markup.py); what is here
is for texts that are taken whole (cells, code) and for trees that go to trafilatura.
"""

import re
from collections.abc import Callable
from typing import Any

from lxml import etree
from trafilatura.settings import MANUALLY_CLEANED, MANUALLY_STRIPPED

MARK = "\u2420"  # the symbol for a space; trafilatura drops characters that are not printable
CONTROLS = frozenset(("button", "input", "select", "option", "optgroup", "textarea"))
BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details",
    "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1",
    "h2", "h3", "h4", "h5", "h6", "header", "hgroup", "hr", "html", "legend", "li", "listing",
    "main", "marquee", "menu", "nav", "ol", "p", "plaintext", "pre", "search", "section", "summary",
    "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul", "xmp",
))  # fmt: skip
_INLINE_LEFT_OUT = ("label", "output", "time")  # by trafilatura
_LEFT_OUT = (
    *_INLINE_LEFT_OUT,
    *sorted((BLOCKS | CONTROLS) & {*MANUALLY_CLEANED, *MANUALLY_STRIPPED}),
)
_KEPT = frozenset(("code", "del", "s", "strike"))  # inline elements that trafilatura keeps
_CONVERTED = frozenset(("head", "item", "lb", "list", "quote"))  # trafilatura's own names
_EDGES = BLOCKS | CONTROLS | _CONVERTED | {*_INLINE_LEFT_OUT, "br"}
_BLOCK_STYLE = re.compile(r"display\s*:\s*(?:block|flex|grid|table|list-item)\b")
_LINE_CLASS = re.compile(r"(?:^|[\s_-])line(?=$|\s)")  # line, token-line, view-line, cm-line
_NUMBER_CLASS = re.compile(
    r"(?:^|[\s_-])(?:line-?numbers?|line-?nos?|ln(?:-n(?:um(?:ber)?s?)?)?|gutter)(?=$|[\s_-])"
)


def mark_edges(tree: Any) -> None:
    """Put a mark before each word that follows the edge of a block or a control.

    For trafilatura, which trims texts and then joins them, so that white space would not do; also
    beside inline elements that it keeps, where there is white space.
    """
    has_text = is_edge = is_kept = is_space = False  # since the last text
    for event, element in etree.iterwalk(tree, events=("start", "end")):
        tag = element.tag
        is_edge = is_edge or tag in _EDGES
        is_kept = is_kept or tag in _KEPT
        if event == "start":
            text = element.text if tag not in ("script", "style") else None
        else:
            text = element.tail
        if not text:
            continue
        word = text.lstrip()
        is_space = is_space or len(word) < len(text)
        if word:
            if has_text and (is_edge or (is_kept and is_space)):
                setattr(element, "text" if event == "start" else "tail", MARK + word)
            has_text, is_edge, is_kept, is_space = True, False, False, text[-1].isspace()


def mark_left_out(tree: Any) -> None:
    """Put a mark before each word that follows an element that trafilatura takes out."""
    for element in tree.iterdescendants(*_LEFT_OUT):
        if element.tag in MANUALLY_STRIPPED:
            element.text = _marked(element.text)
        mark_after(element)


def mark_after(element: Any) -> None:
    """Put a mark before the word that touches the end of an element."""
    while not element.tail and element.getnext() is None and element.getparent() is not None:
        element = element.getparent()
    if element.tail:
        element.tail = _marked(element.tail)
    elif (following := element.getnext()) is not None:
        following.text = _marked(following.text)


def _marked(text: str | None) -> str | None:
    return MARK + text if text and not text[0].isspace() else text


def unmark(text: str) -> str:
    """Return a text with a space for each mark, or nothing where a line begins."""
    if MARK not in text:
        return text
    text = re.sub(rf"^( *){MARK}[ {MARK}]*", r"\1", text, flags=re.MULTILINE)
    return re.sub(rf" *{MARK}[ {MARK}]*", " ", text)


def words(element: Any, junk: frozenset[str]) -> str:
    """Return an element's text on one line.

    Args:
        junk: tags of elements that hold no text of the page.
    """
    if len(element) == 0:
        return " ".join((element.text or "").split())
    return " ".join(_Lines(junk).read(element).split())


def code_lines(element: Any, junk: frozenset[str]) -> str:
    """Return the text of preformatted code, without line numbers that are marked as such.

    Args:
        junk: tags of elements that hold no text of the page.
    """
    text = element.text or ""
    if len(element):
        has_newlines = "\n" in "".join(element.itertext()).strip()
        text = _Lines(junk, is_line_number, _is_block if has_newlines else _is_line).read(element)
    return "\n".join(line.rstrip() for line in text.expandtabs(8).split("\n")).strip("\n")


def is_line_number(element: Any) -> bool:
    """Say whether an element is the number of a line of code, by its name and its text."""
    name = element.get("class")
    if not name or element.tag == "code" or not _NUMBER_CLASS.search(name.lower()):
        return False
    numbers = "".join(element.itertext()).split()
    return all(number.rstrip(".:|").isdecimal() for number in numbers)


def _is_block(element: Any) -> bool:
    style = element.get("style")
    return style is not None and _BLOCK_STYLE.search(style) is not None


def _is_line(element: Any) -> bool:
    """Say whether an inline element is a block by its style, or a line by its name."""
    return _is_block(element) or _LINE_CLASS.search(element.get("class", "")) is not None


def _never(element: Any) -> bool:
    return False


class _Lines:
    """Reads texts in order, with a newline for each `br` and at least one at each block's edge.

    Args:
        junk: tags of elements to leave out.
        is_left_out: says so of other elements.
        is_block: says of elements that are inline by their tag whether they are blocks.
    """

    def __init__(
        self,
        junk: frozenset[str],
        is_left_out: Callable[[Any], bool] = _never,
        is_block: Callable[[Any], bool] = _never,
    ) -> None:
        self._junk, self._is_left_out, self._is_block = junk, is_left_out, is_block
        self._pieces: list[str] = []
        self._is_after_block = False

    def read(self, element: Any) -> str:
        """Return the text of an element."""
        self._walk(element)
        return "".join(self._pieces)

    def _walk(self, element: Any) -> None:
        self._add(element.text)
        for child in element:
            tag = child.tag
            if tag in self._junk or self._is_left_out(child):
                self._add(" " if tag in CONTROLS else None)
            elif tag == "br":
                self._add("\n", is_break=True)
            elif tag in BLOCKS or self._is_block(child):
                self._begin_line()
                self._walk(child)
                self._is_after_block = True
            else:
                self._walk(child)
            self._add(child.tail)

    def _add(self, text: str | None, *, is_break: bool = False) -> None:
        if text and self._is_after_block:
            self._begin_line()
            if not is_break:  # the source's newline after a block is no line of its own
                text = text.removeprefix("\n")
        if text:
            self._pieces.append(text)

    def _begin_line(self) -> None:
        self._is_after_block = False
        if self._pieces and not self._pieces[-1].endswith("\n"):
            self._pieces.append("\n")
