"""Read the HTML pages of a WARC file, and account for every other record.

What can be read is read. A record that cannot be is named with its reason; at the first offset from
which a file makes no sense any more, reading of that file ends, the offset is named, and the run
goes on. Nothing is skipped without being counted.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from fastwarc.warc import ArchiveIterator, WarcRecord

from lmpipe.curation.http import BodyTooLargeError, decode_body
from lmpipe.documents.schema import document_id

HTML_TYPES = ("text/html", "application/xhtml+xml")
MAX_HEADER_BYTES = 1 << 18
_LOOKS_LIKE_HTML = re.compile(
    rb"^\s*(<!--.*?-->\s*)?<(!doctype\s+html|html|head|body)\b", re.I | re.S
)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s;\"']+)", re.IGNORECASE)


@dataclass
class Census:
    """What one archive held, record by record."""

    records: Counter[str] = field(default_factory=Counter)
    unreadable: str = ""

    def skip(self, kind: str) -> None:
        """Count a record that is no page."""
        self.records[f"skipped: {kind}"] += 1


class WarcPages(PipelineStep):  # type: ignore[misc]
    """Yield one datatrove Document per HTML response, its bytes in `metadata["body"]`.

    A page that cannot be used carries `metadata["removed"]`, the reason, and no body.

    Args:
        path: the archive: plain, .gz, .lz4 or .zst.
        name: its name in the source.
        source_name: the source's name.
        max_page_bytes: larger pages are not extracted.
        census: where all records are counted.
    """

    name = "WARC pages"
    type = "READER"

    def __init__(
        self, path: Path, name: str, source_name: str, max_page_bytes: int, census: Census
    ) -> None:
        super().__init__()
        self.path = path
        self.file_name = name
        self.source_name = source_name
        self.max_page_bytes = max_page_bytes
        self.census = census
        self._keys: set[str] = set()

    def run(
        self, data: Iterator[Document] | None = None, rank: int = 0, world_size: int = 1
    ) -> Iterator[Document]:
        """Yield the pages in file order."""
        position = 0
        try:
            with self.path.open("rb") as file:
                for record in ArchiveIterator(
                    file, parse_http=False, quirks_mode=_has_bare_newlines(self.path)
                ):
                    position = record.stream_pos
                    page = self._page(record)
                    if page is not None:
                        yield page
        except OSError as error:
            yield self._unreadable(position, error)

    def _page(self, record: WarcRecord) -> Document | None:
        kind = str(record.record_type)
        if kind != "response":
            self.census.skip(kind)
            return None
        if not record.is_http:
            self.census.skip(f"response {_scheme(record.headers.get('WARC-Target-URI') or '')}")
            return None
        try:
            record.parse_http(auto_decode="none", quirks_mode=True, max_header_len=MAX_HEADER_BYTES)
            status = record.http_headers.status_code
        except (OSError, ValueError):
            return self._removed(record, "bad_http_header")
        if status is None:
            return self._removed(record, "bad_http_header")
        if status != 200:
            self.census.skip(f"status {status}")
            return None
        return self._html_page(record)

    def _html_page(self, record: WarcRecord) -> Document | None:
        headers = record.http_headers
        content_type = (headers.get("Content-Type") or "").split(";")[0].strip().lower()
        if content_type and content_type not in HTML_TYPES:
            self.census.skip(content_type[:80])
            return None
        try:
            expected = record.content_length
            if expected > self.max_page_bytes:
                return self._removed(record, "page_too_large", expected, self.max_page_bytes)
            raw = record.reader.read()
            if len(raw) < expected:
                return self._removed(record, "truncated_record", len(raw), expected)
            body = decode_body(
                raw,
                headers.get("Transfer-Encoding") or "",
                headers.get("Content-Encoding") or "",
                self.max_page_bytes,
            )
        except BodyTooLargeError:
            return self._removed(record, "page_too_large", None, self.max_page_bytes)
        except (OSError, ValueError):
            return self._removed(record, "unreadable_body")
        if not content_type:
            if not _LOOKS_LIKE_HTML.match(body):
                self.census.skip("no content type")
                return None
            content_type = "text/html"
        charset = _CHARSET.search(headers.get("Content-Type") or "")
        return self._document(
            record,
            body=body,
            content_type=content_type,
            header_charset=charset.group(1) if charset else None,
        )

    def _removed(
        self,
        record: WarcRecord,
        reason: str,
        score: float | None = None,
        bound: float | None = None,
    ) -> Document:
        return self._document(record, removed=reason, score=score, threshold=bound)

    def _document(self, record: WarcRecord, **metadata: Any) -> Document:
        self.census.records["pages"] += 1
        url = (record.headers.get("WARC-Target-URI") or "").strip("<> ")
        place = f"{self.file_name}#{record.stream_pos}"
        key = record.record_id or place
        if key in self._keys:  # ids repeat in some crawls: the offset tells such records apart
            key = f"{key}@{place}/{len(self._keys)}"
        self._keys.add(key)
        return Document(
            text="",
            id=document_id(self.source_name, key),
            metadata={
                "url": url,
                "host": host_of(url),
                "date": record.headers.get("WARC-Date"),
                "warc_path": self.file_name,
                "warc_offset": record.stream_pos,
                "warc_record_id": record.record_id,
                **metadata,
            },
        )

    def _unreadable(self, position: int, error: OSError) -> Document:
        """Name the first offset that cannot be read; it counts as one lost record."""
        offset = _end_of_record(self.path, position) if self.census.records else 0
        self.census.records["pages"] += 1
        self.census.unreadable = f"{self.file_name}: unreadable from byte {offset}: {error}"
        return Document(
            text="",
            id=document_id(self.source_name, f"{self.file_name}#{offset}"),
            metadata={
                "warc_path": self.file_name,
                "warc_offset": offset,
                "removed": "unreadable_archive",
                "score": float(offset),
            },
        )


def host_of(url: str) -> str | None:
    """Return a URL's host in lower case, without user and port."""
    from urllib.parse import urlsplit

    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _scheme(url: str) -> str:
    return url.split(":", 1)[0].strip("<").lower()[:20] or "without URL"


def _has_bare_newlines(path: Path) -> bool:
    """Say whether the first record's header ends its lines in LF alone, as some writers do."""
    with path.open("rb") as file:
        head = file.read(512)
    if head[:2] == b"\x1f\x8b":
        head = zlib.decompressobj(31).decompress(head)
    first = head.split(b"\n", 1)[0]
    return first.startswith(b"WARC/") and not first.endswith(b"\r")


def _end_of_record(path: Path, position: int) -> int:
    """Return where the record at `position` ends: the first byte that could not be read.

    A gzip member says so itself; a plain record by its length. Of other compressions the start
    of the last good record is all that is known.
    """
    with path.open("rb") as file:
        file.seek(position)
        head = file.read(65_536)
        if head[:2] == b"\x1f\x8b":
            return _end_of_member(file, head, position)
        match = re.search(rb"^Content-Length:\s*(\d+)\s*$", head, re.I | re.M)
        end = head.find(b"\r\n\r\n")
        if not head.startswith(b"WARC/") or match is None or end < 0:
            return position
        end = position + end + 4 + int(match.group(1))
        file.seek(end)
        rest = file.read(4)
        return end + len(rest) - len(rest.lstrip(b"\r\n"))


def _end_of_member(file: Any, block: bytes, position: int) -> int:
    inflater = zlib.decompressobj(31)
    read = position
    try:
        while block:
            inflater.decompress(block)
            read += len(block)
            if inflater.eof:
                return read - len(inflater.unused_data)
            block = file.read(65_536)
    except zlib.error:
        pass
    return position
