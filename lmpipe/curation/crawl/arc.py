"""Read ARC, the Internet Archive's format before WARC, as WARC records.

A record is one line, `URL IP date content-type length`, and so many bytes, an HTTP response for
http URLs. Each is rewritten as a WARC response, so that one reader serves both formats. Its offset
is that of its gzip member, or of its line in a plain file. ARC has no record ids.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from lmpipe.curation.crawl.record_stream import RecordError, RecordStream, beginning

_LINE = re.compile(rb"^(\S+) (\S*) (\S+) (.*?) ?(\d+)$")
_DATE = re.compile(rb"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)")


def is_arc(path: Path) -> bool:
    """Say whether a file is an ARC, by its first line."""
    return beginning(path).startswith(b"filedesc://")


def arc_records(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, WARC record) of an ARC file from `start` on, without its own description.

    Raises:
        RecordError: the rest cannot be read.
    """
    with path.open("rb") as file:
        stream = RecordStream(file, start)
        while line := stream.first_line():
            offset = stream.line_offset
            match = _LINE.match(line.rstrip(b"\r\n"))
            if match is None:
                raise RecordError(f"no ARC record: {line[:60]!r}", offset)
            url, _, date, kind, size = match.groups()
            body = stream.read_all(size, offset)
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
