"""A run whose worker or machine goes away: nothing is left of it, and it goes on elsewhere."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments.automations import crash_zombies
from lmpipe.artifacts.lookup import home, identify, read_manifest
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Checkpoint
from tests.services.prefect_server import PrefectServer
from tests.services.processes import ServiceProcess, descendants, wait_until
from tests.stack.ops_stages import StepsConfig, stepping

FLOWS = "tests/stack/ops_flows.py"
POOL = "preemptible"
SILENCE_SECONDS = 40.0  # the shortest interval between heartbeats that Prefect takes is 30 s
CRASHED_AND_AGAIN = ["RUNNING", "CRASHED", "SCHEDULED"]


@dataclass
class Site:
    """A pool of its own, and workers of it as `lmpipe worker` starts them."""

    server: PrefectServer
    deployment: str
    folder: Path
    num_workers: int = 0

    def start_worker(self) -> ServiceProcess:
        self.num_workers += 1
        worker = ServiceProcess(
            f"worker-{self.num_workers}",
            [sys.executable, "-m", "deployments.cli", "worker", POOL],
            self.folder,
            environment=self.server.environment
            | {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"},
        )
        worker.start(lambda: "started!" in worker.log_tail(), timeout_seconds=90)
        return worker


@pytest.fixture(scope="module")
def site(deployed: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Site:
    deployed.create_pool(POOL)
    deployment = deployed.create_deployment(f"{FLOWS}:run_stepping", pool=POOL, tags=("lmpipe",))
    return Site(deployed, deployment, tmp_path_factory.mktemp("workers"))


@pytest.fixture
def worker(site: Site) -> Iterator[ServiceProcess]:
    process = site.start_worker()
    try:
        yield process
    finally:
        process.stop()


@dataclass
class Job:
    """A run of two ranks that has stored checkpoints and waits in its last step."""

    site: Site
    run: str
    folder: Path
    store: Store
    engine: psutil.Process
    processes: list[psutil.Process]

    @property
    def home(self) -> str:
        return home("stepping", identify(stepping, StepsConfig(folder=str(self.folder)), {}))

    def states(self) -> list[str]:
        path = f"/flow_run_states/?flow_run_id={self.run}"
        states: list[dict[str, Any]] = self.site.server.request("GET", path)
        return [s["type"] for s in sorted(states, key=lambda state: str(state["timestamp"]))]

    def goes_on(self) -> dict[str, Any]:
        """Let the last step happen in the next try and return what the artifact says."""
        (self.folder / "go").touch()
        server = self.site.server
        wait_until(
            lambda: server.state(self.run) == "COMPLETED",
            timeout_seconds=120,
            what=f"the end of the next try; the log: {server.logs(self.run)}",
        )
        entry = read_manifest(self.store, *self.home.split("/"))
        assert entry is not None
        artifact = Checkpoint(self.store, entry[0])
        assert not artifact.corrupt()
        made: dict[str, Any] = artifact.read_json("meta.json")
        return made


def start(site: Site, folder: Path) -> Job:
    notes = folder / "notes"
    notes.mkdir()
    parameters = {"store": str(folder / "store"), "folder": str(notes)}
    run = site.server.submit(site.deployment, **parameters)
    files = [notes / f"rank-{rank}-from-0" for rank in (0, 1)]
    store = Store(parameters["store"])
    wait_until(
        lambda: all(f.exists() for f in files) and third_checkpoint(store),
        timeout_seconds=120,
        what=f"two ranks and three checkpoints; the log: {site.server.logs(run)}",
    )
    pids = [[int(pid) for pid in file.read_text().split()] for file in files]
    stage, ranks = psutil.Process(pids[0][0]), [psutil.Process(pid) for _, pid in pids]
    engine = stage.parent()
    assert engine is not None and "prefect" in " ".join(engine.cmdline())
    return Job(site, run, notes, store, engine, [engine, stage, *ranks])


def third_checkpoint(store: Store) -> bool:
    return any(path.endswith("000000003/COMPLETE.json") for path in store.sizes("stepping"))


def verify(store: Store) -> str:
    command = [sys.executable, "-m", "deployments.cli", "verify", "--store", store.root]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_preempted_run_is_queued_again_and_goes_on_from_its_checkpoint(
    site: Site, worker: ServiceProcess, tmp_path: Path
) -> None:
    job = start(site, tmp_path)
    job.engine.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(job.processes, timeout=40)
    assert not alive, f"left after SIGTERM: {[p.cmdline() for p in alive]}"
    assert job.goes_on() == {"first_step": 3, "steps": 4}
    states = job.states()
    first = states.index("CRASHED")
    assert states[first - 1 : first + 2] == CRASHED_AND_AGAIN, states
    assert site.server.request("GET", f"/flow_runs/{job.run}")["run_count"] == 2
    assert "1 artifacts, 0 bad objects" in verify(job.store)


def test_a_worker_killed_with_9_leaves_no_process_and_another_one_goes_on(
    site: Site, worker: ServiceProcess, tmp_path: Path
) -> None:
    job = start(site, tmp_path)
    assert set(job.processes) <= set(descendants(worker.pid))
    killed = time.monotonic()
    worker.kill()
    _, alive = psutil.wait_procs(job.processes, timeout=40)
    assert not alive, f"left after kill -9 of the worker: {[p.cmdline() for p in alive]}"
    print(f"all ended {time.monotonic() - killed:.1f} s after the kill")
    wait_until(
        lambda: job.states()[-3:] == CRASHED_AND_AGAIN,
        timeout_seconds=30,
        what=f"the crash and the requeue, not {job.states()}",
    )
    assert job.store.size(f"{job.home}/manifest.json") is None, "nothing was published"
    assert job.store.read(f"{job.home}/lock.json") == b"{}", "the lock was released"

    second = site.start_worker()
    try:
        assert job.goes_on() == {"first_step": 3, "steps": 4}
    finally:
        second.stop()
    assert site.server.request("GET", f"/flow_runs/{job.run}")["run_count"] == 2
    assert "1 artifacts, 0 bad objects" in verify(job.store)


def test_a_run_whose_machine_goes_silent_is_marked_crashed_queued_again_and_goes_on(
    site: Site, worker: ServiceProcess, tmp_path: Path
) -> None:
    """Power loss: worker, run, stage and ranks end at once, and nobody is left to report it."""
    quick = crash_zombies(within_seconds=SILENCE_SECONDS) | {"name": "quick"}
    automation = site.server.request("POST", "/automations/", quick)["id"]
    try:
        job = start(site, tmp_path)
        wait_until(
            lambda: heard(site.server, job.run), timeout_seconds=40, what="the run's heartbeat"
        )
        machine = [psutil.Process(worker.pid), *descendants(worker.pid)]
        assert set(job.processes) <= set(machine)
        for process in machine:
            process.kill()
        psutil.wait_procs(machine, timeout=10)
        assert site.server.state(job.run) == "RUNNING", "nobody has told the server"
        wait_until(
            lambda: job.states()[-3:] == CRASHED_AND_AGAIN,
            timeout_seconds=SILENCE_SECONDS + 40,
            what=f"the crash and the requeue, not {job.states()}",
        )
    finally:
        site.server.request("DELETE", f"/automations/{automation}")
    second = site.start_worker()
    try:
        assert job.goes_on() == {"first_step": 3, "steps": 4}
    finally:
        second.stop()
    assert site.server.request("GET", f"/flow_runs/{job.run}")["run_count"] == 2
    assert "1 artifacts, 0 bad objects" in verify(job.store)


def heard(server: PrefectServer, run: str) -> bool:
    """Whether the server has had a heartbeat of the run."""
    events = {
        "filter": {
            "event": {"name": ["prefect.flow-run.heartbeat"]},
            "resource": {"id": [f"prefect.flow-run.{run}"]},
        },
        "limit": 1,
    }
    return bool(server.request("POST", "/events/filter", events)["events"])
