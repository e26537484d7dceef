"""Lines and blocks of a plain or gzip archive, with the offsets to find them by again.

For the formats that FastWARC does not read: ARC, and WARC whose names are not in canonical case.
"""

import zlib
from pathlib import Path
from typing import IO

_BLOCK_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 16
_MAX_HEADER_BYTES = 1 << 18
_MAX_RECORD_BYTES = 1 << 30


class RecordError(OSError):
    """The file makes no sense from `offset` on."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def beginning(path: Path) -> bytes:
    """Return the first kilobyte of a plain or gzip file; nothing of a damaged one."""
    with path.open("rb") as file:
        head = file.read(_BLOCK_BYTES)
    if head[:2] != b"\x1f\x8b":
        return head[:1024]
    try:
        return zlib.decompressobj(31).decompress(head, 1024)
    except zlib.error:
        return b""


class RecordStream:
    """Bytes of a plain or gzip file; knows where what it gave last began.

    Args:
        start: where a record, or in a gzip file a member, begins.
    """

    def __init__(self, file: IO[bytes], start: int = 0) -> None:
        self._file = file
        self._is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(start)
        self._inflate = zlib.decompressobj(31)
        self._packed = b""
        self._position = start  # of the end of what was read from the file
        self._member = self._start = start
        self._buffer = b""
        self._at = 0
        self._starts: list[tuple[int, int]] = []  # place in the buffer, offset of its member
        self.line_offset = 0

    def first_line(self) -> bytes:
        """Return the next record's first line; empty at the end of the file.

        Raises:
            RecordError: the file ends inside a gzip member.
        """
        while (line := self.line()) in (b"\n", b"\r\n"):
            pass
        if not line and self._is_gzip and not self._inflate.eof:
            raise RecordError("a gzip member is cut short", self._member)
        return line

    def header(self, offset: int) -> list[bytes]:
        """Return the lines up to an empty one, without their ends, of the record at `offset`.

        Raises:
            RecordError: they are larger than a header may be.
        """
        lines: list[bytes] = []
        size = 0
        while line := self.line().rstrip():
            lines.append(line)
            size += len(line)
            if size > _MAX_HEADER_BYTES:
                raise RecordError(f"a header of over {_MAX_HEADER_BYTES} bytes", offset)
        return lines

    def line(self) -> bytes:
        """Return the next line with its end; empty at the end of the file."""
        while (end := self._buffer.find(b"\n", self._at)) < 0:
            if len(self._buffer) - self._at > _MAX_LINE_BYTES or not self._fill():
                end = len(self._buffer) - 1
                break
        self.line_offset = self._offset()
        line, self._at = self._buffer[self._at : end + 1], end + 1
        return line

    def read_all(self, length: bytes, offset: int) -> bytes:
        """Return the block of the record at `offset`.

        Args:
            length: its bytes, as written.
            offset: for the error.

        Raises:
            RecordError: that is no length or more than a record may have, or the file ends before.
        """
        size = int(length) if length.isdigit() and len(length) < 20 else -1
        if not 0 <= size <= _MAX_RECORD_BYTES:
            raise RecordError(f"a record of {length[:60]!r} bytes", offset)
        data = self._read(size)
        if len(data) < size:
            raise RecordError(f"a record of {size} bytes ends after {len(data)}", offset)
        return data

    def _read(self, size: int) -> bytes:
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
        return next(
            (member for at, member in reversed(self._starts) if at <= self._at), self._start
        )

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
            raise RecordError(f"damaged gzip member: {error}", self._member) from error
        self._packed = self._inflate.unused_data.lstrip(b"\0")
        return text
