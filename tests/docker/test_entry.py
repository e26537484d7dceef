"""docker/entry.py: what a container's first process does when its command or itself is ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.services.prefect_server import REPOSITORY
from tests.services.processes import ServiceProcess, descendants, wait_until

ENTRY = [sys.executable, str(REPOSITORY / "docker" / "entry.py")]
# A worker whose run, in a session of its own, sees that it is gone and reports two seconds later.
RUN = """
import os, pathlib, time
worker = os.getppid()
pathlib.Path("run-started").touch()
while os.getppid() == worker:
    time.sleep(0.05)
time.sleep(2)
pathlib.Path("reported").touch()
"""
WORKER = f"""
import pathlib, subprocess, sys, tempfile, time
run = subprocess.Popen([sys.executable, "-c", {RUN!r}], start_new_session=True)
pathlib.Path(tempfile.mkdtemp(), "half-written").touch()
pathlib.Path("temporary").write_text(tempfile.gettempdir())
time.sleep(600)
"""


class Container:
    """The entry point and a worker, less the container."""

    def __init__(self, name: str, folder: Path, scratch: Path) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        environment = os.environ | {"TMPDIR": str(scratch)}
        command = [*ENTRY, sys.executable, "-c", WORKER]
        self.process = ServiceProcess("entry", command, self.folder, environment=environment)
        self.process.start(lambda: self.has("run-started", "temporary"), timeout_seconds=30)

    def has(self, *names: str) -> bool:
        return all((self.folder / name).exists() for name in names)

    @property
    def temporary(self) -> Path:
        return Path((self.folder / "temporary").read_text())

    @property
    def worker(self) -> psutil.Process:
        return psutil.Process(self.process.pid).children()[0]

    def vanish(self) -> None:
        """End all at once, as the kernel does with a container that is killed."""
        family = descendants(self.process.pid)
        self.process.kill()
        for process in family:
            process.kill()
        psutil.wait_procs(family, timeout=10)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def container(tmp_path: Path, scratch: Path) -> Iterator[Container]:
    made = Container("first", tmp_path, scratch)
    try:
        yield made
    finally:
        made.process.stop()


def test_the_runs_of_a_killed_worker_report_before_the_container_ends(container: Container) -> None:
    container.worker.kill()
    wait_until(lambda: not container.process.running, timeout_seconds=30, what="the end")
    assert container.has("reported")
    assert container.process._process is not None
    assert container.process._process.returncode == 128 + signal.SIGKILL


def test_a_stop_ends_the_worker_in_order_and_leaves_nothing_in_scratch(
    container: Container, scratch: Path
) -> None:
    family = descendants(container.process.pid)
    assert list(scratch.rglob("half-written"))
    os.kill(container.process.pid, signal.SIGTERM)
    wait_until(lambda: not container.process.running, timeout_seconds=30, what="the end")
    psutil.wait_procs(family, timeout=10)
    assert not any(process.is_running() for process in family)
    assert not list(scratch.glob("container-*/"))


def test_scratch_of_a_container_that_is_gone_is_deleted_and_of_a_living_one_kept(
    container: Container, tmp_path: Path, scratch: Path
) -> None:
    dead = Container("dead", tmp_path, scratch)
    (scratch / "of-somebody-else").mkdir()
    assert dead.temporary.parent == container.temporary.parent == scratch
    dead.vanish()
    assert list(dead.temporary.rglob("half-written"))
    next_one = Container("next", tmp_path, scratch)
    try:
        assert not dead.temporary.exists()
        assert list(container.temporary.rglob("half-written")), "its container lives"
        assert (scratch / "of-somebody-else").is_dir()
        assert f"deleted {dead.temporary}" in next_one.process.log_tail()
    finally:
        next_one.process.stop()


def test_copies_of_remote_objects_outlive_their_container(tmp_path: Path) -> None:
    keep = "from lmpipe.artifacts.local_copies import folder"
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    for name in ("first", "second"):
        put = f"{keep}; import pathlib; (pathlib.Path(folder('shard')) / {name!r}).touch()"
        subprocess.run([*ENTRY, sys.executable, "-c", put], env=environment, check=True, timeout=60)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} >= {"first", "second"}


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_the_commands(code: int, tmp_path: Path) -> None:
    command = [*ENTRY, sys.executable, "-c", f"raise SystemExit({code})"]
    done = subprocess.run(command, env=os.environ | {"TMPDIR": str(tmp_path)}, timeout=30)
    assert done.returncode == code
