"""Accounts of attempts: what was published, what failed, what was killed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lmpipe.artifacts.attempts import read_attempts
from lmpipe.artifacts.build import build
from lmpipe.artifacts.gc import collect
from lmpipe.artifacts.manifest import Manifest, Origin
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.store import Store
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from tests.artifacts.gc_processes import NOTHING_STAYS
from tests.artifacts.stages import CountConfig, TrainConfig, count, train

ORIGIN = Origin(flow_run="f1", flow_run_name="demo-1", flow="curate", recipe="demo", step="count")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def make(store: Store, **options: Any) -> Any:
    return build(count, CountConfig(), {}, store=store, runtime=Runtime(), origin=ORIGIN, **options)


def test_a_published_attempt_names_its_run_and_a_replaced_one_is_kept_beside_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(store)
    assert first.manifest.provenance.origin == ORIGIN
    assert first.manifest.provenance.cpu_hours is not None
    second = make(store, force=True)
    assert make(store).manifest.attempt == second.manifest.attempt
    accounts = read_attempts(store)
    assert [(a.attempt, a.outcome) for a in accounts] == [
        (first.manifest.attempt, "replaced"),
        (second.manifest.attempt, "published"),
    ]
    assert {a.origin for a in accounts} == {ORIGIN}
    collect(store, NOTHING_STAYS)
    assert read_attempts(store) == accounts, "gc keeps accounts"


def test_gpu_hours_count_the_devices_that_the_stage_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Output.metric

    def on_two_gpus(self: Any, name: str, value: Any) -> None:
        self.use_devices(["cuda:0 NVIDIA H200", "cuda:1 NVIDIA H200"])
        time.sleep(0.2)
        real(self, name, value)

    monkeypatch.setattr(Output, "metric", on_two_gpus)
    make(store)
    (account,) = read_attempts(store)
    assert account.gpu_hours == pytest.approx(2 * account.seconds / 3600, rel=0.01)
    assert account.seconds >= 0.2


def test_a_failed_attempt_leaves_its_time_and_its_error(store: Store) -> None:
    documents = make(store)
    with pytest.raises(InputError):
        build(
            train,
            TrainConfig(mode="input_error"),
            {"documents": documents},
            store=store,
            runtime=Runtime(),
        )
    failed = read_attempts(store)[-1]
    assert (failed.stage, failed.outcome) == ("train", "failed")
    assert "record 7 is broken" in failed.error and failed.cpu_hours is not None


KILLED = """
import os, signal, sys, time
from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CountConfig, count

def work(self, name, value):
    self.use_devices(["cuda:0 NVIDIA H200"])
    time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)

Output.metric = work
build(count, CountConfig(), {}, store=Store(sys.argv[1]), runtime=Runtime(), lease_seconds=1.2)
"""


def test_the_error_of_a_failed_attempt_is_kept_without_secrets(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-key")

    def refuse(self: Any, name: str, value: Any) -> None:
        raise InputError("s3://reader:hidden-word@host refused very-secret-key")

    monkeypatch.setattr(Output, "metric", refuse)
    with pytest.raises(InputError):
        make(store)
    (failed,) = read_attempts(store)
    assert failed.error == "InputError: s3://reader:***@host refused ***"


def test_an_attempt_killed_with_9_is_told_of_by_its_lock_and_then_by_its_successor(
    store: Store,
) -> None:
    subprocess.run([sys.executable, "-c", KILLED, store.root], timeout=60)
    (killed,) = read_attempts(store)
    assert killed.outcome == "killed" and 0.5 < killed.seconds < 1.5
    assert killed.gpu_hours == pytest.approx(killed.seconds / 3600)
    make(store)
    outcomes = [account.outcome for account in read_attempts(store)]
    assert outcomes == ["killed", "published"]
    assert read_attempts(store)[0] == killed


def test_an_attempt_ended_by_sigterm_counts_as_killed(store: Store) -> None:
    script = KILLED.replace(
        "os.kill(os.getpid(), signal.SIGKILL)", "raise SystemExit(143)  # what child.py does"
    )
    subprocess.run([sys.executable, "-c", script, store.root], timeout=60, env=dict(os.environ))
    (killed,) = read_attempts(store)
    assert killed.outcome == "killed" and killed.seconds >= 1.0


def test_an_artifact_of_before_manifests_named_their_run_is_found_in_the_runs(
    store: Store,
) -> None:
    made = build(count, CountConfig(), {}, store=store, runtime=Runtime())
    step = f'{{"name": "count", "stage": "count", "status": "RUN", "artifact": "{made.id}"}}'
    run = f'{{"recipe": {{"name": "old"}}, "flow": "curate", "flow_run": "f0", "steps": [{step}]}}'
    store.create("runs/old/2026-01-01.json", run.encode())
    (account,) = read_attempts(store)
    assert (account.origin.recipe, account.origin.flow_run) == ("old", "f0")


def test_a_manifest_of_schema_1_is_still_read(store: Store) -> None:
    made = make(store)
    raw = made.manifest.model_dump(mode="json") | {"schema_version": 1}
    for field in ("origin", "cpu_hours"):
        del raw["provenance"][field]
    old = Manifest.parse(json.dumps(raw).encode(), "old")
    assert old.provenance.origin == Origin() and old.provenance.cpu_hours is None
