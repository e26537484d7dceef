"""Build small WARC files for tests."""

import gzip


def response(
    body: bytes,
    *,
    url: str = "http://example.com/",
    record_id: str | None = "<urn:uuid:0>",
    content_type: str | None = "text/html",
    headers: tuple[str, ...] = (),
    status: str = "200 OK",
    kind: str = "response",
    length_error: int = 0,
) -> bytes:
    """Return one record; `length_error` makes its Content-Length lie."""
    http = [f"HTTP/1.1 {status}", *headers]
    if content_type:
        http.append(f"Content-Type: {content_type}")
    block = "\r\n".join([*http, "", ""]).encode() + body
    warc = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        f"WARC-Target-URI: {url}",
        "WARC-Date: 2024-01-01T00:00:00Z",
        "Content-Type: application/http; msgtype=response",
        f"Content-Length: {len(block) + length_error}",
    ]
    if record_id:
        warc.insert(2, f"WARC-Record-ID: {record_id}")
    return "\r\n".join([*warc, "", ""]).encode() + block + b"\r\n\r\n"


def page(number: int, words: int = 80) -> bytes:
    """Return a page with enough prose for every extractor."""
    sentence = f"Page {number} has a sentence about subject {number * 7} and its use. "
    paragraphs = "".join(
        f"<p>Paragraph {part} of them. {sentence * 3}</p>" for part in range(max(1, words // 40))
    )
    return f"<!doctype html><html><body><article>{paragraphs}</article></body></html>".encode()


def archive(count: int, start: int = 0) -> bytes:
    """Return a .warc.gz of so many pages, one gzip member each."""
    records = [
        response(page(n), url=f"http://host{n % 3}.example/{n}", record_id=f"<urn:uuid:{n}>")
        for n in range(start, start + count)
    ]
    return b"".join(gzip.compress(record, mtime=0) for record in records)
