"""trafilatura's main extractor on a page that is parsed already, in about a quarter of its time.

The rules are trafilatura's, and the text is that of its fast mode where the page names the element
that holds its content and this is not short, but for spaces between words that trafilatura would
glue (line_breaks.py); a test compares the two on real pages. What makes it
cheaper: one parse and no copies (trafilatura keeps three to fall back on), attributes judged once a
value and not once an element (element_names.py), texts measured no further than the decision needs,
and elements passed over that no handler takes. What is left out: its rescues for pages where little
is found, which the caller has. Price: functions that are no promised interface, so the version of
trafilatura is pinned.
"""

from typing import Any, NamedTuple

from lxml import etree
from trafilatura.htmlprocessing import (
    convert_tags,
    link_density_test_tables,
    process_node,
    tree_cleaning,
)
from trafilatura.main_extractor import NOT_AT_THE_END, REBUILT_BLOCKS, handle_textelem
from trafilatura.settings import (
    INLINE_FORMATTABLE,
    MIN_DUPLICATE_LENGTH,
    TAG_CATALOG,
    Extractor,
)
from trafilatura.utils import SPACING_PROTECTED, text_chars_test
from trafilatura.xml import delete_element, xmltotxt

from lmpipe.curation.extraction.element_names import (
    FRAME_RANKS,
    drop_comments,
    find_frame,
    unwanted,
)
from lmpipe.curation.extraction.line_breaks import mark_after, mark_edges, mark_left_out, unmark
from lmpipe.curation.extraction.link_farms import delete_link_farms, squeeze

_MIN_CHARACTERS = 250  # below, trafilatura's rescues begin
_MAX_WITHOUT_PARAGRAPHS = 3 * _MIN_CHARACTERS  # with less in paragraphs, text of a div counts
_MIN_KEPT = 0.75  # of a frame's characters, once its boilerplate is out
_OPTIONS = Extractor(output_format="txt", fast=True, comments=False, tables=True, dedup=False)
_TAGS = frozenset((*TAG_CATALOG, "table", "td", "th", "tr"))
_HANDLED = frozenset((*TAG_CATALOG, "ref", "table"))


class CoreText(NamedTuple):
    """What was found, and why it may be wrong; empty if nothing speaks against it."""

    text: str
    doubt: str


def core_text(root: Any) -> CoreText:
    """Return the main text of a page that names the element that holds its content.

    It is doubted where it is short, where over a quarter of that element's text would be lost,
    which no article showed (LOG.md), and where trafilatura fails.

    Args:
        root: the page's tree of `lxml.html.HtmlElement`; it is used up.
    """
    try:
        drop_comments(root)
        mark_left_out(root)
        body, frame_size = _extract(convert_tags(tree_cleaning(root, _OPTIONS), _OPTIONS, None))
        text = unmark(str(xmltotxt(_finish(body), include_formatting=False)))
    except (TypeError, ValueError):  # characters that XML does not allow; trafilatura does so too
        return CoreText("", "bad_characters")
    if len(text) < _MIN_CHARACTERS:
        return CoreText(text, "short_frame")
    is_lossy = len(squeeze(text)) < _MIN_KEPT * frame_size
    return CoreText(text, "lossy_frame" if is_lossy else "")


def _extract(tree: Any) -> tuple[Any, int]:
    """Return the elements of the first frame that has more than one, and its characters."""
    body = etree.Element("body")
    tags = set(_TAGS)
    size = 0
    for rank in FRAME_RANKS:
        frame = find_frame(tree, rank)
        if frame is None:
            continue
        _prune(frame)
        mark_edges(frame)
        if len(frame) == 0:
            continue
        if not _has_paragraphs(tree):
            tags.add("div")
        size = len(squeeze(frame.text_content()))
        start, lead = len(body), _take(frame, tags, body)
        while len(body) and body[-1].tag in NOT_AT_THE_END:
            delete_element(body[-1], keep_tail=False)
        if len(body) > 1:
            if lead is not None:
                body.insert(start, lead)
            break
    return body, size


def _has_paragraphs(tree: Any) -> bool:
    size = 0
    for paragraph in tree.iter("p"):
        size += len(paragraph.text_content())
        if size >= _MAX_WITHOUT_PARAGRAPHS:
            return True
    return False


def _take(frame: Any, tags: set[str], body: Any) -> Any:
    """Move a frame's elements to the body as the handlers see fit; return its leading text."""
    elements = list(frame.iterdescendants())
    inside = {element.tag for element in elements}
    is_run = frame.tag == "div" and "div" in tags and inside <= INLINE_FORMATTABLE | {"lb"}
    lead = None
    if is_run or inside == {"lb"}:  # one run of text: the frame itself is the paragraph
        elements = [frame]
    elif text_chars_test(frame.text):
        lead = _paragraph(frame.text)
    for element in elements:
        tag, tail = element.tag, element.tail
        if tag not in _HANDLED and not (tag == "div" and _is_text_div(element, tags)):
            continue
        if element.getroottree().getroot() is body:
            continue  # moved with an element around it
        taken = handle_textelem(element, tags, _OPTIONS)
        if taken is not None:
            body.append(taken)
            if element.getroottree().getroot() is not body:
                element.tag = "done"  # its copy was taken
        is_tail_left = tag in REBUILT_BLOCKS and (taken is None or taken.tail is None)
        rest = _paragraph(tail) if is_tail_left and text_chars_test(tail) else None
        if rest is not None:
            body.append(rest)
    return lead


def _is_text_div(element: Any, tags: set[str]) -> bool:
    return "div" in tags or "w3-code" in element.get("class", "")


def _paragraph(text: str) -> Any:
    paragraph = etree.Element("p")
    paragraph.text = text
    return process_node(paragraph, _OPTIONS)


def _finish(body: Any) -> Any:
    """Drop repeats of the element before, and what the handlers left over."""
    previous = ""
    for element in list(body):
        text = squeeze("".join(element.itertext()))
        if text == previous and len(text) > MIN_DUPLICATE_LENGTH:
            delete_element(element, keep_tail=False)
        else:
            previous = text
    etree.strip_elements(body, "done")
    etree.strip_tags(body, "div")
    for line_break in body.iter("lb"):
        is_kept = any(outer.tag in SPACING_PROTECTED for outer in line_break.iterancestors())
        if line_break.tail and line_break.tail.isspace() and not is_kept:
            line_break.tail = None
    return body


def _delete(element: Any) -> None:
    mark_after(element)
    delete_element(element)


def _prune(frame: Any) -> None:
    """Delete boilerplate, unless it is most of the frame, then captions, teasers and link farms."""
    boilerplate, asides = unwanted(frame)
    known = set(boilerplate)
    outer = [e for e in boilerplate if not any(around in known for around in e.iterancestors())]
    size = len(frame.text_content()) if outer else 0
    if size - sum(len(element.text_content()) for element in outer) > size / 7:
        for element in outer:
            _delete(element)
    for element in asides:
        _delete(element)
    delete_link_farms(frame)
    for table in list(frame.iter("table")):
        if link_density_test_tables(table):
            delete_element(table, keep_tail=False)
    etree.strip_tags(frame, "span", "ref")
