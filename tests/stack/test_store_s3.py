"""The artifact store on a real S3 server: what file:// promises holds there too.

The server is SeaweedFS with real conditional puts; it is stopped, restarted and put behind a proxy
that loses answers.
"""

import concurrent.futures
import http.server
import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import s3fs

from lmpipe.artifacts.build import build, find
from lmpipe.artifacts.lock import BuildLock
from lmpipe.artifacts.lookup import home, identify
from lmpipe.artifacts.process import build_in_child
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.stage import Stage, StageConfig
from lmpipe.artifacts.store import Store
from lmpipe.errors import LmpipeError, LockLost, StoreError, StoreUnavailable
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CopyConfig, CountConfig, TrainConfig, copy, count, train
from tests.services.lossy_proxy import LossyProxy
from tests.services.processes import wait_until
from tests.services.seaweedfs import SeaweedFS
from tests.stack.stages import SlowConfig, slow

BUCKET = "store-tests"


@pytest.fixture(scope="module")
def bucket(seaweedfs: SeaweedFS) -> str:
    return seaweedfs.create_bucket(BUCKET)


@pytest.fixture
def store(seaweedfs: SeaweedFS, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    enter(monkeypatch, seaweedfs.environment)
    yield Store(f"{bucket}/{secrets.token_hex(4)}")
    s3fs.S3FileSystem.clear_instance_cache()


def enter(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    """Let stores opened from now on see another endpoint or key: fsspec keeps its instances."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()


def make(store: Store, config: CountConfig | None = None, **options: Any) -> Any:
    return build(count, config or CountConfig(), {}, store=store, runtime=Runtime(), **options)


def in_child(
    store: Store, stage: Stage[Any], config: StageConfig, inputs: Any = None, **options: Any
) -> Any:
    runtime = options.pop("runtime", Runtime())
    sink = options.pop("sink", lambda event: None)
    lines = options.pop("lines", [])
    return build_in_child(
        stage,
        config,
        inputs or {},
        store=store,
        runtime=runtime,
        sink=sink,
        line_sink=lines.append,
        **options,
    )


def test_of_eight_writers_one_creates_and_one_replaces(store: Store) -> None:
    barrier = threading.Barrier(8)

    def create(writer: int) -> str | None:
        barrier.wait()
        return Store(store.root).create("a/manifest.json", b"%d" % writer)

    def replace(writer: int) -> str | None:
        barrier.wait()
        return Store(store.root).replace("a/manifest.json", b"new %d" % writer, created)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        etags = list(pool.map(create, range(8)))
        (winner,) = [number for number, etag in enumerate(etags) if etag is not None]
        created = etags[winner] or ""
        assert store.read_tagged("a/manifest.json") == (b"%d" % winner, created)

        etags = list(pool.map(replace, range(8)))
    (winner,) = [number for number, etag in enumerate(etags) if etag is not None]
    assert store.read_tagged("a/manifest.json") == (b"new %d" % winner, etags[winner])
    assert store.replace("a/manifest.json", b"late", created) is None
    assert store.replace("a/nothing.json", b"late", created) is None
    assert store.read("a/manifest.json") == b"new %d" % winner


def test_s3_and_file_give_the_same_ids_digests_and_bytes(store: Store, tmp_path: Path) -> None:
    made = []
    for each in (store, Store(str(tmp_path / "store"))):
        documents = in_child(each, count, CountConfig(num_shards=3), runtime=Runtime(workers=2))
        copied = in_child(each, copy, CopyConfig(suffix="x"), {"documents": documents})
        made.append((documents.id, documents.digest, copied.id, copied.digest))
        assert [copied.read_bytes(name) for name in copied.names()] == [b"0\n1\n2\nx"] * 3
        assert copied.missing() == [] and copied.corrupt() == []
    assert made[0] == made[1]


def test_a_deleted_and_a_truncated_object_are_rebuilt(store: Store) -> None:
    first = make(store)
    path = first.record("kept/00001.txt").path
    store.delete(path)
    assert first.missing() == ["kept/00001.txt"]
    assert find(count, first.id, store, Runtime()) is None
    second = make(store)
    assert second.missing() == [] and second.digest == first.digest
    with store.open(second.record("kept/00000.txt").path, "wb") as file:
        file.write(b"0")
    assert second.missing() == ["kept/00000.txt"]
    assert make(store).corrupt() == []


def test_a_copied_source_outlives_its_original(store: Store, tmp_path: Path) -> None:
    original = tmp_path / "items.jsonl"
    original.write_bytes(b'{"text": "one"}\n' * 1000)
    pinned = pin("items", SourceSpec(paths=(str(original),), copy_files=True), tmp_path)
    runtime = Runtime(locations=pinned.locations, copy_sources=True)
    made = in_child(store, source, pinned.config, runtime=runtime)
    original.unlink()
    found = find(source, made.id, store, Runtime())
    assert found is not None and found.url("items.jsonl").startswith(store.root)
    assert found.local("items.jsonl").read_bytes() == b'{"text": "one"}\n' * 1000
    with found.open("items.jsonl") as file:
        assert file.read(8) == b'{"text":'


def test_shards_finished_before_a_kill_are_adopted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CountConfig(num_shards=4, die_at="00002")
    with pytest.raises(LmpipeError, match=r"SIGKILL.*likely out of memory"):
        in_child(store, count, config)
    assert store.size(f"{home('count', identify(count, config, {}))}/manifest.json") is None
    monkeypatch.setenv("SURVIVE", "1")
    events: list[dict[str, Any]] = []
    started = time.monotonic()
    whole = in_child(store, count, config, sink=events.append)
    assert time.monotonic() - started < 30  # the dead holder's lock is not waited for
    assert any("adopted 2 of 4" in event.get("message", "") for event in events)
    assert whole.missing() == []
    assert whole.digest == make(Store(str(tmp_path / "undisturbed")), config).digest


def test_a_training_resumes_from_its_checkpoint_in_the_bucket(store: Store) -> None:
    documents = make(store)
    config = TrainConfig(steps=4, mode="die")
    with pytest.raises(LmpipeError, match="SIGKILL"):
        in_child(store, train, config, {"documents": documents})
    resumed = in_child(store, train, config, {"documents": documents})
    assert resumed.metrics["started_at"] == 2


def test_a_silent_lock_is_taken_over_and_a_beating_one_is_not(store: Store) -> None:
    store.create("a/lock.json", b'{"token": "dead", "pid": 1, "host": "gone", "beat": 3}')
    started = time.monotonic()
    with BuildLock(store, "a/lock.json", lease_seconds=2.0) as lock:
        assert time.monotonic() - started >= 2.0
        waiting = BuildLock(store, "a/lock.json", lease_seconds=2.0)
        waiter = threading.Thread(target=waiting.__enter__, daemon=True)
        waiter.start()
        time.sleep(5)
        assert waiter.is_alive()
        lock.check()
    waiter.join(timeout=10)
    assert not waiter.is_alive()
    with pytest.raises(LockLost):
        lock.check()
    waiting.check()
    waiting.__exit__(None, None, None)


def test_a_builder_that_lost_its_lock_publishes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = identify(count, CountConfig(), {})
    path = f"{home('count', artifact)}/lock.json"

    def steal(self: Any, name: str, value: Any) -> None:
        current = store.read_tagged(path)
        assert current is not None
        store.replace(path, b'{"token": "thief", "beat": 0}', current[1])

    monkeypatch.setattr("lmpipe.artifacts.output.Output.metric", steal)
    with pytest.raises(LockLost, match="taken over"):
        make(store)
    assert find(count, artifact, store, Runtime()) is None


def test_a_builder_that_is_frozen_over_its_lease_cannot_overwrite_its_successor(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock says nothing wrong here: only the conditional put of the manifest can refuse."""
    artifact = identify(count, CountConfig(), {})

    def publish_first(self: Any) -> None:
        manifest = {**json.loads(json.dumps(foreign)), "attempt": "successor"}
        store.create(f"{home('count', artifact)}/manifest.json", json.dumps(manifest).encode())

    foreign = make(Store(store.root + "-elsewhere")).manifest.model_dump(mode="json")
    monkeypatch.setattr("lmpipe.artifacts.lock.BuildLock.check", publish_first)
    with pytest.raises(LockLost, match="published by another builder"):
        make(store)
    data = store.read(f"{home('count', artifact)}/manifest.json")
    assert data is not None and json.loads(data)["attempt"] == "successor"


def test_two_builders_in_processes_of_their_own_build_once(store: Store) -> None:
    config = SlowConfig(num_shards=3, seconds=1.0)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(in_child, store, slow, config) for _ in range(2)]
        attempts = {run.result().manifest.attempt for run in runs}
    assert len(attempts) == 1
    folder = f"{home('slow', identify(slow, config, {}))}/attempts"
    assert store.children(folder) == list(attempts)


def test_a_wrong_secret_is_an_error_that_says_so_and_never_a_hit_or_a_miss(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(store)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "guessed")
    s3fs.S3FileSystem.clear_instance_cache()
    refused = Store(store.root)
    with pytest.raises(StoreError, match=r"s3://.*access refused.*AWS credentials"):
        find(count, made.id, refused, Runtime())
    calls = [
        lambda: refused.read("a"),
        lambda: refused.size("a"),
        lambda: refused.sizes("count"),
        lambda: refused.children("count"),
        lambda: refused.create("a", b""),
        lambda: refused.replace("a", b"", '"0"'),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="access refused"):
            call()
    with pytest.raises(StoreError, match="access refused"):
        in_child(refused, count, CountConfig())


def test_missing_credentials_are_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match="access refused"):
        make(Store(store.root))


class NoSuchBucket(http.server.BaseHTTPRequestHandler):
    """Answers as AWS does for a bucket that does not exist; SeaweedFS makes it instead."""

    def do_GET(self) -> None:
        body = b"<Error><Code>NoSuchBucket</Code><Message>No such bucket</Message></Error>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    do_PUT = do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.timeout(60)
def test_a_bucket_that_does_not_exist_is_an_error_and_no_endless_wait(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NoSuchBucket) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        enter(monkeypatch, {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"})
        with pytest.raises(StoreError, match="no-such-bucket does not exist"):
            make(Store("s3://no-such-bucket/prefix"))
        server.shutdown()


def test_a_store_that_is_away_is_named_as_such(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmpipe.artifacts.store.S3_ATTEMPTS", 2)
    enter(monkeypatch, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    away = Store(store.root)
    for call in (lambda: away.read("a"), lambda: away.create("a", b""), lambda: away.sizes("a")):
        with pytest.raises(StoreUnavailable, match="AWS_ENDPOINT_URL"):
            call()


@pytest.mark.parametrize("object_name", ["lock.json", "manifest.json"])
def test_a_write_whose_answer_gets_lost_is_recognised_as_our_own(
    store: Store, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch, object_name: str
) -> None:
    """The client retries and is told 412 by its own first try: no LockLost, no wait for a lease."""
    with LossyProxy(seaweedfs.port) as proxy:
        enter(monkeypatch, {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"})
        proxy.lose_answer_to(b"PUT ", object_name.encode())
        started = time.monotonic()
        made = make(Store(store.root))
        assert proxy.lost == 1
        assert time.monotonic() - started < 30
    enter(monkeypatch, seaweedfs.environment)
    assert made.manifest.attempt == make(store).manifest.attempt


def finished_shards(store: Store, folder: str) -> int:
    return sum("/done/" in path for path in store.sizes(folder))


def test_a_pause_of_the_object_store_is_survived(store: Store, seaweedfs: SeaweedFS) -> None:
    config = SlowConfig(num_shards=6, seconds=0.5)
    folder = f"{home('slow', identify(slow, config, {}))}/attempts"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(in_child, store, slow, config)
        wait_until(lambda: finished_shards(store, folder) >= 1, timeout_seconds=60, what="a shard")
        seaweedfs.process.pause()
        try:
            time.sleep(8)
            assert not run.done()
        finally:
            seaweedfs.process.resume()
        assert run.result(timeout=120).missing() == []


def test_workers_of_a_killed_stage_end_with_it(store: Store) -> None:
    """The executor's manager included: each would hold memory and the pipe of the log."""
    config = SlowConfig(num_shards=4, seconds=30)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            in_child(store, slow, config, runtime=Runtime(workers=2))
        except LmpipeError as error:
            failures.append(error)

    before = set(psutil.Process().children(recursive=True))
    thread = threading.Thread(target=run)
    thread.start()
    wait_until(
        lambda: len(set(psutil.Process().children(recursive=True)) - before) >= 4,
        timeout_seconds=60,
        what="the start of child, manager and two workers",
    )
    time.sleep(2)
    family = set(psutil.Process().children(recursive=True)) - before
    child = next(p for p in family if p.ppid() == os.getpid())
    child.send_signal(signal.SIGKILL)
    # the child itself is waited for by `run`: whoever is first takes how it ended from the kernel
    _, alive = psutil.wait_procs(family - {child}, timeout=10)
    orphans = [process.cmdline() for process in alive]
    for process in alive:
        process.kill()
    assert not orphans
    thread.join(timeout=30)
    assert "SIGKILL" in str(failures[0])
