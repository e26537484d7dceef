import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lmpipe.artifacts.alias import find_by_prefix
from lmpipe.artifacts.build import build, find
from lmpipe.artifacts.lock import BuildLock
from lmpipe.artifacts.lookup import identify, nearest
from lmpipe.artifacts.process import build_in_child
from lmpipe.artifacts.store import Store
from lmpipe.errors import InputError, LockLost, StageFailed, StoreError, StoreUnavailable
from lmpipe.runtime import Runtime
from tests.artifacts.stages import (
    CopyConfig,
    CountConfig,
    TrainConfig,
    copy,
    count,
    train,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def make(store: Store, config: CountConfig | None = None, **options: object):
    return build(count, config or CountConfig(), {}, store=store, runtime=Runtime(), **options)


def test_second_build_is_served_from_the_store(store: Store):
    first = make(store)
    assert first.read_bytes("kept/00000.txt") == b"0\n1\n2\n"
    assert first.metrics["lines"] == 6
    assert make(store).manifest.attempt == first.manifest.attempt


def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path):
    config = CountConfig(num_shards=5)
    digests = {
        build(
            count, config, {}, store=Store(str(tmp_path / str(n))), runtime=Runtime(workers=n)
        ).digest
        for n in (1, 2, 4)
    }
    assert len(digests) == 1


def test_deleted_or_truncated_output_is_rebuilt(store: Store):
    first = make(store)
    path = Path(store.full(first.record("kept/00001.txt").path))
    path.write_bytes(path.read_bytes()[:-1])
    assert first.missing() == ["kept/00001.txt"]
    second = make(store)
    assert second.missing() == [] and second.digest == first.digest
    Path(store.full(second.record("kept/00000.txt").path)).unlink()
    assert make(store).missing() == []


def test_rehash_finds_a_flipped_bit_that_the_size_hides(store: Store):
    first = make(store)
    path = Path(store.full(first.record("kept/00001.txt").path))
    path.write_bytes(b"9" + path.read_bytes()[1:])
    assert first.missing() == [] and first.corrupt() == ["kept/00001.txt"]


def test_force_adds_an_attempt_and_the_same_bytes_leave_consumers_valid(store: Store):
    first = make(store)
    consumer = identify(copy, CopyConfig(), {"documents": first})
    second = make(store, force=True)
    assert second.manifest.attempt != first.manifest.attempt
    assert identify(copy, CopyConfig(), {"documents": second}) == consumer


def test_force_makes_published_shards_anew_and_adopts_those_of_a_killed_forced_attempt(
    store: Store, monkeypatch
):
    config = CountConfig(num_shards=3, die_at="00001")
    monkeypatch.setenv("SURVIVE", "1")
    first = make(store, config)
    events = []
    second = make(store, config, force=True, sink=events.append)
    assert not any("adopted" in event.get("message", "") for event in events)
    paths = [{file.path for file in made.manifest.outputs} for made in (first, second)]
    assert not paths[0] & paths[1]
    monkeypatch.delenv("SURVIVE")
    with pytest.raises(StageFailed):
        run_in_child(store, count, config, {}, force=True)
    monkeypatch.setenv("SURVIVE", "1")
    third = make(store, config, force=True, sink=events.append)
    assert any("adopted 1 of 3" in event.get("message", "") for event in events)
    assert third.digest == first.digest and third.missing() == []


def test_a_forced_statistical_stage_makes_its_consumers_stale(store: Store):
    documents = make(store)
    options = {"store": store, "runtime": Runtime()}
    first = build(train, TrainConfig(), {"documents": documents}, **options)
    second = build(train, TrainConfig(), {"documents": documents}, force=True, **options)
    assert first.digest != second.digest


def test_finished_shards_are_adopted_after_a_kill(store: Store, monkeypatch):
    config = CountConfig(num_shards=3, die_at="00001")
    with pytest.raises(StageFailed, match=r"SIGKILL.*likely out of memory"):
        run_in_child(store, count, config, {})
    home = f"count/{identify(count, config, {})}"
    assert store.size(f"{home}/manifest.json") is None
    monkeypatch.setenv("SURVIVE", "1")
    events = []
    whole = make(store, config, sink=events.append)
    assert any("adopted 1 of 3" in event.get("message", "") for event in events)
    assert whole.missing() == [] and whole.metrics["lines"] == 9
    assert whole.digest == make(Store(store.root + "-undisturbed"), config).digest


def run_in_child(store, stage, config, inputs, lines=None, events=None, force=False, runtime=None):
    return build_in_child(
        stage,
        config,
        inputs,
        store=store,
        runtime=runtime or Runtime(),
        force=force,
        sink=(events if events is not None else []).append,
        line_sink=(lines if lines is not None else []).append,
    )


def test_training_resumes_from_the_newest_whole_checkpoint(store: Store, tmp_path: Path):
    documents = make(store)
    config = TrainConfig(steps=4, mode="die")
    with pytest.raises(StageFailed, match="SIGKILL"):
        run_in_child(store, train, config, {"documents": documents})
    home = f"train/{identify(train, config, {'documents': documents})}"
    newest = max(p for p in store.sizes(home) if p.endswith("COMPLETE.json"))
    store.delete(newest)  # as if killed in the middle of the upload
    with pytest.raises(StageFailed):
        run_in_child(store, train, config, {"documents": documents})  # dies at step 2 again
    runtime = Runtime(scratch=str(tmp_path / "large disk"))
    resumed = run_in_child(store, train, config, {"documents": documents}, runtime=runtime)
    assert resumed.metrics["started_at"] == 2
    assert resumed.metrics["resumed_in"] == runtime.scratch  # a checkpoint may not fit elsewhere
    assert not list(Path(runtime.scratch).iterdir())


def test_output_of_children_native_too_reaches_the_caller_and_the_store(store: Store):
    documents, lines = make(store), []
    run_in_child(store, train, TrainConfig(mode="print"), {"documents": documents}, lines)
    assert {"native line", "python line"} <= set(lines)
    logs = [path for path in store.sizes("train") if "/logs/" in path]
    assert b"native line" in store.read(logs[0])


def test_errors_of_the_child_keep_their_class_and_message(store: Store):
    documents = make(store)
    with pytest.raises(InputError, match="record 7"):
        run_in_child(store, train, TrainConfig(mode="input_error"), {"documents": documents})


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), OSError("disk full")])
def test_a_log_that_cannot_be_stored_hides_neither_the_result_nor_the_error(
    store: Store, monkeypatch, error: Exception
):
    def refuse(self, local, path):
        raise error

    documents, lines = make(store), []
    monkeypatch.setattr(Store, "upload", refuse)
    built = run_in_child(store, count, CountConfig(lines=1), {}, lines)
    assert built.metrics["lines"] == 2
    with pytest.raises(InputError, match="record 7"):
        run_in_child(store, train, TrainConfig(mode="input_error"), {"documents": documents})
    assert f"the log could not be stored: {error}" in lines


def test_a_child_killed_in_the_middle_of_an_event_ends_by_its_signal(store: Store):
    documents = make(store)
    with pytest.raises(StageFailed, match="SIGKILL"):
        run_in_child(store, train, TrainConfig(mode="half_a_line"), {"documents": documents})


def test_a_killed_parent_takes_the_child_with_it(store: Store, tmp_path: Path):
    make(store)
    script = (
        "from tests.artifacts.test_build import *\n"
        f"store = Store({store.root!r})\n"
        "run_in_child(store, train, TrainConfig(mode='hang'), {'documents': make(store)})\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    import psutil

    deadline = time.monotonic() + 60
    while len(psutil.Process(parent.pid).children(recursive=True)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = psutil.Process(parent.pid).children()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    psutil.wait_procs(children, timeout=10)
    assert not any(child.is_running() for child in children)
    os.killpg(children[0].pid, signal.SIGKILL)  # the shell's own background sleep


def test_two_builders_at_once_build_once(store: Store):
    config = CountConfig(lines=20_000, num_shards=4)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(make(store, config))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({r.manifest.attempt for r in results}) == 1 and len(results) == 4


def test_a_builder_that_lost_its_lock_publishes_nothing(store: Store, monkeypatch):
    path = f"count/{identify(count, CountConfig(), {})}/lock.json"

    def steal(self, name, value):
        current = store.read_tagged(path)
        store.replace(path, b'{"token": "thief", "beat": 0}', current[1])

    monkeypatch.setattr("lmpipe.artifacts.output.Output.metric", steal)
    with pytest.raises(LockLost, match="taken over"):
        make(store)
    assert find(count, identify(count, CountConfig(), {}), store, Runtime()) is None


def test_a_silent_lock_is_taken_over_and_a_beating_one_is_not(store: Store):
    store.create("a/lock.json", b'{"token": "dead", "pid": 1, "host": "gone", "beat": 3}')
    started = time.monotonic()
    with BuildLock(store, "a/lock.json", lease_seconds=1.0) as lock:  # the holder is unseen
        assert time.monotonic() - started >= 1.0
        lock.check()
        waiter = threading.Thread(
            target=lambda: BuildLock(store, "a/lock.json", lease_seconds=1.0).__enter__(),
            daemon=True,
        )
        waiter.start()
        time.sleep(2.5)
        assert waiter.is_alive()
        lock.check()
    waiter.join(timeout=5)
    assert not waiter.is_alive()


def test_a_clock_that_is_wrong_takes_no_lock_over(store: Store, monkeypatch: pytest.MonkeyPatch):
    """Only the observer's own steady clock counts, from the last beat that it saw."""
    with BuildLock(store, "a/lock.json", lease_seconds=1.5) as lock:
        true = time.time
        monkeypatch.setattr(time, "time", lambda: true() + 10 * 86_400)  # and files look old
        waiter = threading.Thread(
            target=lambda: BuildLock(store, "a/lock.json", lease_seconds=1.5).__enter__(),
            daemon=True,
        )
        waiter.start()
        time.sleep(2.5)
        assert waiter.is_alive()
        lock.check()
    waiter.join(timeout=5)
    assert not waiter.is_alive()


def test_a_wiped_store_is_filled_anew_with_the_same_bytes(store: Store, tmp_path: Path):
    first = make(store)
    shutil.rmtree(Path(store.full("")))
    assert find(count, identify(count, CountConfig(), {}), store, Runtime()) is None
    again = make(store)
    assert (again.id, again.digest) == (first.id, first.digest) and again.missing() == []


def test_a_failing_stage_on_a_full_disk_says_its_own_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """Neither the record of the attempt nor its log may hide what the stage said."""
    documents = make(store)

    def full(_: Store, written: object, *more: object) -> None:
        if written is not None:
            raise StoreError("no space left")

    monkeypatch.setattr("lmpipe.artifacts.attempts.record", full)
    with pytest.raises(InputError, match="record 7"):
        build(train, TrainConfig(mode="input_error"), {"documents": documents}, store=store,
              runtime=Runtime())  # fmt: skip
    monkeypatch.undo()
    lines: list[str] = []
    monkeypatch.setattr(Store, "upload", full)
    with pytest.raises(InputError, match="record 7"):
        run_in_child(store, train, TrainConfig(mode="input_error"), {"documents": documents}, lines)
    assert any("the log could not be stored: no space left" in line for line in lines)


def test_a_full_disk_in_a_stage_is_an_error_of_the_store_without_a_trace(store: Store):
    documents = make(store)
    with pytest.raises(StoreError, match=r"no space left .*free space and run again") as caught:
        run_in_child(store, train, TrainConfig(mode="full"), {"documents": documents})
    assert "Traceback" not in str(caught.value)


def test_a_full_disk_in_the_manifest_write_is_an_error_and_no_artifact(store: Store, monkeypatch):
    real = os.fsync

    def full(descriptor: int) -> None:
        if "manifest" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="no space left"):
        make(store)
    monkeypatch.undo()
    assert find(count, identify(count, CountConfig(), {}), store, Runtime()) is None
    assert make(store).missing() == []


def test_a_damaged_manifest_stops_nobody_who_asks_for_another_artifact(store: Store):
    built = make(store, CountConfig(lines=3))
    damaged = "f" * 24 if not built.id.startswith("f") else "0" * 24
    assert store.create(f"count/{damaged}/manifest.json", b"{")
    for name in (built.id[:8], f"count/{built.id[:8]}", "count"):
        assert find_by_prefix(store, name).id == built.id
    assert nearest(store, count, CountConfig(lines=7), {})[0].id == built.id
    with pytest.raises(StoreError, match="is not JSON"):
        find_by_prefix(store, damaged[:8])


def test_a_disk_that_fills_up_under_a_shard_is_named_and_the_next_run_goes_on(
    store: Store, monkeypatch
):
    """/dev/full stands for the disk: it takes no byte."""
    opened = Store.open

    def full(self: Store, path: str, mode: str = "rb") -> object:
        if path.endswith("kept/00001.txt"):
            return open("/dev/full", "wb")  # noqa: PTH123
        return opened(self, path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "open", full)
        with pytest.raises(
            StoreError, match=r"no space left for file://.*kept/00001\.txt: nothing"
        ):
            make(store)
    assert find(count, identify(count, CountConfig(), {}), store, Runtime()) is None

    def spill(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tests.artifacts.stages._write", spill)
        with pytest.raises(
            StoreError, match=r"no space left for temporary files in /.*, or in file:"
        ):
            make(store)
    assert make(store).metrics["lines"] == 6


def test_the_nearest_artifact_is_named_with_the_fields_that_differ(store: Store):
    first = make(store)
    manifest, differences = nearest(store, count, CountConfig(lines=7), {})
    assert manifest.id == first.id
    assert [str(d) for d in differences] == ["config.lines: 3 → 7"]
