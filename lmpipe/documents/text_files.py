"""Text files from outside as UTF-8, by the one rule that every reader of them follows.

A byte order mark is a signature and no content: it names UTF-8, UTF-16 or UTF-32 and is left out.
Without one a file is UTF-8; UTF-16 without a mark is not guessed. Lines end at \\n alone, as those
of JSON Lines do: in its strings U+2028 and U+0085 stand as they are, where `str.splitlines` cuts.
JSON may escape half of a surrogate pair, which is no character and in no encoding: it becomes
U+FFFD, as what an encoding lacks does. Refusing the line, the alternative, would lose a whole
conversation for half an emoji.
"""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lmpipe.errors import InputError

_BLOCK_BYTES = 1 << 16
_MARKS = (  # UTF-32's little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


# What may be half of a pair: its escape, or its three bytes, which Python's json lets through.
_MAYBE_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
_HALF = re.compile("[\ud800-\udfff]")


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


def parse_json(line: bytes | str) -> Any:
    """Return the value of a line of JSON Lines, halves of surrogate pairs as U+FFFD.

    Raises:
        ValueError: it is no JSON.
        RecursionError: its brackets are nested too deeply.
    """
    value = json.loads(line)
    data = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
    return _whole(value) if _MAYBE_HALF.search(data) else value


def _whole(value: Any) -> Any:
    """Return a JSON value whose strings are all Unicode text."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value


def utf8_copy(path: Path, folder: Path) -> Path:
    """Return a JSON Lines file that any reader takes: itself, or a copy of it in `folder`.

    A copy is made of one in UTF-16 or UTF-32, and of one that holds half a surrogate pair.
    """
    data = path.read_bytes()
    is_utf8 = _marked(data) in (None, "utf-8-sig")
    if is_utf8 and not _MAYBE_HALF.search(data):
        return path
    plain = as_utf8(data)
    if _MAYBE_HALF.search(plain):
        rows = [parse_json(line) for _, line in json_lines(plain)]
        plain = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    copy = folder / path.name
    copy.write_bytes(plain)
    return copy
