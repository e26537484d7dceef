"""A service of a test ends with the test: whole, paused or orphaned."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.services.processes import ServiceError, ServiceProcess, wait_until

# A service whose child has left for a session of its own, as the engine of a worker's run does.
WITH_A_RUNAWAY = "setsid sleep 60 & echo $! > pid; wait"


def _runaway(folder: Path) -> psutil.Process | None:
    text = (folder / "pid").read_text() if (folder / "pid").exists() else ""
    return psutil.Process(int(text)) if text.strip() else None


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_stop_ends_children_in_sessions_of_their_own(tmp_path: Path) -> None:
    service = ServiceProcess("runaway", ["bash", "-c", WITH_A_RUNAWAY], tmp_path)
    service.start(lambda: _runaway(tmp_path) is not None, timeout_seconds=10)
    child = _runaway(tmp_path)
    assert child is not None and child.is_running()
    service.stop()
    assert not service.running
    wait_until(lambda: _gone(child.pid), timeout_seconds=5, what="the end of the child")


def test_stop_ends_a_service_that_is_paused(tmp_path: Path) -> None:
    service = ServiceProcess("paused", ["sleep", "60"], tmp_path)
    service.start(lambda: service.running, timeout_seconds=10)
    service.pause()
    wait_until(
        lambda: psutil.Process(service.pid).status() == psutil.STATUS_STOPPED,
        timeout_seconds=5,
        what="the pause",
    )
    service.stop()
    assert not service.running


def test_a_service_that_ends_by_itself_says_why(tmp_path: Path) -> None:
    service = ServiceProcess("broken", ["bash", "-c", "echo no such volume; exit 3"], tmp_path)
    with pytest.raises(ServiceError, match=r"broken ended with 3:\nno such volume"):
        service.start(lambda: False, timeout_seconds=10)


def test_a_service_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    service = ServiceProcess("slow", ["sleep", "60"], tmp_path)
    with pytest.raises(ServiceError, match=r"slow not ready in 0\.5 s"):
        service.start(lambda: False, timeout_seconds=0.5)
    assert not service.running


def test_a_killed_test_run_takes_its_services_along(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path;"
        "from tests.services.processes import ServiceProcess;"
        "s = ServiceProcess('orphan', ['sleep', '60'], Path(sys.argv[1]));"
        # setpriv ties the service to its parent just before it becomes the command
        "tied = lambda: Path(f'/proc/{s.pid}/comm').read_text() == 'sleep\\n';"
        "s.start(tied, timeout_seconds=10); print(s.pid, flush=True); time.sleep(60)"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with runner:
        assert runner.stdout is not None
        pid = int(runner.stdout.readline())
        assert psutil.pid_exists(pid)
        runner.kill()
    wait_until(lambda: _gone(pid), timeout_seconds=5, what="the end of the service")
