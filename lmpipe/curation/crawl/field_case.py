"""WARC files whose field names are not in canonical case, as some writers' are.

The standard says that case does not matter; FastWARC sees a record without a type and without a
length. Each record is rewritten with the names as it knows them. The offset of a record is that of
its gzip member, or of its first line in a plain file.
"""

from collections.abc import Iterator
from pathlib import Path

from lmpipe.curation.crawl.record_stream import RecordError, RecordStream, beginning

_ACRONYMS = frozenset((b"warc", b"uri", b"id", b"ip"))
_NEEDED = frozenset((b"warc-type", b"content-length"))


def is_other_case(path: Path) -> bool:
    """Say whether the first record names its type or its length in another case."""
    first, *lines = beginning(path).replace(b"\r", b"").partition(b"\n\n")[0].split(b"\n")
    names = {line.partition(b":")[0].strip() for line in lines}
    return first.startswith(b"WARC/") and any(
        name.lower() in _NEEDED and name != _canonical(name) for name in names
    )


def other_case_records(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, record with canonical names) in order, from `start` on.

    Raises:
        RecordError: the rest cannot be read.
    """
    with path.open("rb") as file:
        stream = RecordStream(file, start)
        while line := stream.first_line():
            offset = stream.line_offset
            if not line.startswith(b"WARC/"):
                raise RecordError(f"no WARC record: {line[:60]!r}", offset)
            lines, length = [line.rstrip()], b""
            for field in stream.header(offset):
                name, colon, value = field.partition(b":")
                name = _canonical(name) if colon else name
                lines.append(name + colon + value)
                length = value.strip() if name == b"Content-Length" else length
            block = stream.read_all(length, offset)
            yield offset, b"\r\n".join([*lines, b"", block, b"", b""])


def _canonical(name: bytes) -> bytes:
    """Return a name as FastWARC looks for it: WARC-Target-URI, Content-Length."""
    parts = name.strip().lower().split(b"-")
    return b"-".join(part.upper() if part in _ACRONYMS else part.capitalize() for part in parts)
