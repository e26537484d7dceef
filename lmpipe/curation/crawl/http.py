"""Undo HTTP's transfer and content encodings, and name the charset of a page.

FastWARC can decode too, but gives up on what crawls really hold: chunk extensions, bodies whose
headers still say chunked or gzip after the crawler decoded them, streams cut short. Here a stream
gives what can be read, and never more than a bound, so that a zip bomb costs no memory.
"""

import io
import re
import zlib
from collections.abc import Iterable

import zstandard
from resiliparse.parse.encoding import detect_encoding

from lmpipe.curation.crawl.charset_labels import charset_of
from lmpipe.curation.crawl.charsets import decode

_CHUNK_HEADER = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(;[^\r\n]*)?\r?\n")
_META = re.compile(  # or what a meta element may not be looked for in
    rb"""<(?:!--[^-]*+(?:-(?!->)[^-]*+)*+"""
    rb"""|(script|style|textarea|title|xmp|iframe|noframes)[\s>][^<]*+(?:<(?!/\1)[^<]*+)*+"""
    rb"""|meta[\s/]([^>]{0,2000}))""",
    re.IGNORECASE,
)
_META_ATTRIBUTE = re.compile(
    rb"""(charset|content|http-equiv)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE
)
_LABEL = re.compile(rb"(?:^|charset\s*=)\s*[\"']?\s*([a-z0-9_:.\-]{2,40})", re.IGNORECASE)
_META_WINDOW_BYTES = 65_536  # browsers look at 1,024; real pages put scripts before their meta
_SAMPLE_BYTES = 4096
_PIECE_BYTES = 1 << 14
_ZSTD = b"\x28\xb5\x2f\xfd"
_MIN_NUL_FRACTION = 0.1  # of every second byte: markup is ASCII, whatever the text is
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16le"), (b"\xfe\xff", "utf-16be"))
# what the detector calls what the standard has under other labels
_DETECTED = {"cp949": "euc-kr", "iso2022_jp": "iso-2022-jp", "mac-cyrillic": "x-mac-cyrillic"}


class BodyTooLargeError(Exception):
    """A body is larger than the bound once decoded."""


def decode_body(body: bytes, transfer: str, content: str, max_bytes: int) -> bytes:
    """Undo chunking, then content encodings in reverse order.

    Args:
        transfer: the Transfer-Encoding header, or empty.
        content: the Content-Encoding header, or empty.
        max_bytes: bound on the decoded size.

    Raises:
        BodyTooLargeError: the bound is passed.
        ValueError: an encoding that nobody here can undo, or a stream corrupt from the start.
    """
    if "chunked" in transfer.lower():
        body = join_chunks(body)
    for name in reversed([part.strip().lower() for part in content.split(",") if part.strip()]):
        body = _decode(body, name, max_bytes)
    if len(body) > max_bytes:
        raise BodyTooLargeError(f"{len(body)} bytes")
    return body


def join_chunks(body: bytes) -> bytes:
    """Join HTTP chunks; a body that is not chunked after all is returned as it is."""
    pieces: list[bytes] = []
    at = 0
    while match := _CHUNK_HEADER.match(body, at):
        size = int(match.group(1), 16)
        if size == 0:
            return b"".join(pieces)  # trailers may follow
        pieces.append(body[match.end() : match.end() + size])
        at = match.end() + size
        at += 2 if body[at : at + 2] == b"\r\n" else body[at : at + 1] == b"\n"
    if not pieces:
        return body
    return b"".join([*pieces, body[at:]])


def _decode(body: bytes, name: str, max_bytes: int) -> bytes:
    if name in ("identity", "none", "utf-8", "") or not body:
        return body
    if name in ("gzip", "x-gzip"):
        return _inflate(body, (31,), max_bytes) if body[:2] == b"\x1f\x8b" else body
    if name == "deflate":
        return _inflate(body, (15, -15), max_bytes)
    if name == "br":
        return _unbrotli(body, max_bytes)
    if name == "zstd":
        return _unzstd(body, max_bytes) if body[:4] == _ZSTD else body
    raise ValueError(f"unknown content encoding {name!r}")


def _inflate(body: bytes, windows: Iterable[int], max_bytes: int) -> bytes:
    for window in windows:
        inflater = zlib.decompressobj(window)
        try:
            read = inflater.decompress(body, max_bytes + 1)
            if read or inflater.eof:
                return _bounded(read, max_bytes)
        except zlib.error:
            if read := _inflate_bytewise(body, window, max_bytes):
                return read
    raise ValueError("corrupt compressed body")


def _inflate_bytewise(body: bytes, window: int, max_bytes: int) -> bytes:
    """Return what lies before the first error of a stream."""
    inflater = zlib.decompressobj(window)
    pieces: list[bytes] = []
    size = 0
    try:
        for at in range(0, len(body), 256):
            pieces.append(inflater.decompress(body[at : at + 256], max_bytes + 1 - size))
            size += len(pieces[-1])
            if size > max_bytes:
                break
    except zlib.error:
        pass
    return _bounded(b"".join(pieces), max_bytes)


def _unbrotli(body: bytes, max_bytes: int) -> bytes:
    from fastwarc.stream_io import BrotliReader

    try:
        return _bounded(BrotliReader(io.BytesIO(body)).read(max_bytes + 1), max_bytes)
    except OSError as error:
        raise ValueError(f"corrupt brotli body: {error}") from error


def _unzstd(body: bytes, max_bytes: int) -> bytes:
    """Return what the frames hold before the first error."""
    frames = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True)
    pieces: list[bytes] = []
    size = 0
    try:
        while size <= max_bytes and (piece := frames.read(_PIECE_BYTES)):
            pieces.append(piece)
            size += len(piece)
    except zstandard.ZstdError as error:
        if not pieces:
            raise ValueError(f"corrupt zstd body: {error}") from error
    if not pieces and not _is_whole_frame(body):
        raise ValueError("a zstd body cut short before its first block's end")
    return _bounded(b"".join(pieces), max_bytes)


def _is_whole_frame(body: bytes) -> bool:
    frame = zstandard.ZstdDecompressor().decompressobj()
    frame.decompress(body)
    return bool(frame.eof)


def _bounded(data: bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise BodyTooLargeError(f"more than {max_bytes} bytes")
    return data


def page_charset(body: bytes, header: str | None) -> str:
    """Name a page's charset: byte order mark, HTTP header, meta element, then detection.

    The name is that of the WHATWG Encoding Standard. UTF-16 without a mark is seen before the
    header is asked: no other charset of HTML has NUL in most of every second byte, so a header that
    says otherwise is a server's default.
    """
    for mark, name in _BOMS:
        if body.startswith(mark):
            return name
    if utf16 := _utf16_by_nuls(body):
        return utf16
    if from_header := _known(header):
        return from_header
    if declared := _declared(body):
        # a page whose meta could be read as ASCII is not in UTF-16; HTML says what the other means
        is_utf16 = declared.startswith("utf-16")
        return "utf-8" if is_utf16 else "windows-1252" if declared == "x-user-defined" else declared
    if b"\x1b" not in body:  # an escape may be ISO-2022's, which is ASCII to the eye
        try:
            body.decode("utf-8")
            return "utf-8"  # other charsets pass this test by chance about never
        except UnicodeDecodeError:
            pass
    detected = detect_encoding(body, html5_compatible=False) or ""
    return charset_of(_DETECTED.get(detected, detected.replace("_", "-"))) or "utf-8"


def _utf16_by_nuls(body: bytes) -> str | None:
    sample = body[:_SAMPLE_BYTES]
    pairs = len(sample) // 2
    first, second = sample[0 : 2 * pairs : 2].count(0), sample[1 : 2 * pairs : 2].count(0)
    if max(first, second) < max(4, _MIN_NUL_FRACTION * pairs):
        return None
    if 2 * min(first, second) > max(first, second):
        return None  # NULs everywhere: no text
    return "utf-16le" if second > first else "utf-16be"


def _declared(body: bytes) -> str | None:
    """Return the charset of the first meta element that names one, outside comments and scripts."""
    for match in _META.finditer(body, 0, _META_WINDOW_BYTES):
        if match.group(2) is None:
            continue
        found = {
            name.lower(): b"".join(values)
            for name, *values in _META_ATTRIBUTE.findall(match.group(2))
        }
        content = found.get(b"content", b"")
        if b"charset" in found:
            label = _LABEL.match(found[b"charset"])
        elif found.get(b"http-equiv", b"").lower() == b"content-type" or b"text/html" in content:
            label = _LABEL.search(content, content.lower().find(b"charset"))
        else:
            continue
        if label and (declared := _known(label.group(1).decode("ascii"))):
            return declared
    return None


def decode_text(body: bytes, charset: str) -> str:
    """Decode a page; bytes that the charset does not have become U+FFFD."""
    return decode(body, charset).removeprefix("\ufeff")


def _known(label: str | None) -> str | None:
    return charset_of(label.strip().strip("\"'")) if label else None
