"""Read the HTML pages of a WARC file, and account for every other record.

What can be read is read. A record that cannot be is named with its reason. Where a file makes no
sense, the first such offset is named, what is lost counts as one record at least, and reading goes
on where the next record begins, if there is one. Nothing is skipped without being counted.

ARC files and WARC files with names in another case are rewritten as WARC (arc.py, field_case.py),
by one range of a file that is split; the text of a WET file's conversion records is taken as it is.
A revisit record says that a page was the same as before: it is counted, and the stage says for how
many the original is in the input. It makes no document, which would be a duplicate by definition.
"""

import hashlib
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from fastwarc.warc import ArchiveIterator, WarcRecord

from lmpipe.curation.crawl.arc import arc_records, is_arc
from lmpipe.curation.crawl.field_case import is_other_case, other_case_records
from lmpipe.curation.crawl.http import BodyTooLargeError, decode_body
from lmpipe.curation.crawl.record_starts import (
    ARC_FORM,
    WARC_FORM,
    RecordForm,
    begins_with,
    declared_end,
    is_cut_short,
    record_start,
)
from lmpipe.curation.crawl.record_stream import RecordError
from lmpipe.documents.schema import document_id
from lmpipe.errors import InputError

HTML_TYPES = ("text/html", "application/xhtml+xml")
MAX_HEADER_BYTES = 1 << 18
_PIECE_BYTES = 1 << 20
_DAMAGED = ("truncated_record", "unreadable_body", "bad_record_length")
_LOOKS_LIKE_HTML = re.compile(
    rb"^\s*(<!--.*?-->\s*)?<(!doctype\s+html|html|head|body)\b", re.I | re.S
)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s;\"']+)", re.IGNORECASE)


@dataclass
class Census:
    """What one archive held, record by record."""

    records: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    originals: list[int] = field(default_factory=list)
    revisits: list[int] = field(default_factory=list)

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
        byte_range: only records that begin from the first offset on and before the second; None:
            all. The record starts next to the offsets are found here.
    """

    name = "WARC pages"
    type = "READER"

    def __init__(
        self,
        path: Path,
        name: str,
        source_name: str,
        max_page_bytes: int,
        census: Census,
        byte_range: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.path = path
        self.file_name = name
        self.source_name = source_name
        self.max_page_bytes = max_page_bytes
        self.census = census
        self.byte_range = byte_range
        self._keys: set[str] = set()
        self._offset = 0  # where the reader stood: beyond a record's beginning, within a member
        self._place = 0  # where reading must begin to come by the record
        self._is_cut = False  # the record that was read last ended early, and is named
        self._is_removed = False  # so is any that was removed
        self._named: set[int] = set()  # offsets from which a record could not be read

    def run(
        self, data: Iterator[Document] | None = None, rank: int = 0, world_size: int = 1
    ) -> Iterator[Document]:
        """Yield the pages in file order."""
        for is_format, records, form in (
            (is_arc, arc_records, ARC_FORM),
            (is_other_case, other_case_records, WARC_FORM),
        ):
            if is_format(self.path):
                if self.byte_range is None or self.byte_range[0] == 0:
                    yield from self._rewritten_pages(records, form)
                return
        start, stop = self._bounds()
        while start is not None:
            self._offset, error = start, ""
            num_before = self.census.records.total()
            try:
                for record in self._records(start, stop):
                    if (page := self._page(record)) is not None:
                        yield page
            except OSError as failure:
                error = str(failure)
            is_empty = self.census.records.total() == num_before
            gap = start if is_empty else _end_of_record(self.path, self._offset)
            # where none begins at a record's end, its length may be too large and hide the next
            low = self._offset + 1 if error else max(self._offset + 1, gap)
            start = record_start(self.path, low, stop)
            is_end_known = is_empty or gap > self._offset
            if is_end_known and stop is None:
                is_lost = start is not None or _has_more(self.path, gap)
            else:
                is_lost = bool(error) or start is not None
            if is_lost:
                is_said = self._is_removed and start == gap  # nothing lies between the two
                if gap not in self._named and not is_said:  # found again and read to the damage
                    yield self._unreadable(gap, error or "no record")
            elif stop is None and not self._is_cut and is_cut_short(self.path, self._place):
                yield self._unreadable(self._place, "a compressed member is cut short")

    def _bounds(self) -> tuple[int | None, int | None]:
        """Return where the range's first record begins, and where the next range's does."""
        if self.byte_range is None:
            return 0, None
        low, high = self.byte_range
        stop = record_start(self.path, high)
        return (record_start(self.path, low, stop) if low else 0), stop

    def _records(self, start: int, stop: int | None) -> Iterator[WarcRecord]:
        with self.path.open("rb") as file:
            file.seek(start)
            quirks = _has_bare_newlines(self.path)
            self._place = start
            for record in ArchiveIterator(file, parse_http=False, quirks_mode=quirks):
                offset = int(record.stream_pos)
                if stop is not None and offset >= stop:
                    if offset > stop:
                        raise InputError(
                            f"{self.file_name}: byte {stop} looks like a record's beginning and is"
                            " not (an archive inside a record?): set extract.split_bytes=0"
                        )
                    return
                self._offset, self._is_cut, self._is_removed = offset, False, False
                headers = record.headers.asdict()
                if begins_with(file, offset, [value.encode() for value in headers.values()]):
                    self._place = offset
                yield record

    def _rewritten_pages(
        self, records: Callable[[Path, int], Iterator[tuple[int, bytes]]], form: RecordForm
    ) -> Iterator[Document]:
        """Yield the pages of a file whose records are rewritten, reading on after damage.

        A record whose length is too large hides others: the search begins behind the last good one.
        """
        start: int | None = 0
        while start is not None:
            last = start
            try:
                for offset, data in records(self.path, start):
                    self._offset = self._place = last = offset
                    for record in ArchiveIterator(io.BytesIO(data), parse_http=False):
                        if (page := self._page(record)) is not None:
                            yield page
                return
            except RecordError as error:
                if error.offset not in self._named:
                    yield self._unreadable(error.offset, str(error))
                start = record_start(self.path, last + 1, error.offset, form)
                if start is None:
                    start = record_start(self.path, max(last, error.offset) + 1, None, form)

    def _page(self, record: WarcRecord) -> Document | None:
        kind = str(record.record_type)
        length = record.headers.get("Content-Length")
        if length is None:  # every record has one
            return self._removed(record, "truncated_record")
        if not length.isdecimal() or int(length) != record.content_length:
            return self._removed(record, "bad_record_length")
        if kind == "revisit":
            self._note_revisit(record)
        if kind == "conversion" and str(record.headers.get("Content-Type")).startswith(
            "text/plain"
        ):
            return self._plain_text(record)
        if kind != "response":
            self.census.skip(kind)
            return None
        self._note_original(record)
        if not record.is_http:
            if _size(record.reader) < record.content_length:  # cut before its Content-Type
                return self._removed(record, "truncated_record")
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
            return self._other_response(record, f"status {status}")
        return self._html_page(record)

    def _note_original(self, record: WarcRecord) -> None:
        for name in ("WARC-Record-ID", "WARC-Payload-Digest"):
            if value := record.headers.get(name):
                self.census.originals.append(_hash(value))

    def _note_revisit(self, record: WarcRecord) -> None:
        value = record.headers.get("WARC-Refers-To") or record.headers.get("WARC-Payload-Digest")
        self.census.revisits.append(_hash(value or ""))

    def _plain_text(self, record: WarcRecord) -> Document:
        expected = record.content_length
        if expected > self.max_page_bytes:
            return self._removed(record, "page_too_large", expected, self.max_page_bytes)
        raw = record.reader.read()
        if len(raw) < expected:
            return self._removed(record, "truncated_record", len(raw), expected)
        return self._document(record, plain_text=raw, content_type="text/plain", charset="utf-8")

    def _html_page(self, record: WarcRecord) -> Document | None:
        headers = record.http_headers
        content_type = (headers.get("Content-Type") or "").split(";")[0].strip().lower()
        if content_type and content_type not in HTML_TYPES:
            return self._other_response(record, content_type[:80])
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

    def _other_response(self, record: WarcRecord, kind: str) -> Document | None:
        """Count a response that is no page, unless it ends inside its header, which then lies."""
        if record.content_length > 0 and not record.reader.read(1):
            return self._removed(record, "truncated_record")
        self.census.skip(kind)
        return None

    def _removed(
        self,
        record: WarcRecord,
        reason: str,
        score: float | None = None,
        bound: float | None = None,
    ) -> Document:
        self._is_cut, self._is_removed = reason == "truncated_record", True
        if (
            reason in ("truncated_record", "unreadable_body", "bad_record_length")
            and self._place == self._offset
        ):
            self._named.add(self._place)
        return self._document(record, removed=reason, score=score, threshold=bound)

    def _document(self, record: WarcRecord, **metadata: Any) -> Document:
        self.census.records["pages"] += 1
        url = (record.headers.get("WARC-Target-URI") or "").strip("<> ")
        place = f"{self.file_name}#{self._place}"
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
                "warc_offset": self._place,
                "warc_record_id": record.record_id,
                **metadata,
            },
        )

    def _unreadable(self, offset: int, error: str) -> Document:
        """Name an offset that cannot be read; it counts as one lost record."""
        self._named.add(offset)
        self.census.records["pages"] += 1
        self.census.unreadable.append(f"{self.file_name}: unreadable from byte {offset}: {error}")
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


def _size(reader: Any) -> int:
    """Read to the end, in pieces: what an FTP server sent may be large."""
    size = 0
    while piece := reader.read(_PIECE_BYTES):
        size += len(piece)
    return size


def _hash(value: str) -> int:
    return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")


def host_of(url: str) -> str | None:
    """Return a URL's host in lower case, without user and port."""
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

    A gzip member says so itself; a plain record by its length, unless that is beyond the file. Of
    other compressions the start of the last good record is all that is known.
    """
    with path.open("rb") as file:
        file.seek(position)
        head = file.read(65_536)
        if head[:2] == b"\x1f\x8b":
            return _end_of_member(file, head, position)
        end = declared_end(head, position)
        if end is None or end > file.seek(0, os.SEEK_END):
            return position
        file.seek(end)
        rest = file.read(4)
        return end + len(rest) - len(rest.lstrip(b"\r\n"))


def _has_more(path: Path, position: int) -> bool:
    """Say whether anything but padding lies beyond the last record."""
    with path.open("rb") as file:
        file.seek(position)
        while block := file.read(_PIECE_BYTES):
            if block.strip(b"\0\r\n\t "):
                return True
    return False


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
