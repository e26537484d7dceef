"""A run ends with the worker that started it, and with nobody else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.worker_watch import WORKER_PID, ends_with_worker
from tests.services.processes import wait_until

REPOSITORY = Path(__file__).parents[2]
RUN = """
import pathlib, signal, sys, time
from flows.worker_watch import ends_with_worker
class Terminated(BaseException): pass
def terminate(number, frame): raise Terminated
signal.signal(signal.SIGTERM, terminate)
folder = pathlib.Path(sys.argv[1])
try:
    with ends_with_worker():
        (folder / "started").touch()
        time.sleep(60)
except Terminated:
    print("a line on the way out", flush=True)
    (folder / "ended in order").touch()
"""
WORKER = """
import os, subprocess, sys, time
pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
run = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], **pipes)
open(sys.argv[2] + "/pid", "w").write(str(run.pid))
time.sleep(60)
"""


def start(folder: Path, worker_pid: str) -> "tuple[subprocess.Popen[bytes], psutil.Process]":
    """Start a worker and its run; "own" gives the run the worker's pid, "" gives it none."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment.pop(WORKER_PID, None)
    code = WORKER
    if worker_pid:
        pid = "os.getpid()" if worker_pid == "own" else worker_pid
        code = f"import os; os.environ[{WORKER_PID!r}] = str({pid})\n{WORKER}"
    worker = subprocess.Popen([sys.executable, "-c", code, RUN, str(folder)], env=environment)
    ended_at_once = folder / "ended in order"
    wait_until(
        lambda: (folder / "started").exists() or ended_at_once.exists(),
        timeout_seconds=20,
        what="the run's start",
    )
    return worker, psutil.Process(int((folder / "pid").read_text()))


def test_a_run_is_terminated_when_its_worker_is_killed(tmp_path: Path) -> None:
    worker, run = start(tmp_path, "own")
    worker.kill()
    worker.wait()
    psutil.wait_procs([run], timeout=10)
    assert (tmp_path / "ended in order").exists()
    assert not run.is_running() or run.status() == psutil.STATUS_ZOMBIE


def test_a_run_whose_worker_died_before_it_began_ends_at_once(tmp_path: Path) -> None:
    worker, _ = start(tmp_path, "2**22 + 1")
    wait_until((tmp_path / "ended in order").exists, timeout_seconds=10, what="the run's end")
    worker.kill()
    worker.wait()


def test_a_run_of_another_kind_of_worker_is_left_alone(tmp_path: Path) -> None:
    worker, run = start(tmp_path, "")
    worker.kill()
    worker.wait()
    try:
        _, alive = psutil.wait_procs([run], timeout=2.5)
        assert alive
    finally:
        run.kill()


def test_what_a_run_starts_does_not_take_the_worker_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        monkeypatch.setenv(WORKER_PID, str(os.getppid()))
        with ends_with_worker():
            assert WORKER_PID not in os.environ
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert not received
