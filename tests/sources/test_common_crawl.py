import gzip
import hashlib
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lmpipe.errors import ConfigError, InputError
from lmpipe.sources.common_crawl import Patience, choose, download

SNAPSHOT = "CC-MAIN-2024-10"
LISTING = f"/crawl-data/{SNAPSHOT}/warc.paths.gz"
QUICK = Patience(attempts=4, first_pause_seconds=0.001, timeout_seconds=5)


@dataclass
class Crawl:
    """A server of a small crawl with planned faults: one is taken from the plan at each request.

    A fault is a status to answer, or "drop"/"short" (the connection ends in the middle of the body;
    "short" without a word of how long it should be), "damage", "change" (another object and ETag).
    """

    files: dict[str, bytes]
    faults: dict[str, list[int | str]] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    knows_ranges: bool = True
    url: str = ""

    def warc(self, index: int) -> str:
        return sorted(name for name in self.files if name.endswith(".warc.gz"))[index]


def answer(crawl: Crawl, request: BaseHTTPRequestHandler) -> None:
    asked = request.headers.get("Range")
    crawl.requests.append((request.path, asked))
    if request.path not in crawl.files:
        return request.send_error(404)
    fault = crawl.faults.get(request.path, [])[:1]
    crawl.faults[request.path] = crawl.faults.get(request.path, [])[1:]
    if fault == ["change"]:
        crawl.files[request.path] = gzip.compress(b"another object" * 5000, mtime=0)
    data = crawl.files[request.path]
    if fault and isinstance(fault[0], int):
        return request.send_error(fault[0])
    etag = f'"{hashlib.md5(data).hexdigest()}"'
    start = 0
    if asked and crawl.knows_ranges and request.headers.get("If-Range") == etag:
        start = int(asked.removeprefix("bytes=").rstrip("-"))
    if start and start >= len(data):
        request.send_response(416)
        request.send_header("Content-Range", f"bytes */{len(data)}")
        request.send_header("Content-Length", "0")
        request.end_headers()
        return None
    body = data[start:]
    if fault == ["damage"]:
        body = body[: len(body) // 2] + b"\0" * 64 + body[len(body) // 2 + 64 :]
    request.send_response(206 if start else 200)
    if crawl.knows_ranges:
        request.send_header("ETag", etag)
    if fault != ["short"]:
        request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body[: len(body) // 2] if fault in (["drop"], ["short"]) else body)
    return None


@pytest.fixture
def crawl() -> Iterator[Crawl]:
    rng = random.Random(0)
    paths = [f"crawl-data/{SNAPSHOT}/segments/1.{n}/warc/{n:05d}.warc.gz" for n in range(6)]
    files = {
        f"/{path}": b"".join(gzip.compress(rng.randbytes(9000), mtime=0) for _ in range(4))
        for path in paths
    }
    files[LISTING] = gzip.compress("\n".join(paths).encode(), mtime=0)
    served = Crawl(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(served, self)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def get(crawl: Crawl, to: Path, num_files: int = 6, **options: object) -> list[Path]:
    return download(SNAPSHOT, num_files, to, base_url=crawl.url, patience=QUICK, **options)


def assert_whole(crawl: Crawl, files: list[Path]) -> None:
    by_name = {path.rsplit("/", 1)[-1]: data for path, data in crawl.files.items()}
    assert files and all(file.read_bytes() == by_name[file.name] for file in files)
    assert not [*files[0].parent.glob("*.part"), *files[0].parent.glob("*.etag")]


def test_downloads_the_files_that_seed_and_number_choose(crawl: Crawl, tmp_path: Path):
    told: list[tuple[str, int, int]] = []
    files = get(crawl, tmp_path / "new" / "folder", 3, progress=lambda *event: told.append(event))
    assert_whole(crawl, files)
    last = {name: (done, total) for name, done, total in told}
    assert last == {file.name: (file.stat().st_size,) * 2 for file in files}


def test_a_larger_number_takes_the_same_files_and_more():
    paths = [f"p/{n}" for n in range(50)]
    assert choose(paths, 20, 1, SNAPSHOT)[:5] == choose(paths[::-1], 5, 1, SNAPSHOT)
    assert choose(paths, 5, 2, SNAPSHOT) != choose(paths, 5, 1, SNAPSHOT)


def test_whole_files_are_not_asked_again(crawl: Crawl, tmp_path: Path):
    get(crawl, tmp_path, 2)
    before = len(crawl.requests)
    assert_whole(crawl, get(crawl, tmp_path, 2))
    assert len(crawl.requests) == before


def test_goes_on_after_drops_short_bodies_and_busy_servers(crawl: Crawl, tmp_path: Path):
    crawl.faults = {
        LISTING: [503, "drop"],
        crawl.warc(0): ["drop", "drop", "drop", 503, "drop"],
        crawl.warc(1): ["short"],
        crawl.warc(2): [429, 500, 403],
    }
    assert_whole(crawl, get(crawl, tmp_path))
    ranges = [asked for path, asked in crawl.requests if path == crawl.warc(0)]
    assert len(ranges) == 6
    starts = [int(asked[6:-1]) for asked in ranges[1:] if asked]
    assert len(starts) == 5 and starts == sorted(starts)


def test_a_later_run_goes_on_from_the_partial_file(crawl: Crawl, tmp_path: Path):
    crawl.faults = {crawl.warc(0): ["drop", 503, 503, 503, 503]}
    with pytest.raises(InputError, match="attempts in a row got nothing more"):
        get(crawl, tmp_path)
    (part,) = tmp_path.glob("*.part")
    size = part.stat().st_size
    assert 0 < size < len(crawl.files[crawl.warc(0)])
    assert not (tmp_path / part.stem).exists()
    crawl.faults, crawl.requests = {}, []
    assert_whole(crawl, get(crawl, tmp_path))
    assert (crawl.warc(0), f"bytes={size}-") in crawl.requests


def test_a_partial_file_that_was_whole_already_is_kept(crawl: Crawl, tmp_path: Path):
    data = crawl.files[crawl.warc(0)]
    name = crawl.warc(0).rsplit("/", 1)[-1]
    (tmp_path / f"{name}.part").write_bytes(data)
    (tmp_path / f"{name}.etag").write_text(f'"{hashlib.md5(data).hexdigest()}"')
    assert_whole(crawl, get(crawl, tmp_path))


def test_begins_again_where_the_object_changed_or_ranges_are_unknown(crawl: Crawl, tmp_path: Path):
    crawl.faults = {crawl.warc(0): ["drop", "change"]}
    assert_whole(crawl, get(crawl, tmp_path / "changed"))
    crawl.knows_ranges = False
    crawl.faults = {crawl.warc(1): ["drop"]}
    assert_whole(crawl, get(crawl, tmp_path / "plain"))


def test_a_damaged_file_is_asked_once_more_and_then_refused(crawl: Crawl, tmp_path: Path):
    crawl.faults = {crawl.warc(0): ["damage"]}
    assert_whole(crawl, get(crawl, tmp_path))
    crawl.faults = {crawl.warc(1): ["damage", "damage"]}
    with pytest.raises(InputError, match="gzip member"):
        get(crawl, tmp_path / "other")
    assert not (tmp_path / "other" / crawl.warc(1).rsplit("/", 1)[-1]).exists()


def test_what_is_not_there_is_an_error_at_once(crawl: Crawl, tmp_path: Path):
    with pytest.raises(InputError, match="answered 404"):
        download("CC-MAIN-1999-01", 1, tmp_path, base_url=crawl.url, patience=QUICK)
    assert len(crawl.requests) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_files": 0}, "num_files=0"),
        ({"num_files": 7}, "at most 6"),
        ({"base_url": "file:///etc"}, "https://"),
    ],
)
def test_wrong_arguments_are_named(crawl: Crawl, tmp_path: Path, options, message: str):
    arguments = {"num_files": 1, "base_url": crawl.url} | options
    number = arguments.pop("num_files")
    with pytest.raises(ConfigError, match=message):
        download(SNAPSHOT, number, tmp_path, patience=QUICK, **arguments)
