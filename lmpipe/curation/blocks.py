"""A page's main text by one walk over its tree: the fast half of the cascade.

The page becomes a sequence of blocks (paragraph, list item, heading, code, table row). A block is
*prose* if it is long and little of it is link text. Every element is an interval of blocks, and the
main content is the element whose prose exceeds its other text by most (Pasternack and Roth 2009
choose a maximum subsequence of tokens so; an element instead keeps a page's own borders). Intervals
that say by tag, role, class or id that they are navigation, sharing, comments and the like count
as other text, unless they hold most of the page's prose: such names are often wrong on wrappers.

The walk also says when not to believe it (`doubt`). Trees are libxml2's: 256 levels deep at most,
so recursion is bounded. Not taken: readability's propagation of scores to grandparents, which needs
weights; a learned classifier of blocks, which needs labelled pages and knows their languages only.
"""

import re
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from lxml import etree

MIN_PROSE_BYTES = 80  # about 14 words of English; UTF-8, so that 27 Han characters count as much
MAX_LINK_FRACTION = 0.5
MIN_RESULT_CHARACTERS = 250
_MAX_CELL_CHARACTERS = 300  # a table with longer cells is layout
_PROSE_OF_BOILERPLATE = 0.4  # what holds more of a page's prose is content, whatever its name
_PROSE_OF_ARTICLE = 0.5

_JUNK = (
    "script", "style", "noscript", "template", "svg", "math", "iframe", "object", "embed", "canvas",
    "audio", "video", "select", "option", "button", "input", "textarea", "head", "dialog", "map",
)  # fmt: skip
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
_BLOCKS = frozenset(
    ("p", "div", "section", "article", "main", "header", "body", "ul", "ol", "dl", "dt", "dd",
     "blockquote", "figure", "figcaption", "address", "details", "summary", "fieldset", "center",
     "table", "tbody", "thead", "tfoot", "tr", "td", "th", "caption", "hr", "html",
     "hgroup", "picture", "noindex")
)  # fmt: skip
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_TEXT_KINDS = frozenset(("p", "dt", "dd", "td", "th", "blockquote", "summary", "caption"))
_CONTAINERS = _BLOCKS | _BOILERPLATE_TAGS
_ANCHORS = frozenset(("section", "p", "li", "dt", "dd", "span", *_HEADINGS))  # ids say the topic
_ITEMS = frozenset(("li", *_HEADINGS))
_SENTENCE_ENDS = (".", "!", "?", "…", ":", ".”", "!”", "?”", '."', "。", "！", "？", "।", "؟", "۔")


class Block(NamedTuple):
    """A stretch of text: its kind, and how many of its characters are inside links."""

    text: str
    kind: str
    link_characters: int
    prose: int


class FastText(NamedTuple):
    """What the walk found, and why it may be wrong; empty if nothing speaks against it."""

    text: str
    doubt: str


def extract_fast(html: str) -> FastText:
    """Return a page's main text and the reason to doubt it, if there is one."""
    parser = etree.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    data = html.encode("utf-8", "replace")
    for tag in (b"script", b"style", b"svg"):  # 0.5 of 1.9 ms of parsing a page of 168 kB
        data = _without(data, tag)
    root = etree.fromstring(data, parser) if data.strip() else None
    if root is None:
        return FastText("", "no_tree")
    etree.strip_elements(root, *_JUNK, with_tail=False)
    walk = _Walk()
    walk.element(root)
    walk.flush()
    return _choose(walk)


def _without(data: bytes, tag: bytes) -> bytes:
    """Cut what lies between an element's tags: much of a page, and costly to parse."""
    pieces, at = [], 0
    opening, closing = b"<" + tag, b"</" + tag
    while (start := data.find(opening, at)) >= 0 and (end := data.find(closing, start)) >= 0:
        pieces.append(data[at:start])
        at = end
    return b"".join([*pieces, data[at:]]) if pieces else data


class _Walk:
    """One pass over a tree: its blocks in order, and elements as intervals of them."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.intervals: list[tuple[int, int, str]] = []  # start, end, tag; inner before outer
        self.flagged: list[tuple[int, int]] = []
        self._pieces: list[str] = []
        self._links = 0
        self._link_start = -1  # where in the pieces the open link began
        self._kind = "line"
        self._prefix = ""
        self._lists: list[int] = []  # numbers of the next items; -1 in lists without numbers

    def element(self, element: Any) -> None:
        """Walk one element; what follows it belongs to its parent."""
        tag = element.tag
        if tag in _CONTAINERS:
            if tag == "table" and (table := _data_table(element)):
                self.flush()
                self.blocks.append(table)
            else:
                self._container(element, tag)
        elif tag in _ITEMS:
            self._item(element, tag)
        elif tag == "pre":
            self._code(element)
        elif tag == "br":
            self._pieces.append("\n")
        elif tag == "a":
            self._link(element)
        elif element.attrib and _is_boilerplate(element, tag):
            self._container(element, tag)
        else:
            self._content(element)

    def _content(self, element: Any) -> None:
        pieces = self._pieces
        if text := element.text:
            pieces.append(text.replace("\n", " "))
        for child in element:
            self.element(child)
            if tail := child.tail:
                pieces.append(tail.replace("\n", " "))

    def _link(self, element: Any) -> None:
        if element.get("class") == "headerlink":
            return
        if element.get("href") is None or self._link_start >= 0:
            self._content(element)
            return
        self._link_start = len(self._pieces)
        self._content(element)
        self._links += sum(len(piece.strip()) for piece in self._pieces[self._link_start :])
        self._link_start = -1

    def _container(self, element: Any, tag: str) -> None:
        self.flush()
        start = len(self.blocks)
        kind = self._kind
        if tag == "ul" or tag == "ol":
            self._lists.append(1 if tag == "ol" else -1)
            self._content(element)
            self.flush()
            self._lists.pop()
        else:
            if tag in _TEXT_KINDS:
                self._kind = tag
            self._content(element)
            self.flush()
            self._kind = kind
        end = len(self.blocks)
        if end > start:
            name = "article" if element.get("itemprop") == "articleBody" else tag
            self.intervals.append((start, end, name))
            if _is_boilerplate(element, tag):
                self.flagged.append((start, end))

    def _item(self, element: Any, tag: str) -> None:
        self.flush()
        start = len(self.blocks)
        before = self._kind, self._prefix
        if tag == "li":
            depth = max(0, len(self._lists) - 1)
            number = self._lists[-1] if self._lists else -1
            self._kind, self._prefix = "li", "  " * depth + (f"{number}. " if number > 0 else "- ")
            if number > 0:
                self._lists[-1] += 1
        else:
            self._kind, self._prefix = tag, ""
        self._content(element)
        self.flush()
        self._kind, self._prefix = before
        if len(self.blocks) > start and _is_boilerplate(element, tag):
            self.flagged.append((start, len(self.blocks)))

    def _code(self, element: Any) -> None:
        self.flush()
        lines = [line.rstrip() for line in "".join(element.itertext()).expandtabs(8).split("\n")]
        text = "\n".join(lines).strip("\n")
        if text.strip():
            self.blocks.append(Block(text, "pre", 0, len(text)))

    def flush(self) -> None:
        """End the block in work."""
        if not self._pieces:
            return
        text = "".join(self._pieces)
        if self._link_start >= 0:  # a link around blocks, as on cards
            self._links += sum(len(piece.strip()) for piece in self._pieces[self._link_start :])
            self._link_start = 0
        self._pieces.clear()
        if "\n" in text:
            lines = [" ".join(line.split()) for line in text.split("\n")]
            text = "\n".join(line for line in lines if line)
        else:
            text = " ".join(text.split())
        links, self._links = min(self._links, len(text)), 0
        if not text:
            return
        self.blocks.append(_block(text, self._kind, links, self._prefix))
        if self._prefix:
            self._prefix = " " * len(self._prefix)  # further paragraphs of an item are indented


def _block(text: str, kind: str, links: int, prefix: str = "") -> Block:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "ignore"))
    is_prose = size >= MIN_PROSE_BYTES and links <= MAX_LINK_FRACTION * len(text)
    prose = len(text) - links if is_prose and kind not in _HEADINGS else 0
    return Block(prefix + text, kind, links, prose)


def _choose(walk: _Walk) -> FastText:
    """Choose the element with the most prose over other text, and say what speaks against it."""
    blocks = walk.blocks
    total = sum(block.prose for block in blocks)
    if not blocks or not total:
        return FastText("\n".join(block.text for block in blocks), "no_prose")
    is_flagged = [False] * len(blocks)
    hidden = 0
    for start, end in reversed(walk.flagged):  # outer ones first
        prose = sum(block.prose for block in blocks[start:end])
        if prose > _PROSE_OF_BOILERPLATE * total or is_flagged[start]:
            continue
        is_flagged[start:end] = [True] * (end - start)
        hidden += prose
    gains = [_gain(block, bad) for block, bad in zip(blocks, is_flagged, strict=True)]
    start, end = _best_interval(walk.intervals, gains, total - hidden)
    kept = [
        block
        for block, bad in zip(blocks[start:end], is_flagged[start:end], strict=True)
        if not bad and not _is_links(block) and not _is_interface(block)
    ]
    kept = _without_bare_ends(kept)
    text = "\n".join(block.text for block in kept)
    return FastText(text, _doubt(blocks, kept, total, hidden))


def _gain(block: Block, is_flagged: bool) -> int:
    """Count prose for, and links, short lines and boilerplate against."""
    if is_flagged or not block.prose:
        return -len(block.text)
    return block.prose - block.link_characters


def _best_interval(
    intervals: list[tuple[int, int, str]], gains: list[int], prose: int
) -> tuple[int, int]:
    """Return the interval of the largest sum; an article that holds half of the prose bounds it."""
    sums = [0, *accumulate(gains)]
    positive = [0, *accumulate(max(0, gain) for gain in gains)]
    low, high = 0, len(gains)
    for start, end, tag in reversed(intervals):
        if (
            tag in ("article", "main")
            and low <= start
            and end <= high
            and positive[end] - positive[start] >= _PROSE_OF_ARTICLE * prose
        ):
            low, high = start, end
    best, best_gain = (low, high), sums[high] - sums[low]
    for start, end, _ in intervals:
        if low <= start and end <= high and sums[end] - sums[start] > best_gain:
            best, best_gain = (start, end), sums[end] - sums[start]
    return best


def _without_bare_ends(blocks: list[Block]) -> list[Block]:
    """Drop short lines and headings after the last prose, and headings that nothing follows."""
    while blocks and not blocks[-1].prose and not blocks[-1].text.endswith(_SENTENCE_ENDS):
        blocks.pop()
    return [
        block
        for block, following in pairwise([*blocks, Block("", "h1", 0, 0)])
        if block.kind not in _HEADINGS or _HEADINGS.get(following.kind, 9) > _HEADINGS[block.kind]
    ]


def _doubt(blocks: list[Block], kept: list[Block], total: int, hidden: int) -> str:
    """Return why the result may be wrong, or an empty string."""
    size = sum(len(block.text) for block in kept)
    prose = sum(block.prose for block in kept)
    if size < MIN_RESULT_CHARACTERS:
        rest = sum(len(block.text) - block.link_characters for block in blocks)
        return "little_text" if rest > 2 * size else ""  # else the page has no more
    if hidden > total - hidden:
        return "much_hidden"  # more prose under names of boilerplate than elsewhere
    if prose < 0.75 * (total - hidden):
        return "scattered"  # a quarter of the prose lies outside of what was chosen
    if prose < 0.6 * size:
        return "fragments"
    return ""


def _is_interface(block: Block) -> bool:
    """Say whether a short line lies outside of all elements for text and ends in no full stop."""
    return block.kind == "line" and not block.prose and not block.text.endswith(_SENTENCE_ENDS)


def _is_links(block: Block) -> bool:
    share = block.link_characters / len(block.text)
    return share > 0.8 or (share > MAX_LINK_FRACTION and not block.prose)


def _is_boilerplate(element: Any, tag: str) -> bool:
    if tag in _BOILERPLATE_TAGS:
        return True
    if tag in ("body", "html", "article", "main"):
        return False
    attributes = element.attrib
    if not attributes:
        return False
    name = attributes.get("class")
    if name and _is_boilerplate_name(name):
        return True
    name = attributes.get("id")
    if name and tag not in _ANCHORS and _is_boilerplate_name(name):
        return True
    if attributes.get("role") in _BOILERPLATE_ROLES:
        return True
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return True
    return "display:none" in (attributes.get("style") or "").replace(" ", "")


@lru_cache(maxsize=8192)
def _is_boilerplate_name(name: str) -> bool:
    return _BOILERPLATE_NAMES.search(_CAMEL.sub("-", name).lower()) is not None


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
                cells.append(" ".join("".join(cell.itertext()).split()))
                if len(cells[-1]) > _MAX_CELL_CHARACTERS:
                    return None
        if any(cells):
            lines.append(" | ".join(cells))
            width = max(width, len(cells))
    if len(lines) < 2 or width < 2:
        return None
    links = sum(len("".join(link.itertext()).strip()) for link in table.iter("a"))
    return _block("\n".join(lines), "table", links)
