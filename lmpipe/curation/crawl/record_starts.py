"""Find where records of an archive begin, from any byte of it.

This is what lets a large archive be worked on in ranges, and reading go on after a damaged stretch.
A record begins where a compressed member (gzip, zstd, lz4) begins whose first bytes are `WARC/`, or
in a plain archive where such a line follows an empty one. A start inside a record's body (an
archive that was crawled) looks the same; the reader of the range before finds out, since none of
its records begins there. The alternative, an index of all offsets, costs a pass over the archive.
"""

import io
import os
import re
import zlib
from pathlib import Path
from typing import IO, Any, NamedTuple

import zstandard

WINDOW_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16  # enough of a member to see its first line
_OPENING_BYTES = 1 << 12  # an ARC record's first line holds a whole URL


class RecordForm(NamedTuple):
    """How records of a format begin: in a plain archive, and as what a compressed member holds."""

    plain: re.Pattern[bytes]
    packed: re.Pattern[bytes]


_ARC_LINE = rb"[a-z][a-z0-9+.-]*:\S* \S* \d{8,14} [^\r\n]*?\d+\r?\n"
WARC_FORM = RecordForm(
    re.compile(rb"(?:\A|\n\r?\n)(?=WARC/[01]\.\d+\r?\n[A-Za-z-]+:)"), re.compile(rb"WARC/")
)
ARC_FORM = RecordForm(re.compile(rb"(?:\A|\n)(?=" + _ARC_LINE + rb")"), re.compile(_ARC_LINE))
_GZIP, _ZSTD, _LZ4 = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"


def record_start(
    path: Path, at: int, stop: int | None = None, form: RecordForm = WARC_FORM
) -> int | None:
    """Return the first offset from `at` on, and before `stop`, where a record begins."""
    with path.open("rb") as file:
        head = file.read(4)
        magic = next((each for each in (_GZIP, _ZSTD, _LZ4) if head.startswith(each)), b"")
        back = 4 if at and not magic else 0  # an empty line before the range counts
        base = max(0, at - back)
        file.seek(base)
        window = file.read(WINDOW_BYTES + _HEAD_BYTES)
        while window:
            for offset in _candidates(window, magic, form, is_first=base == 0):
                if base + offset < at:
                    continue
                if stop is not None and base + offset >= stop:
                    return None
                if not magic or _opens(window[offset : offset + _HEAD_BYTES], magic, form):
                    return base + offset
            base += WINDOW_BYTES
            window = window[WINDOW_BYTES:] + file.read(WINDOW_BYTES)
            if stop is not None and base >= stop:
                return None
    return None


def begins_with(file: IO[bytes], offset: int, values: list[bytes]) -> bool:
    """Say whether the record with these header values can be read from here.

    In a plain archive it always can. Where several records are compressed as one stream, a reader
    knows of all but the first only how far it has come in the file, which may be the next member's
    beginning: so the header that a member opens with is compared.
    """
    head = os.pread(file.fileno(), 4, 0)
    magic = next((each for each in (_GZIP, _ZSTD, _LZ4) if head.startswith(each)), b"")
    if not magic:
        return True
    if os.pread(file.fileno(), len(magic), offset) != magic:
        return False
    text = _opening(os.pread(file.fileno(), _HEAD_BYTES, offset), magic, 1 << 14)
    header = re.split(rb"\r?\n\r?\n", text.lstrip(b"\r\n"), maxsplit=1)[0]
    return header.startswith(b"WARC/") and all(value in header for value in values)


def declared_end(head: bytes, position: int) -> int | None:
    """Return where a plain record ends by its own Content-Length; None: it does not say."""
    blank = re.search(rb"\r?\n\r?\n", head)
    if not head.startswith(b"WARC") or blank is None:
        return None
    header = head[: blank.start()]
    match = re.search(rb"^Content-Length:[ \t]*(\d+)[ \t]*\r?$", header, re.I | re.M)
    return None if match is None else position + blank.end() + int(match.group(1))


def is_cut_short(path: Path, offset: int) -> bool:
    """Say whether the record or member that begins here is longer than the file.

    Readers take the end of a file for that of the records. Of lz4 it is not known.
    """
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(_HEAD_BYTES)
        if block.startswith(_GZIP):
            member: Any = zlib.decompressobj(31)
        elif block.startswith(_ZSTD):
            member = zstandard.ZstdDecompressor().decompressobj()
        else:
            end = declared_end(block, offset)
            return end is not None and end > path.stat().st_size
        try:
            while block:
                member.decompress(block)
                if member.eof:
                    return False
                block = file.read(WINDOW_BYTES)
        except (zlib.error, zstandard.ZstdError):  # damaged, which the reader has said
            return False
    return True


def _candidates(window: bytes, magic: bytes, form: RecordForm, is_first: bool) -> list[int]:
    end = WINDOW_BYTES
    if not magic:
        found = [match.end() for match in form.plain.finditer(window)]
        return [at for at in found if at < end + 4 and (at > 0 or is_first)]
    found = []
    at = window.find(magic)
    while 0 <= at < end:
        found.append(at)
        at = window.find(magic, at + 1)
    return found


def _opens(data: bytes, magic: bytes, form: RecordForm) -> bool:
    """Say whether a compressed member begins here and holds the beginning of a record."""
    return form.packed.match(_opening(data, magic, _OPENING_BYTES).lstrip(b"\r\n")) is not None


def _opening(data: bytes, magic: bytes, size: int) -> bytes:
    """Return the first bytes that a compressed member holds; none if it is no member."""
    try:
        if magic == _GZIP:
            return zlib.decompressobj(31).decompress(data, size)
        if magic == _ZSTD:
            return bytes(zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read(size))
        from fastwarc.stream_io import Lz4Reader

        return bytes(Lz4Reader(io.BytesIO(data)).read(size))
    except (OSError, ValueError, zlib.error, EOFError):
        return b""
    except Exception as error:  # zstandard's own class, without importing it for gzip
        if type(error).__name__ != "ZstdError":
            raise
        return b""
