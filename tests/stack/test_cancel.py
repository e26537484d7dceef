"""Cancelling a run, and killing what runs it, ends every process of the stage."""

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from lmpipe.artifacts.lookup import home, identify
from lmpipe.artifacts.store import Store
from tests.services.prefect_server import PrefectServer, ProcessWorker
from tests.services.processes import descendants, wait_until
from tests.stack.stages import RanksConfig, ranked

FLOWS = "tests/stack/stage_flows.py"


@dataclass
class Job:
    """A run whose stage has two ranks, all of them alive."""

    server: PrefectServer
    deployment: str
    parameters: dict[str, Any]
    run: str
    engine: psutil.Process
    stage: psutil.Process
    ranks: list[psutil.Process]
    others: list[psutil.Process]

    @property
    def processes(self) -> list[psutil.Process]:
        return [self.engine, self.stage, *self.ranks, *self.others]

    @property
    def home(self) -> str:
        config = RanksConfig(folder=self.parameters["folder"], children=self.parameters["children"])
        return home("ranked", identify(ranked, config, {}))

    def task_runs(self) -> list[dict[str, Any]]:
        body = {"flow_runs": {"id": {"any_": [self.run]}}}
        found: list[dict[str, Any]] = self.server.request("POST", "/task_runs/filter", body)
        return found

    def runs_to_the_end_now(self) -> None:
        """The next run of the same artifact is not held up by a lock: its lease is 60 s."""
        (Path(self.parameters["folder"]) / "go").touch()
        run = self.server.submit(self.deployment, **self.parameters)
        self.server.wait_for(run, frozenset({"RUNNING"}), timeout_seconds=60)
        started = time.monotonic()
        assert self.server.wait_for(run, timeout_seconds=50) == "COMPLETED"
        print(f"next run took {time.monotonic() - started:.0f} s")


def start(server: PrefectServer, folder: Path, *, children: bool) -> Job:
    pids = folder / "pids"
    pids.mkdir()
    parameters = {"store": str(folder / "store"), "folder": str(pids), "children": children}
    deployment = server.create_deployment(f"{FLOWS}:run_ranked", pool="cpu")
    run = server.submit(deployment, **parameters)
    files = [pids / "rank-0", pids / "rank-1"]
    wait_until(
        lambda: all(file.exists() for file in files) or server.state(run) == "FAILED",
        timeout_seconds=120,
        what="the start of two ranks",
    )
    assert server.state(run) == "RUNNING", server.logs(run)
    notes = [[psutil.Process(int(pid)) for pid in file.read_text().split()] for file in files]
    stage = notes[0][0]
    engine = stage.parent()
    assert engine is not None and "prefect" in " ".join(engine.cmdline())
    others = [process for note in notes for process in note[2:]]
    return Job(server, deployment, parameters, run, engine, stage, [n[1] for n in notes], others)


def test_cancelling_ends_every_process_of_the_stage_and_says_which(
    prefect_server: PrefectServer, process_worker: ProcessWorker, tmp_path: Path
) -> None:
    job = start(prefect_server, tmp_path, children=True)
    assert len(job.processes) == 6 and all(process.is_running() for process in job.processes)
    cancelled = time.monotonic()
    prefect_server.cancel(job.run)
    _, alive = psutil.wait_procs(job.processes, timeout=40)
    assert not alive, f"left after cancelling: {[p.cmdline() for p in alive]}"
    print(f"all ended {time.monotonic() - cancelled:.0f} s after the request")

    assert prefect_server.wait_for(job.run, timeout_seconds=30) == "CANCELLED"
    assert prefect_server.request("GET", f"/flow_runs/{job.run}")["run_count"] == 1
    assert [task["run_count"] for task in job.task_runs()] == [1]
    named = [f"rank {rank} (pid {process.pid})" for rank, process in enumerate(job.ranks)]
    named.append(f"stage ranked (pid {job.stage.pid})")
    wait_until(
        lambda: all(any(name in line for line in prefect_server.logs(job.run)) for name in named),
        timeout_seconds=20,
        what=f"a log line that names {named}; the log: {prefect_server.logs(job.run)}",
    )

    first_pids = str(job.ranks[0].pid)  # a retry, due at once, would have noted others by now
    assert first_pids in (Path(job.parameters["folder"]) / "rank-0").read_text().split()

    store = Store(job.parameters["store"])
    assert store.size(f"{job.home}/manifest.json") is None
    assert store.read(f"{job.home}/lock.json") == b"{}"
    job.runs_to_the_end_now()
    assert store.size(f"{job.home}/manifest.json") is not None


@pytest.mark.parametrize("victim", ["engine", "stage", "rank"])
def test_a_process_killed_with_9_leaves_no_orphans(
    prefect_server: PrefectServer, process_worker: ProcessWorker, tmp_path: Path, victim: str
) -> None:
    # what a rank starts ends with the stage; with the engine, only what ties itself to its parent
    job = start(prefect_server, tmp_path, children=victim != "engine")
    killed = {"engine": job.engine, "stage": job.stage, "rank": job.ranks[1]}[victim]
    killed.send_signal(signal.SIGKILL)
    below = [job.stage, *job.ranks, *job.others]
    _, alive = psutil.wait_procs(below, timeout=15)
    assert not alive, f"left after kill -9 of the {victim}: {[p.cmdline() for p in alive]}"
    if victim == "engine":
        prefect_server.wait_for(job.run, frozenset({"CRASHED"}), timeout_seconds=60)
        job.runs_to_the_end_now()
    else:  # a lost stage or rank is a failure that a retry repairs
        (Path(job.parameters["folder"]) / "go").touch()
        assert prefect_server.wait_for(job.run, timeout_seconds=50) == "COMPLETED"
        wait_until(  # task runs are recorded from events, a while after they happen
            lambda: [task["run_count"] for task in job.task_runs()] == [2],
            timeout_seconds=30,
            what="the record of one retry",
        )
        assert any("likely out of memory" in line for line in prefect_server.logs(job.run))


def test_cancelling_a_training_by_deepspeed_ends_its_ranks_and_publishes_nothing(
    prefect_server: PrefectServer, process_worker: ProcessWorker, tmp_path: Path
) -> None:
    deployment = prefect_server.create_deployment(f"{FLOWS}:run_pretrain", pool="cpu")
    run = prefect_server.submit(deployment, store=str(tmp_path / "store"))
    shown = {"artifacts": {"flow_run_id": {"any_": [run]}, "key": {"any_": ["pretrain-progress"]}}}
    wait_until(
        lambda: (
            bool(prefect_server.request("POST", "/artifacts/filter", shown))
            or prefect_server.state(run) == "FAILED"
        ),
        timeout_seconds=180,
        what="the first step of a training",
    )
    assert prefect_server.state(run) == "RUNNING", prefect_server.logs(run)
    running = {p.pid: p for p in descendants(process_worker.process.pid)}
    ranks = [p for p in running.values() if "lmpipe.training.rank" in " ".join(p.cmdline())]
    assert len(ranks) == 2, [p.cmdline() for p in running.values()]

    cancelled = time.monotonic()
    prefect_server.cancel(run)
    _, alive = psutil.wait_procs(running.values(), timeout=40)
    assert not alive, f"left after cancelling: {[p.cmdline() for p in alive]}"
    print(f"all ended {time.monotonic() - cancelled:.0f} s after the request")
    assert prefect_server.wait_for(run, timeout_seconds=30) == "CANCELLED"
    assert prefect_server.request("GET", f"/flow_runs/{run}")["run_count"] == 1
    store = Store(str(tmp_path / "store"))
    assert not [path for path in store.sizes("pretrain") if path.endswith("manifest.json")]
    (lock,) = [path for path in store.sizes("pretrain") if path.endswith("/lock.json")]
    assert store.read(lock) == b"{}"
