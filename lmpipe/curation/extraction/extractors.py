"""Main text out of HTML: four extractors behind one name each.

trafilatura keeps most of the article and costs most; its fast mode leaves out the fall-back
extractors; resiliparse is C++, much faster and keeps more boilerplate. `cascade` parses once. Where
a page names the element that holds its content, trafilatura's main extractor reads that tree at a
quarter of the cost (trafilatura_core.py). Pages without such names, and pages with code, of which
trafilatura drops much, are walked block by block (block_text.py), and trafilatura_fast is asked
where the walk found little or nothing that looks like the page's text, or where what a page names
was short. The document's `extractor` says who wrote the text and, after a colon, what was doubted
on the way. Figures: `lmpipe bench extraction`, in LOG.md. A page's text does not depend on what
came before.
"""

import unicodedata
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import trafilatura
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from resiliparse.extract.html2text import extract_plain_text

from lmpipe.curation.crawl.charsets import UNREAD
from lmpipe.curation.crawl.http import decode_text, page_charset
from lmpipe.curation.extraction.block_text import walk_text
from lmpipe.curation.extraction.depth import readable
from lmpipe.curation.extraction.element_names import has_frame
from lmpipe.curation.extraction.html_blocks import CODE_TAGS, is_code_cell, parse_page
from lmpipe.curation.extraction.line_breaks import MARK, mark_edges, unmark
from lmpipe.curation.extraction.sandbox import Sandbox, StoppedError
from lmpipe.curation.extraction.trafilatura_core import core_text

Extractor = Literal["cascade", "trafilatura", "trafilatura_fast", "resiliparse"]
_MAX_CORE_CHARACTERS = 2_000_000  # its time grows with the square of a paragraph's inline tags
_MIN_WALK_CHARACTERS = 1000  # a longer text stands in most doubts: trafilatura's is no better
LIMIT_REASONS = ("time_limit", "memory_limit", "extractor_died")


class MainText(PipelineStep):  # type: ignore[misc]
    """Replace each page's bytes by its main text, or by the reason why there is none.

    Args:
        extractor: which one.
        max_seconds: CPU time per page.
        max_bytes: memory per page.
    """

    name = "main text"
    type = "EXTRACTOR"

    def __init__(self, extractor: Extractor, max_seconds: float, max_bytes: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.max_seconds = max_seconds
        self.max_bytes = max_bytes
        self.child_pid = 0  # of the sandbox that extracted the last page

    def run(
        self, data: Iterator[Document], rank: int = 0, world_size: int = 1
    ) -> Iterator[Document]:
        """Yield every document that comes in."""
        extract_page((self.extractor, b"<html><body><p>A first page loads the parsers.</p>", None))
        with Sandbox(extract_page, self.max_seconds, self.max_bytes) as sandbox:
            for document in data:
                if (plain := document.metadata.pop("plain_text", None)) is not None:
                    _take(document, plain)
                elif "removed" not in document.metadata:
                    self._fill(document, sandbox)
                    self.child_pid = sandbox.pid
                yield document

    def _fill(self, document: Document, sandbox: Sandbox) -> None:
        metadata = document.metadata
        body = metadata.pop("body")
        try:
            document.text, metadata["charset"], metadata["extractor"] = sandbox(
                (self.extractor, body, metadata.pop("header_charset"))
            )
        except StoppedError as stop:
            metadata["removed"] = stop.reason
            return
        if metadata["charset"] == UNREAD:
            metadata["removed"] = "unread_charset"
        elif not document.text:
            metadata["removed"] = "no_text"


def _take(document: Document, plain: bytes) -> None:
    """Take the text of a WET record as it is: somebody else extracted it."""
    document.text = clean_text(decode_text(plain, "utf-8"))
    document.metadata["extractor"] = "wet"
    if not document.text:
        document.metadata["removed"] = "no_text"


class ExtractedPage(NamedTuple):
    """A page's main text, the charset of its bytes, and the extractor that gave the text."""

    text: str
    charset: str
    extracted_by: str


def extract_page(page: tuple[Extractor, bytes, str | None]) -> ExtractedPage:
    """Return a page's main text, its charset and which extractor gave it; runs in the sandbox."""
    extractor, body, header_charset = page
    charset = page_charset(body, header_charset)
    decoded = decode_text(body, charset)
    html = decoded.replace("\0", "")  # as browsers do; libxml2 makes U+FFFD of them
    if extractor == "cascade":
        is_same = charset == "utf-8" and len(html) == len(decoded)
        is_encoded = is_same and "\ufffd" not in html and body[:1] != b"\xef"
        text, extracted_by = cascade(html, body if is_encoded else None)
    else:
        text, extracted_by = extract_text(extractor, html), extractor
    return ExtractedPage(clean_text(text), charset, extracted_by)


def cascade(html: str, utf8: bytes | None = None) -> tuple[str, str]:
    """Return the text of the fastest extractor without doubts, and its name with what was doubted.

    Args:
        utf8: the page as bytes, where they are at hand.
    """
    root = parse_page(html, utf8)
    doubts: list[str] = []
    is_for_core = len(html) <= _MAX_CORE_CHARACTERS and MARK not in html
    if root is not None and is_for_core and not _has_code(root) and has_frame(root):
        text, doubt = core_text(root)
        if not doubt:
            return text, "trafilatura_core"
        doubts.append(doubt)
        root = parse_page(html, utf8)
    text, doubt = walk_text(root)
    extracted_by = "walk"
    if doubt:
        doubts.append(doubt)
    if _is_to_be_asked(doubts, len(text)):
        slow = extract_text("trafilatura_fast", html, is_parted=True)
        if len(slow) > len(text) / 4:  # less does not mend that something is missing
            text, extracted_by = slow, "trafilatura_fast"
    return text, f"{extracted_by}: {', '.join(doubts)}" if doubts else extracted_by


def _is_to_be_asked(doubts: list[str], num_characters: int) -> bool:
    """Say whether trafilatura_fast is worth its time on a page of which the walk found so much."""
    if not doubts or doubts == ["lossy_frame"]:
        return False
    if doubts == ["short_frame"] or doubts[-1] in ("no_prose", "little_text"):
        return True
    return num_characters < _MIN_WALK_CHARACTERS


def _has_code(root: Any) -> bool:
    cells_and_code = root.iter("td", *CODE_TAGS)  # one pass: each is 0.05 ms a page
    return any(element.tag != "td" or is_code_cell(element) for element in cells_and_code)


def extract_text(extractor: Extractor, html: str, *, is_parted: bool = False) -> str:
    """Return the main text of a decoded page by one of the libraries.

    Args:
        is_parted: let trafilatura glue no words at the edges of blocks.
    """
    if extractor == "resiliparse":
        return str(extract_plain_text(html, main_content=True, alt_texts=False))

    page: Any = readable(html)
    if is_parted and MARK not in html and (tree := trafilatura.load_html(page)) is not None:
        mark_edges(tree)
        page = tree
    text: Any = trafilatura.extract(
        page,
        fast=extractor == "trafilatura_fast",
        include_comments=False,
        include_tables=True,
        deduplicate=False,  # its memory of earlier pages would make a page depend on its order
    )
    return unmark(text or "") if not isinstance(page, str) else text or ""


def clean_text(text: str) -> str:
    """Normalise to NFC with plain newlines, without NUL and lone surrogates, stripped."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.encode("utf-8", "ignore").decode())
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").strip()
