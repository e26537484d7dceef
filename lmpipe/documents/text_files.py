"""Text files from outside as UTF-8, by the one rule that every reader of them follows.

A byte order mark is a signature and no content: it names UTF-8, UTF-16 or UTF-32 and is left out.
Without one a file is UTF-8; UTF-16 without a mark is not guessed. Lines end at \\n alone, as those
of JSON Lines do: in its strings U+2028 and U+0085 stand as they are, where `str.splitlines` cuts.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lmpipe.errors import InputError

_BLOCK_BYTES = 1 << 16
_MARKS = (  # UTF-32's little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _marked(head: bytes) -> str | None:
    """Return Python's name of the encoding whose mark begins a file; None: no mark."""
    return next((name for mark, name in _MARKS if head.startswith(mark)), None)


def as_utf8(data: bytes) -> bytes:
    """Return a whole file as UTF-8 without a mark; what its encoding lacks becomes U+FFFD."""
    name = _marked(data)
    if name is None:
        return data
    if name == "utf-8-sig":  # bytes that are no UTF-8 stay, and are the reader's to judge
        return data.removeprefix(codecs.BOM_UTF8)
    return data.decode(name, "replace").encode()


def utf8_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a file's lines, each with its \\n, as UTF-8 without a mark."""
    first = file.readline()
    name = _marked(first)
    if name in (None, "utf-8-sig"):
        if first := first.removeprefix(codecs.BOM_UTF8):
            yield first
        yield from file
        return
    decoder = codecs.getincrementaldecoder(str(name))("replace")
    block, rest = first, ""
    while block:
        *lines, rest = (rest + decoder.decode(block)).split("\n")
        yield from (f"{line}\n".encode() for line in lines)
        block = file.read(_BLOCK_BYTES)
    if rest := rest + decoder.decode(b"", final=True):
        yield rest.encode()


def read_text_file(path: Path) -> str:
    """Read a text file, plain or .gz.

    Raises:
        InputError: it is no whole gzip file, or no UTF-8 and has no mark of another encoding.
    """
    data = path.read_bytes()
    try:
        plain = gzip.decompress(data) if path.suffix == ".gz" else data
        return as_utf8(plain).decode()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is no whole gzip file: {error}; fetch it again") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is no UTF-8 at byte {error.start} ({error.reason}), nor does it begin with "
            "the mark of UTF-16 or UTF-32; convert it to UTF-8"
        ) from error


def json_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number, from 1, and the bytes of every line of a JSON Lines file that holds any."""
    for number, line in enumerate(as_utf8(data).split(b"\n"), 1):
        if line.strip():
            yield number, line


def utf8_copy(path: Path, folder: Path) -> Path:
    """Return a file that is UTF-8: itself, or a copy in `folder` of one in UTF-16 or UTF-32."""
    data = path.read_bytes()
    if _marked(data) in (None, "utf-8-sig"):
        return path
    copy = folder / path.name
    copy.write_bytes(as_utf8(data))
    return copy
