"""What gc keeps, what it deletes, and what it never takes from somebody who uses it."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flows.cli.operations import unfinished_lines
from lmpipe.artifacts import gc
from lmpipe.artifacts.alias import set_alias
from lmpipe.artifacts.build import build, find
from lmpipe.artifacts.gc import collect, preview
from lmpipe.artifacts.leases import RunLeases
from lmpipe.artifacts.lock import BuildLock
from lmpipe.artifacts.lookup import home, identify, read_manifest
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.retention import BestOf, RetentionPolicy
from lmpipe.artifacts.stage import Stage, StageConfig
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.tombstone import Tombstone, read_tombstone, when_collected, write_tombstone
from lmpipe.artifacts.types import Artifact
from lmpipe.errors import LockLost, StageFailed, StoreError, StoreUnavailable
from lmpipe.runtime import Runtime
from tests.artifacts.gc_processes import NOTHING_STAYS, disturb, start
from tests.artifacts.stages import CopyConfig, CountConfig, TrainConfig, copy, count, train
from tests.artifacts.test_build import run_in_child

UNSEEN = {"host": "elsewhere", "pid": 1, "born": 0.0, "namespace": "another boot"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def make(store: Store, lines: int = 3, **options: Any) -> Artifact:
    return built(store, count, CountConfig(lines=lines), **options)


def built(store: Store, stage: Stage[Any], config: StageConfig, **inputs: Any) -> Artifact:
    force = inputs.pop("force", False)
    made: Artifact = build(stage, config, inputs, store=store, runtime=Runtime(), force=force)
    return made


def data(store: Store, artifact: Artifact) -> list[str]:
    return list(store.sizes(f"{artifact.stage}/{artifact.id}/attempts"))


def is_there(store: Store, artifact: Artifact) -> bool:
    entry = read_manifest(store, artifact.stage, artifact.id)
    assert entry is not None, "manifests stay in any case"
    return not Artifact(store, entry[0]).missing() and not when_collected(store, entry[0])


def test_a_preview_counts_the_bytes_and_changes_nothing(store: Store) -> None:
    made = make(store)
    before = store.listing("")
    (verdict,) = preview(store, NOTHING_STAYS)
    assert store.listing("") == before
    assert verdict.freed == sum(store.sizes(f"count/{made.id}/attempts").values()) > 12
    assert collect(store, NOTHING_STAYS).bytes == verdict.freed
    assert data(store, made) == []


def test_what_was_collected_is_a_miss_is_built_anew_and_is_a_hit_again(store: Store) -> None:
    made = make(store)
    collect(store, NOTHING_STAYS)
    assert find(count, made.id, store, Runtime()) is None
    again = make(store)
    assert again.digest == made.digest and is_there(store, again)
    assert make(store).manifest.attempt == again.manifest.attempt != made.manifest.attempt
    collect(store, NOTHING_STAYS)
    assert data(store, made) == []


def test_an_alias_keeps_an_artifact_and_all_it_was_made_from(store: Store) -> None:
    documents, other = make(store), make(store, 4)
    copied = built(store, copy, CopyConfig(), documents=documents)
    trained = built(store, train, TrainConfig(), documents=copied)
    set_alias(store, "production", trained.manifest)
    verdicts = {v.stored.home: v for v in preview(store, NOTHING_STAYS)}
    assert verdicts[f"train/{trained.id}"].reasons == ["alias production"]
    assert verdicts[f"count/{documents.id}"].reasons == [f"made into copy/{copied.id[:12]}"]
    collect(store, NOTHING_STAYS)
    assert [is_there(store, a) for a in (documents, copied, trained)] == [True] * 3
    assert not is_there(store, other)


def test_the_last_of_a_stage_and_the_best_by_a_metric_stay(store: Store) -> None:
    made = [make(store, lines) for lines in (9, 2, 3, 4)]
    policy = RetentionPolicy(
        last=1, days=0, best=(BestOf(stage="count", metric="lines", lowest=False),)
    )
    collect(store, policy)
    assert [is_there(store, a) for a in made] == [True, False, False, True]


def test_what_the_last_runs_of_a_flow_used_stays_whether_built_or_found(store: Store) -> None:
    made = [make(store, lines) for lines in (1, 2, 3)]
    for moment, artifact in zip(("2026-01-01", "2026-01-02", "2026-01-03"), made, strict=True):
        steps = [{"stage": "count", "artifact": artifact.id}, {"stage": "copy", "artifact": ""}]
        record = {"recipe": {"name": "r"}, "flow": "curate", "started": moment, "steps": steps}
        store.create(f"runs/r/{moment}.json", json.dumps(record).encode())
    verdicts = preview(store, RetentionPolicy(last=2, days=0, best=()))
    reasons = {v.stored.home: v.reasons for v in verdicts}
    assert reasons[f"count/{made[1].id}"][0] == "run r 2026-01-02"
    record = {"recipe": {"name": "r"}, "flow": "scale", "started": "2026-01-04", "steps": []}
    store.create("runs/r/2026-01-04.json", json.dumps(record).encode())
    steps = [{"stage": "count", "artifact": made[0].id}]
    record = {"recipe": {"name": "r"}, "flow": "curate", "started": "2026-01-05", "steps": steps}
    store.create("runs/r/2026-01-05.json", json.dumps(record).encode())
    collect(store, RetentionPolicy(last=1, days=0, best=()))
    assert [is_there(store, a) for a in made] == [True, False, True]  # the run's; the last built


def test_what_is_young_stays_unfinished_attempts_too(store: Store) -> None:
    made = make(store)
    store.open("count/abc/attempts/1/kept/0.txt", "wb").close()
    assert [v.freed for v in preview(store, RetentionPolicy(last=0, days=1, best=()))] == [0, 0]
    assert collect(store, NOTHING_STAYS).artifacts == 2
    assert not is_there(store, made)


def test_checkpoints_of_a_finished_stage_and_attempts_that_came_to_nothing_go(
    store: Store,
) -> None:
    documents = make(store)
    trained = built(store, train, TrainConfig(), documents=documents)
    with store.open(f"train/{trained.id}/attempts/dead/half.bin", "wb") as file:
        file.write(b"x" * 100)
    with store.open(f"train/{trained.id}/logs/dead.txt", "wb") as file:
        file.write(b"y" * 10)
    set_alias(store, "mine", trained.manifest)
    checkpoints = sum("/checkpoints/" in path for path in data(store, trained))
    done = collect(store, NOTHING_STAYS)
    assert checkpoints == 4 and done.objects == checkpoints + 2
    assert is_there(store, trained) and is_there(store, documents)
    assert not any("/checkpoints/" in path or "dead" in path for path in store.sizes("train"))


def test_an_adopted_shard_of_an_attempt_that_died_stays_with_its_artifact(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CountConfig(num_shards=3, die_at="00001")
    with pytest.raises(StageFailed):
        run_in_child(store, count, config, {})
    monkeypatch.setenv("SURVIVE", "1")
    whole = built(store, count, config)
    assert len({file.path.split("/")[3] for file in whole.manifest.outputs}) == 2
    set_alias(store, "whole", whole.manifest)
    collect(store, NOTHING_STAYS)
    assert whole.corrupt() == []


def test_inputs_of_a_build_in_progress_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = make(store)
    collected = []
    real = Output.log

    def collect_in_between(self: Any, message: str, level: str = "info") -> None:
        collected.append(collect(store, NOTHING_STAYS, lock_seconds=3))
        real(self, message, level)

    monkeypatch.setattr(Output, "log", collect_in_between)
    copied = built(store, copy, CopyConfig(), documents=documents)
    assert collected[0].objects == 0
    assert is_there(store, documents) and is_there(store, copied)


def test_what_a_run_took_stays_until_the_run_ends(store: Store) -> None:
    made = make(store)
    with RunLeases(store, "nightly", beat_seconds=0.2) as leases:
        leases.take("count", made.id)
        reasons = [v.reasons for v in preview(store, NOTHING_STAYS)]
        assert reasons == [[f"in use: nightly by process {os.getpid()} on {os.uname().nodename}"]]
        assert collect(store, NOTHING_STAYS).objects == 0
    assert store.sizes("uses") == {}
    assert collect(store, NOTHING_STAYS).artifacts == 1


def test_a_hit_after_the_first_word_takes_it_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(store)
    real = gc._take

    def hit_first(*arguments: Any) -> Any:
        assert read_tombstone(store, f"count/{made.id}")[0].condemned
        assert find(count, made.id, store, Runtime()) is not None
        return real(*arguments)

    monkeypatch.setattr(gc, "_take", hit_first)
    assert collect(store, NOTHING_STAYS).spared == (f"count/{made.id}",)
    assert is_there(store, made)
    assert read_tombstone(store, f"count/{made.id}")[0] == Tombstone()


def test_a_look_after_the_second_word_finds_nothing_though_the_objects_are_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(store)
    real, seen = gc._delete, []

    def look_first(*arguments: Any) -> Any:
        seen.append((find(count, made.id, store, Runtime()), Artifact(store, made.manifest)))
        assert seen[0][1].missing() == []
        return real(*arguments)

    monkeypatch.setattr(gc, "_delete", look_first)
    collect(store, NOTHING_STAYS)
    assert seen[0][0] is None


def test_a_run_that_begins_between_the_words_is_seen(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote its use and looked before gc condemned: it cannot know, so gc must."""
    made, runs = make(store), []
    real = gc._condemn

    def begin_run_first(*arguments: Any) -> Any:
        runs.append(RunLeases(store, "late").__enter__())
        runs[0].take("count", made.id)
        assert find(count, made.id, store, Runtime()) is not None
        return real(*arguments)

    monkeypatch.setattr(gc, "_condemn", begin_run_first)
    assert collect(store, NOTHING_STAYS).spared == (f"count/{made.id}",)
    assert is_there(store, made)
    runs[0].__exit__(None, None, None)


def test_a_build_or_an_alias_that_begins_between_the_words_is_seen(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, gone = make(store, 1), make(store, 2), make(store, 3)
    lock = BuildLock(store, "copy/new/lock.json", leases=[home("count", first.id)])
    real = gc._condemn

    def begin_build_first(*arguments: Any) -> Any:
        lock.__enter__()
        set_alias(store, "kept", second.manifest)
        return real(*arguments)

    monkeypatch.setattr(gc, "_condemn", begin_build_first)
    collect(store, NOTHING_STAYS)
    lock.__exit__(None, None, None)
    assert [is_there(store, a) for a in (first, second, gone)] == [True, True, False]


def test_a_build_whose_input_was_collected_after_it_was_found_says_so(store: Store) -> None:
    documents = make(store)
    collect(store, NOTHING_STAYS)
    with pytest.raises(StoreError, match="collected by gc after it was found"):
        built(store, copy, CopyConfig(), documents=documents)


def test_a_builder_neither_adopts_nor_resumes_from_what_a_frozen_gc_is_about_to_delete(
    store: Store,
) -> None:
    """gc said its second word, lost its lock, and will go on one day."""
    documents = make(store)
    trained = built(store, train, TrainConfig(), documents=documents)
    for artifact in (documents, trained):
        word = Tombstone(collected=(artifact.manifest.attempt,), at="2026-01-01")
        write_tombstone(store, f"{artifact.stage}/{artifact.id}", word, None)
    events: list[dict[str, Any]] = []
    again = build(count, CountConfig(), {}, store=store, runtime=Runtime(), sink=events.append)
    assert not any("adopted" in str(event) for event in events)
    retrained = built(store, train, TrainConfig(), documents=again)
    assert retrained.metrics["started_at"] == 0
    set_alias(store, "new", retrained.manifest)
    collect(store, NOTHING_STAYS)  # the frozen one's work
    assert is_there(store, again) and is_there(store, retrained)
    assert not any(documents.manifest.attempt in path for path in data(store, documents))


def test_a_forced_training_does_not_go_on_from_the_one_it_replaces(store: Store) -> None:
    documents = make(store)
    built(store, train, TrainConfig(), documents=documents)
    forced = built(store, train, TrainConfig(), documents=documents, force=True)
    assert forced.metrics["started_at"] == 0


def test_a_gc_killed_while_it_deletes_is_finished_by_the_next(store: Store) -> None:
    made = built(store, count, CountConfig(num_shards=20))
    other = make(store)
    killed = start("die_deleting", store.root, "5")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert 0 < len(data(store, made)) < 40 or 0 < len(data(store, other)) < 4
    again = built(store, count, CountConfig(num_shards=20))  # while half of it lies around
    assert again.corrupt() == [] and again.digest == made.digest
    set_alias(store, "again", again.manifest)
    started = time.monotonic()
    collect(store, NOTHING_STAYS)
    assert time.monotonic() - started < 20, "the dead one's locks are not waited for"
    assert again.corrupt() == [] and not is_there(store, other)
    assert all(again.manifest.attempt in path for path in data(store, again))


def test_a_gc_killed_after_the_first_word_leaves_hits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make(store, 1), make(store, 2)

    def die(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(gc, "_take", die)
    with pytest.raises(KeyboardInterrupt):
        collect(store, NOTHING_STAYS)
    monkeypatch.undo()
    assert make(store, 1).manifest.attempt == first.manifest.attempt
    collect(store, RetentionPolicy(last=5, days=0, best=()))
    for artifact in (first, second):
        assert is_there(store, artifact)
        assert read_tombstone(store, f"count/{artifact.id}")[0].condemned == ()


def test_runs_that_hit_and_build_lose_nothing_to_collectors_that_are_killed(store: Store) -> None:
    figures = disturb(store.root, least_runs=10, least_built=4, seconds=0.5)
    # of three artifacts: more than these were built because something was collected meanwhile
    assert all(user["runs"] >= 10 and user["built"] >= 4 for user in figures), figures
    collect(store, NOTHING_STAYS)
    assert not [path for path in store.sizes("count") if "/attempts/" in path]


def test_of_two_collections_at_once_the_second_waits(store: Store) -> None:
    for lines in range(6):
        make(store, lines)
    done, said = [], []
    threads = [
        threading.Thread(target=lambda: done.append(collect(store, NOTHING_STAYS, say=said.append)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(d.artifacts for d in done) == [0, 6]


def test_a_run_that_cannot_be_seen_counts_as_dead_after_its_silence_only(store: Store) -> None:
    made = make(store)
    record = UNSEEN | {"label": "far", "beat": 1, "uses": [f"count/{made.id}"]}
    etag = store.create("uses/far.json", json.dumps(record).encode())
    assert etag is not None
    beats = threading.Event()

    def beat(tag: str) -> None:
        for number in range(2, 100):
            if beats.wait(0.3):
                return
            said = json.dumps(record | {"beat": number}).encode()
            tag = store.replace("uses/far.json", said, tag) or ""

    beating = threading.Thread(target=beat, args=[etag])
    beating.start()
    said: list[str] = []
    options: dict[str, Any] = {"lock_seconds": 1.0, "lease_seconds": 2.0, "say": said.append}
    assert collect(store, NOTHING_STAYS, **options).objects == 0
    assert "far by process 1 on elsewhere" in said[0]
    beats.set()
    beating.join()
    started = time.monotonic()
    assert collect(store, NOTHING_STAYS, **options).artifacts == 1
    assert time.monotonic() - started >= 2.0
    assert not [path for path in store.sizes("uses") if not path.startswith("uses/.")]


def test_a_run_that_was_held_for_dead_is_told_so(store: Store) -> None:
    with RunLeases(store, "frozen", beat_seconds=60) as leases:
        leases.take("count", "a")
        (path,) = [p for p in store.sizes("uses") if not p.startswith("uses/.")]
        store.delete(path)
        with pytest.raises(LockLost, match="held it for dead"):
            leases.take("count", "b")


def test_a_use_that_could_not_be_written_is_written_at_the_next_try(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.replace

    def away(*arguments: Any) -> str | None:
        raise StoreUnavailable("no answer")

    with RunLeases(store, "patient", beat_seconds=60) as leases:
        monkeypatch.setattr(Store, "replace", away)
        with pytest.raises(StoreUnavailable):
            leases.take("count", "a")
        monkeypatch.setattr(Store, "replace", real)
        leases.take("count", "a")
        (path,) = [p for p in store.sizes("uses") if not p.startswith("uses/.")]
        assert json.loads(store.read(path) or b"")["uses"] == ["count/a"]


def test_a_silent_builder_of_another_machine_does_not_hold_its_artifact_for_ever(
    store: Store,
) -> None:
    artifact = identify(count, CountConfig(), {})
    store.open(f"count/{artifact}/attempts/1/kept/0.txt", "wb").close()
    store.create(f"count/{artifact}/lock.json", json.dumps(UNSEEN | {"token": "x"}).encode())
    assert [v.freed for v in preview(store, NOTHING_STAYS)] == [0]
    done = collect(store, NOTHING_STAYS, lock_seconds=1.0)
    assert done.artifacts == 1
    assert make(store).missing() == []


def kill_a_training(store: Store, days: float) -> str:
    """Leave a training that died at step 2 of 4, so many days ago; return its home."""
    documents = make(store)
    config = TrainConfig(steps=4, mode="die")
    with pytest.raises(StageFailed):
        run_in_child(store, train, config, {"documents": documents})
    then = time.time() - days * 86400
    for path in store.sizes("train"):
        os.utime(store.full(path), (then, then))
    return home("train", identify(train, config, {"documents": documents}))


def test_an_unfinished_training_stays_however_old_and_is_named_with_what_it_cost(
    store: Store,
) -> None:
    place = kill_a_training(store, 30)
    (verdict,) = [v for v in preview(store, RetentionPolicy()) if v.stored.home == place]
    assert verdict.entries == () and verdict.stored.lost_seconds > 0
    (line,) = unfinished_lines([verdict], time.time())
    assert line.startswith(f"unfinished: {place} at step 2 (2 of 4 steps), 30.0 days old")
    assert "GPU-hours" in line and "gc --unfinished takes it" in line
    collect(store, NOTHING_STAYS)
    assert any("/checkpoints/" in path for path in store.sizes(place))
    again = built(store, train, TrainConfig(steps=4), documents=make(store))
    assert again.metrics["started_at"] == 0  # another config: its own training


def test_an_unfinished_training_goes_only_where_that_is_asked_for_and_it_is_old(
    store: Store,
) -> None:
    place = kill_a_training(store, 3)
    collect(store, RetentionPolicy(unfinished=True))
    assert any("/checkpoints/" in path for path in store.sizes(place))
    asked = RetentionPolicy(unfinished=True, days=2)
    (verdict,) = [v for v in preview(store, asked) if v.stored.home == place]
    assert unfinished_lines([verdict], time.time())[0].endswith("; goes")
    collect(store, asked)
    assert not store.sizes(f"{place}/attempts")


def test_of_a_training_only_the_attempt_that_is_gone_on_from_stays(store: Store) -> None:
    place = kill_a_training(store, 30)
    then = time.time() - 30 * 86400
    older = f"{place}/attempts/older/checkpoints/000000001"
    for name in ("step", "COMPLETE.json"):
        with store.open(f"{older}/{name}", "wb") as file:
            file.write(b"1" if name == "step" else b'{"step": 1}')
        os.utime(store.full(f"{older}/{name}"), (then, then))
    collect(store, RetentionPolicy())
    left = store.sizes(f"{place}/attempts")
    assert left and not any("/older/" in path for path in left)
