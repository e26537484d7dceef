import http.server
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import s3fs

from lmpipe.artifacts import s3
from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import HashingFile
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.store import S3_ATTEMPTS, Store
from lmpipe.errors import StoreError, StoreUnavailable
from lmpipe.runtime import Runtime
from tests.services.refusing_proxy import SLOW_DOWN

DATA = b"what lies in the bucket\n"


class Busy(http.server.BaseHTTPRequestHandler):
    """One object under every name, given after `refusals` tries of the same request."""

    protocol_version = "HTTP/1.1"
    wbufsize = 2**16  # head and body in one segment: two would wait 40 ms for an ACK
    refusals = 0
    tries: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        request = f"{self.command} {self.path}"
        self.tries[request] += 1
        is_refused = self.tries[request] % (self.refusals + 1) != 0
        body = SLOW_DOWN if is_refused else DATA
        self.send_response_only(503 if is_refused else 200)
        for name, value in {"Content-Length": str(len(body)), "ETag": '"e1"'}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def handle_expect_100(self) -> bool:
        answered = super().handle_expect_100()
        self.wfile.flush()  # the client sends no byte before
        return answered

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Busy]]:
    class Handler(Busy):
        tries: ClassVar[Counter[str]] = Counter()

    monkeypatch.setattr(s3, "MAX_PAUSE_SECONDS", 0.002)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        yield Handler
        server.shutdown()
    s3fs.S3FileSystem.clear_instance_cache()


def test_many_requests_refused_again_and_again_are_all_answered(busy: type[Busy]) -> None:
    """160 refusals: botocore's own 500 credits for retries would be gone after 100."""
    busy.refusals = 8
    store = Store("s3://bucket/prefix")
    assert [store.read(f"object-{number}") for number in range(20)] == [DATA] * 20
    assert set(busy.tries.values()) == {9}


def test_a_source_in_a_busy_bucket_is_pinned_and_read_as_patiently(
    busy: type[Busy], tmp_path: Path
) -> None:
    busy.refusals = 8
    pinned = pin("s", SourceSpec(paths=("s3://bucket/in/a.txt",), copy_files=True), tmp_path)
    runtime = Runtime(locations=pinned.locations, copy_sources=True)
    copied = build(source, pinned.config, {}, store=Store(str(tmp_path)), runtime=runtime)
    assert copied.local("a.txt").read_bytes() == DATA
    runtime = Runtime(locations=pinned.locations)
    made = build(source, pinned.config, {}, store=Store(str(tmp_path / "b")), runtime=runtime)
    with made.open("a.txt") as file:
        assert file.read() == DATA
    assert min(busy.tries.values()) >= 9


def test_a_store_that_refuses_for_ever_is_named_after_the_tries(busy: type[Busy]) -> None:
    busy.refusals = 10_000
    with pytest.raises(StoreUnavailable, match=r"s3://bucket/prefix/a: no answer after 10 tries"):
        Store("s3://bucket/prefix").size("a")
    assert S3_ATTEMPTS <= sum(busy.tries.values()) <= 3 * S3_ATTEMPTS


def test_an_object_that_a_silent_store_does_not_take_is_named(busy: type[Busy]) -> None:
    """Small objects are sent when they are closed, which is long after they were opened."""
    file = HashingFile(Store("s3://bucket/prefix"), "count/0/kept/00000.parquet", lambda *_: None)
    file.write(DATA)
    busy.refusals = 10_000
    with pytest.raises(StoreUnavailable, match=r"prefix/count/0/kept/00000.parquet: no answer"):
        file.close()


def test_a_refusal_without_a_number_is_one_too() -> None:
    """s3fs raises PermissionError with a text alone."""
    with (
        pytest.raises(StoreError, match=r"s3://bucket/a: access refused .*AWS credentials"),
        Store("s3://bucket").errors_of("a"),
    ):
        raise PermissionError("The request signature does not match")


def test_pauses_grow_up_to_a_bound_and_end_with_the_tries() -> None:
    class Refusal:
        status_code = 503

    session = s3.PatientSession(10)
    longest = [
        max(session._pause((Refusal, {}), attempt) or 0 for _ in range(200))
        for attempt in range(1, 10)
    ]
    for attempt, seconds in enumerate(longest, 1):
        bound = min(2 ** (attempt - 1), s3.MAX_PAUSE_SECONDS)
        assert bound / 2 < seconds < bound
    assert session._pause((Refusal, {}), 10) is None
    Refusal.status_code = 404
    assert session._pause((Refusal, {}), 1) is None


def test_filesystems_are_shared_among_all_who_ask() -> None:
    first, second = (s3fs.S3FileSystem(**s3.s3_options(3)) for _ in range(2))
    assert first is second
    assert s3fs.S3FileSystem(**s3.s3_options(4)) is not first
