"""Read ARC, the Internet Archive's format before WARC, as WARC records.

A record is one line, `URL IP date content-type length`, and so many bytes, an HTTP response for
http URLs. Each is rewritten as a WARC response, so that one reader serves both formats. Its offset
is that of its gzip member, or of its line in a plain file. ARC has no record ids.
"""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_BLOCK_BYTES = 1 << 16
_LINE = re.compile(rb"^(\S+) (\S*) (\S+) (.*?) ?(\d+)$")
_DATE = re.compile(rb"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)")
_MAX_LINE_BYTES = 1 << 16
MAX_RECORD_BYTES = 1 << 30


class ArcError(OSError):
    """The file makes no sense from `offset` on."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def is_arc(path: Path) -> bool:
    """Say whether a file is an ARC, by its first line."""
    with path.open("rb") as file:
        head = file.read(_BLOCK_BYTES)
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(31).decompress(head, 1024)
        except zlib.error:
            return False
    return head.startswith(b"filedesc://")


def arc_records(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, WARC record) of an ARC file in order, without its own description.

    Raises:
        ArcError: the rest cannot be read.
    """
    with path.open("rb") as file:
        stream = _Stream(file)
        while True:
            while (line := stream.line()) == b"\n":
                pass
            if not line:
                stream.check_end()
                return
            offset = stream.line_offset
            match = _LINE.match(line.rstrip(b"\r\n"))
            if match is None:
                raise ArcError(f"no ARC record: {line[:60]!r}", offset)
            url, _, date, kind, size = match.groups()
            if int(size) > MAX_RECORD_BYTES:
                raise ArcError(f"a record of {int(size)} bytes", offset)
            body = stream.read(int(size))
            if len(body) < int(size):
                raise ArcError(f"a record of {int(size)} bytes ends after {len(body)}", offset)
            if not url.startswith(b"filedesc:"):
                yield offset, _as_warc(url, date, kind, body)


def _as_warc(url: bytes, date: bytes, kind: bytes, body: bytes) -> bytes:
    if url.lower().startswith((b"http:", b"https:")):
        kind = b"application/http; msgtype=response"
    lines = [b"WARC/1.0", b"WARC-Type: response", b"WARC-Target-URI: " + url]
    if match := _DATE.match(date.ljust(14, b"0")):
        lines.append(b"WARC-Date: %s-%s-%sT%s:%s:%sZ" % match.groups())
    lines += [b"Content-Type: " + kind, b"Content-Length: %d" % len(body), b"", b""]
    return b"\r\n".join(lines) + body + b"\r\n\r\n"


class _Stream:
    """Bytes of a plain or gzip file; knows where what it gave last began."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        self._inflate = zlib.decompressobj(31)
        self._packed = b""
        self._position = 0  # of the end of what was read from the file
        self._member = 0
        self._buffer = b""
        self._at = 0
        self._starts: list[tuple[int, int]] = []  # place in the buffer, offset of its member
        self.line_offset = 0

    def check_end(self) -> None:
        """Raise ArcError if the file ends inside a gzip member."""
        if self._is_gzip and not self._inflate.eof:
            raise ArcError("a gzip member is cut short", self._member)

    def line(self) -> bytes:
        """Return the next line with its end; empty at the end of the file."""
        while (end := self._buffer.find(b"\n", self._at)) < 0:
            if len(self._buffer) - self._at > _MAX_LINE_BYTES or not self._fill():
                end = len(self._buffer) - 1
                break
        self.line_offset = self._offset()
        line, self._at = self._buffer[self._at : end + 1], end + 1
        return line

    def read(self, size: int) -> bytes:
        """Return so many bytes, fewer only at the end of the file."""
        pieces = [self._buffer[self._at : self._at + size]]
        left = size - len(pieces[0])
        self._at += len(pieces[0])
        while left > 0 and self._fill():
            piece = self._buffer[self._at : self._at + left]
            pieces.append(piece)
            self._at += len(piece)
            left -= len(piece)
        return b"".join(pieces)

    def _offset(self) -> int:
        if not self._is_gzip:
            return self._position - (len(self._buffer) - self._at)
        return next((member for at, member in reversed(self._starts) if at <= self._at), 0)

    def _fill(self) -> bool:
        """Append a block to the buffer and forget what was given out."""
        last = self._offset()
        self._buffer = self._buffer[self._at :]
        moved = [(at - self._at, member) for at, member in self._starts if at > self._at]
        self._starts, self._at = [(0, last), *moved], 0
        while True:
            block = self._packed or self._file.read(_BLOCK_BYTES)
            self._position += 0 if self._packed else len(block)
            self._packed = b""
            if not block:
                return False
            text = block if not self._is_gzip else self._inflated(block)
            if text:
                self._buffer += text
                return True

    def _inflated(self, block: bytes) -> bytes:
        if self._inflate.eof:
            self._inflate = zlib.decompressobj(31)
            self._member = self._position - len(block)
            self._starts.append((len(self._buffer), self._member))
        try:
            text = self._inflate.decompress(block)
        except zlib.error as error:
            raise ArcError(f"damaged gzip member: {error}", self._member) from error
        self._packed = self._inflate.unused_data.lstrip(b"\0")
        return text
