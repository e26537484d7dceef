"""Services that go away in the middle of a run, and runs that meet: each costs time and no data."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from lmpipe.artifacts.build import build, find
from lmpipe.artifacts.lookup import home, identify
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from tests.services.postgres import Postgres
from tests.services.prefect_server import PrefectServer, ProcessWorker
from tests.services.processes import wait_until
from tests.services.seaweedfs import SeaweedFS
from tests.stack.stages import SlowConfig, slow

FLOW = "tests/stack/stage_flows.py:run_slow"
POOL = "outages"


@pytest.fixture(scope="module")
def worker(
    tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer, seaweedfs: SeaweedFS
) -> Iterator[ProcessWorker]:
    """A worker whose runs may use the object store."""
    prefect_server.create_pool(POOL)
    folder = tmp_path_factory.mktemp(POOL)
    made = ProcessWorker(prefect_server, folder, POOL, environment=seaweedfs.environment)
    try:
        made.start()
        yield made
    finally:
        made.process.stop()


class Job:
    """A queued run of a stage that writes shards slowly."""

    def __init__(self, server: PrefectServer, root: str, num_shards: int, seconds: float) -> None:
        self.server, self.store = server, Store(root)
        self.config = SlowConfig(num_shards=num_shards, seconds=seconds)
        deployment = server.create_deployment(FLOW, pool=POOL)
        parameters = {"store": root, "num_shards": num_shards, "seconds": seconds}
        self.runs = [server.submit(deployment, **parameters)]
        self._again = lambda: server.submit(deployment, **parameters)

    def submit_again(self) -> None:
        self.runs.append(self._again())

    @property
    def attempts(self) -> set[str]:
        folder = f"{home('slow', identify(slow, self.config, {}))}/attempts"
        paths = self.store.sizes(folder)
        return {path.split("/attempts/")[1].split("/")[0] for path in paths}

    def wait_for_shards(self, number: int) -> None:
        wait_until(
            lambda: sum("/done/" in path for path in self.store.sizes("slow")) >= number,
            timeout_seconds=120,
            what=f"the end of {number} shards",
        )
        assert self.server.state(self.runs[0]) == "RUNNING"

    def is_as_if_undisturbed(self, folder: Path) -> bool:
        made = find(slow, identify(slow, self.config, {}), self.store, Runtime())
        assert made is not None and made.missing() == [] and made.corrupt() == []
        quick = SlowConfig(num_shards=self.config.num_shards, seconds=0)
        elsewhere = build(slow, quick, {}, store=Store(str(folder / "other")), runtime=Runtime())
        return bool(made.digest == elsewhere.digest)

    def task_runs(self) -> list[int]:
        """Return how often each task run of the runs was started."""
        body = {"flow_runs": {"id": {"any_": self.runs}}}
        return [t["run_count"] for t in self.server.request("POST", "/task_runs/filter", body)]


def test_a_restart_of_the_server_in_mid_run_is_not_noticed_by_the_run(
    prefect_server: PrefectServer, worker: ProcessWorker, tmp_path: Path
) -> None:
    job = Job(prefect_server, str(tmp_path / "store"), num_shards=24, seconds=1.0)
    job.wait_for_shards(2)
    prefect_server.process.stop()
    stopped = time.monotonic()
    time.sleep(10)
    prefect_server.start()
    print(f"the server was away for {time.monotonic() - stopped:.0f} s")
    assert prefect_server.wait_for(job.runs[0]) == "COMPLETED"
    assert len(job.attempts) == 1
    assert job.is_as_if_undisturbed(tmp_path)
    wait_until(lambda: job.task_runs() == [1], timeout_seconds=30, what="the record of one try")
    assert worker.process.running


def test_sixty_seconds_without_the_object_store_and_thirty_without_postgresql_cost_time_only(
    prefect_server: PrefectServer,
    worker: ProcessWorker,
    postgres: Postgres,
    seaweedfs: SeaweedFS,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    local = Job(prefect_server, str(tmp_path / "store"), num_shards=20, seconds=1.0)
    remote = Job(prefect_server, seaweedfs.create_bucket("outage"), num_shards=16, seconds=1.0)
    for job in (local, remote):
        job.wait_for_shards(2)
    seaweedfs.process.stop(grace_seconds=3)
    stopped = time.monotonic()
    postgres.stop()
    time.sleep(30)  # the local run's stage ends and reports in here
    assert find(slow, identify(slow, local.config, {}), local.store, Runtime()) is not None
    postgres.start()
    assert prefect_server.wait_for(local.runs[0]) == "COMPLETED"
    time.sleep(max(0.0, 60 - (time.monotonic() - stopped)))
    assert prefect_server.state(remote.runs[0]) == "RUNNING"
    seaweedfs.start()
    assert prefect_server.wait_for(remote.runs[0], timeout_seconds=240) == "COMPLETED"
    print(f"{len(local.attempts)} and {len(remote.attempts)} attempts")
    assert len(local.attempts) == 1
    for job in (local, remote):
        assert job.is_as_if_undisturbed(tmp_path)
    assert prefect_server.process.running and worker.process.running
    s3fs.S3FileSystem.clear_instance_cache()


def test_two_runs_that_want_the_same_artifact_build_it_once(
    prefect_server: PrefectServer, worker: ProcessWorker, tmp_path: Path
) -> None:
    job = Job(prefect_server, str(tmp_path / "store"), num_shards=15, seconds=1.0)
    job.submit_again()
    for run in job.runs:
        assert prefect_server.wait_for(run) == "COMPLETED"
    assert len(job.attempts) == 1
    started = [prefect_server.request("GET", f"/flow_runs/{run}") for run in job.runs]
    overlap = min(r["end_time"] for r in started) > max(r["start_time"] for r in started)
    assert overlap, "the runs did not meet"
    logs = "\n".join(line for run in job.runs for line in prefect_server.logs(run))
    assert "waiting" in logs


def test_ten_thousand_shards_make_a_handful_of_task_runs(
    prefect_server: PrefectServer, worker: ProcessWorker, tmp_path: Path
) -> None:
    job = Job(prefect_server, str(tmp_path / "store"), num_shards=10_000, seconds=0)
    started = time.monotonic()
    assert prefect_server.wait_for(job.runs[0], timeout_seconds=300) == "COMPLETED"
    print(f"10,000 shards in {time.monotonic() - started:.0f} s")
    made = find(slow, identify(slow, job.config, {}), job.store, Runtime())
    assert made is not None and len(made.names("kept")) == 10_000
    wait_until(lambda: job.task_runs() == [1], timeout_seconds=30, what="the record of the task")
    body = {"logs": {"flow_run_id": {"any_": job.runs}}, "limit": 200}
    lines = prefect_server.request("POST", "/logs/filter", body)
    artifacts = prefect_server.request(
        "POST", "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": job.runs}}}
    )
    assert len(lines) < 200 and len(artifacts) < 20
