"""Stages on GPUs share a limit, if the run names one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client

from flows.run import Silent
from lmpipe.artifacts.manifest import Origin
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from tasks import evaluation, training
from tasks.bridge import PrefectConductor, as_task, num_slots
from tasks.conductor import Settings, conducted_by
from tasks.selection import Selection
from tests.artifacts.stages import CountConfig, count

pytestmark = pytest.mark.usefixtures("prefect_server")  # never the user's own

on_gpu = as_task(count, tags=("gpu",))
on_cpu = as_task(count, tags=("cpu",))


def run(task: Any, store: Path, limit: str) -> list[str]:
    settings = Settings(Store(str(store)), Runtime(gpu_limit=limit, ranks=2))
    conductor = PrefectConductor(settings, Selection(), {"count"}, Silent(), Origin(flow_run="run"))

    @flow(name="leased")
    def composed() -> None:
        with conducted_by(conductor):
            task(CountConfig(lines=3))

    composed()
    return [step.status for step in conductor.steps]


def test_a_stage_on_a_gpu_holds_a_slot_a_rank_and_gives_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with get_client(sync_client=True) as client:
        body = {"name": "two-gpus", "limit": 2}
        client.request("POST", "/v2/concurrency_limits/", json=body)
        seen: list[int] = []

        def slots(*_: object) -> None:
            limit = client.request("GET", "/v2/concurrency_limits/two-gpus").json()
            seen.append(limit["active_slots"])

        monkeypatch.setattr(Silent, "event", slots)
        monkeypatch.setattr(Silent, "finished", slots)
        assert run(on_gpu, tmp_path, "two-gpus") == ["RUN"]
        assert max(seen) == 2
        assert seen[-1] == 0


def test_a_stage_that_waits_for_slots_says_so_in_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def at_once(name: str, **options: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr("prefect.concurrency.sync.concurrency", at_once)
    with get_client(sync_client=True) as client:
        body = {"name": "full", "limit": 2, "active_slots": 1}
        client.request("POST", "/v2/concurrency_limits/", json=body)
    assert run(on_gpu, tmp_path, "full") == ["RUN"]
    assert "waits: needs 2 slots of the limit full, which has 1 of 2 free" in caplog.text


def test_a_limit_that_does_not_exist_stops_a_stage_on_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no-such-limit"):
        run(on_gpu, tmp_path, "no-such-limit")


def test_a_lease_must_exist_and_its_failing_renewal_ends_no_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Prefect's default crashes the run when the API is away for longer than a lease."""
    asked: list[dict[str, Any]] = []

    @contextmanager
    def recorded(name: str, **options: Any) -> Iterator[None]:
        asked.append(options)
        yield

    monkeypatch.setattr("prefect.concurrency.sync.concurrency", recorded)
    assert run(on_gpu, tmp_path, "two-gpus") == ["RUN"]
    assert asked == [{"occupy": 2, "strict": True, "raise_on_lease_renewal_failure": False}]


def test_a_stage_without_the_tag_asks_for_no_slot(tmp_path: Path) -> None:
    assert run(on_cpu, tmp_path, "no-such-limit") == ["RUN"]


@pytest.mark.parametrize(
    ("runtime", "visible", "slots"),
    [
        (Runtime(), "0,1,2,3", 4),
        (Runtime(ranks=2), "0,1,2,3", 2),
        (Runtime(device="cpu", cpu_ranks=2), "0,1,2,3", 1),
        (Runtime(cpu_ranks=2), "", 1),
        (Runtime(ranks=2), "", 2),
    ],
)
def test_a_stage_with_ranks_takes_a_slot_for_each_device_it_will_use(
    runtime: Runtime, visible: str, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert num_slots(training.pretrain.policy, runtime) == slots


def test_evaluation_runs_in_one_process_and_takes_one_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert num_slots(evaluation.evaluate.policy, Runtime()) == 1
