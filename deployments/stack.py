"""The whole stack of one machine as child processes."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import httpx
from rich.console import Console

from deployments.worker import WORKER_SETTINGS
from lmpipe.errors import ConfigError, LmpipeError
from lmpipe.runtime.devices import num_gpus
from lmpipe.runtime.processes import describe_exit, end_trees

SERVER_START_SECONDS = 180.0  # a fresh home migrates its database for 55 s
GRACE_SECONDS = 40.0  # a worker ends its runs: Prefect grants those 30 s
FIRST_PAUSE_SECONDS = 1.0  # before a worker that ended is started again; doubles each time
LONGEST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 120.0  # a worker that ran so long may try again at once
AUTH_FILE = "lmpipe-auth-string"


@dataclass
class Child:
    """A command that runs, or waits to be started again.

    Args:
        is_worker: whether it is started again when it has ended; its runs end by themselves.
        num_ends: how often in a row it has ended soon.
        due: when it is started, in monotonic seconds, where it does not run.
    """

    command: list[str]
    environment: Mapping[str, str]
    is_worker: bool
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    num_ends: int = 0
    due: float = 0.0


class Children:
    """Processes of ours that end together: by `end`, or by the keeper when we are killed by -9."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._children: dict[str, Child] = {}
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "deployments.stack"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def start(
        self, name: str, command: list[str], environment: Mapping[str, str], is_worker: bool = False
    ) -> None:
        """Start a Python command in a session of its own: Ctrl-C reaches us alone."""
        self._children[name] = Child(command, dict(environment), is_worker)
        self._start(self._children[name])

    def _start(self, child: Child) -> None:
        child.started = time.monotonic()
        child.process = subprocess.Popen(
            [sys.executable, *child.command],
            env=dict(child.environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._tell_keeper(child.process.pid)

    def _tell_keeper(self, pid: int) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"{pid}\n".encode())
        self._keeper.stdin.flush()

    def check(self) -> None:
        """Start a worker that has ended again, after a pause that doubles while it keeps ending.

        Raises:
            LmpipeError: the server has ended; nobody can work without it.
        """
        for name, child in self._children.items():
            if child.process is None:
                if time.monotonic() >= child.due:
                    self._start(child)
            elif child.process.poll() is not None:
                how = f"{name} ended with {describe_exit(child.process.returncode)}"
                if not child.is_worker:
                    raise LmpipeError(how)
                self._put_off(name, child, how)

    def _put_off(self, name: str, child: Child, how: str) -> None:
        assert child.process is not None
        self._tell_keeper(-child.process.pid)  # the id may become another process's
        child.process = None
        now = time.monotonic()
        if now - child.started > STEADY_SECONDS:
            child.num_ends = 0
        pause = min(FIRST_PAUSE_SECONDS * 2**child.num_ends, LONGEST_PAUSE_SECONDS)
        child.num_ends += 1
        child.due = now + pause
        self._console.print(
            f"{how}; the server goes on, {name} is started again in {pause:g} s",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def end(self) -> list[str]:
        """End all, the newest first: a worker still needs the server to report its runs."""
        ended = []
        for name, child in reversed(self._children.items()):
            if child.process is not None:
                pid = child.process.pid
                ended += end_trees([pid], GRACE_SECONDS, names={pid: name})
                child.process.wait()
        self._keeper.kill()
        self._keeper.communicate()
        return ended


def keep(pids: Iterable[str]) -> None:
    """End the trees of the processes named, once nobody is left who could name more.

    Runs in a process of its own with the stack's end of a pipe as its input. The kernel's own order
    to a child (PR_SET_PDEATHSIG) was the alternative: it kills a worker and not the worker's runs.

    Args:
        pids: of processes that were started; with a minus, of those that have ended since.
    """
    trees: dict[int, None] = {}
    for pid in map(int, pids):
        if pid > 0:
            trees[pid] = None
        else:
            trees.pop(-pid, None)
    end_trees(trees, GRACE_SECONDS)


def up(console: Console, port: int, store: str) -> None:
    """Run a server with our deployments and a worker until someone ends it.

    Everything queued runs here: GPU deployments go to `gpu-process` where there is a GPU, else to
    the CPU worker; one that ends is started again. The database is Prefect's SQLite, unless
    PREFECT_API_DATABASE_CONNECTION_URL names another. docker/compose.yaml is the shared stack, on
    PostgreSQL, Redis and S3.
    """
    _require_free(port)
    secret = auth_string_file()
    url = f"http://127.0.0.1:{port}"
    environment = WORKER_SETTINGS | dict(os.environ) | {"PREFECT_API_URL": f"{url}/api"}
    environment |= {"PREFECT_UI_URL": url, "PREFECT_CLI_PROMPT": "false"}
    environment["PREFECT_API_AUTH_STRING"] = secret.read_text()
    server_environment = {"PREFECT_SERVER_API_AUTH_STRING": secret.read_text()}
    gpu_pool = "gpu-process" if num_gpus() else "cpu"
    signal.signal(signal.SIGTERM, _exit)
    # A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    children = Children(console)
    try:
        server = [
            "-m",
            "deployments.sqlite_server",
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        children.start("server", server, environment | server_environment)
        _wait_for(f"{url}/api/health", children)
        deploy = [sys.executable, "-m", "deployments.cli", "deploy", "--gpu-pool", gpu_pool]
        if subprocess.run([*deploy, "--store", store], env=environment).returncode != 0:
            raise LmpipeError("the deployments could not be registered")
        for pool in dict.fromkeys(["cpu", gpu_pool]):
            # Two runs at a time: a plan that somebody is to approve must not wait for a pipeline.
            worker = ["-m", "deployments.cli", "worker", pool, "--limit", "2"]
            children.start(f"{pool} worker", worker, environment, is_worker=True)
        console.print(_how_to_use(url, secret), highlight=False, markup=False, soft_wrap=True)
        while True:
            children.check()
            time.sleep(1)
    except KeyboardInterrupt:
        pass
    finally:
        for name in children.end():
            console.print(f"ended {name}", highlight=False)


def auth_string_file() -> Path:
    """Return the file that holds this user's auth string, made at the first call.

    Without one, every user of the machine and every page in a browser on it could queue runs here.
    The file is for its owner only; an auth string in the environment is written there, so that
    the commands we print are the same ones.
    """
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    path = home / AUTH_FILE
    given = os.environ.get("PREFECT_SERVER_API_AUTH_STRING")
    if not given and path.exists():
        return path
    home.mkdir(parents=True, exist_ok=True)
    partial = home / f"{AUTH_FILE}.{os.getpid()}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(given or f"lmpipe:{secrets.token_urlsafe(24)}")
    partial.replace(path)
    return path


def _how_to_use(url: str, secret: Path) -> str:
    exports = f'PREFECT_API_URL={url}/api PREFECT_API_AUTH_STRING="$(cat {secret})"'
    return f"""the stack is up: {url}; Ctrl-C ends it
the UI asks once for what stands in {secret}
in another terminal:
    export {exports}
    lmpipe run demo --remote
its database is SQLite, in which one writes at a time: right for one person and a few runs at once;
forms that take seconds to submit call for PostgreSQL, which docker/compose.yaml brings"""


def _require_free(port: int) -> None:
    """Stop before another server there is taken for ours."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"--port {port}: {error.strerror}; choose another one") from error


def _wait_for(url: str, children: Children) -> None:
    deadline = time.monotonic() + SERVER_START_SECONDS
    while time.monotonic() < deadline:
        children.check()
        try:
            if httpx.get(url, timeout=5).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise LmpipeError(f"the server did not answer at {url} in {SERVER_START_SECONDS:g} s")


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    keep(sys.stdin)
