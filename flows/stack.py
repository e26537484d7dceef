"""The whole stack of one machine as child processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from types import FrameType
from typing import NoReturn

import httpx
from rich.console import Console

from flows.worker import WORKER_SETTINGS
from lmpipe.errors import LmpipeError
from lmpipe.runtime.processes import describe_exit, end_trees

SERVER_START_SECONDS = 180.0  # a fresh home migrates its database for 55 s
GRACE_SECONDS = 40.0  # a worker ends its runs: Prefect grants those 30 s
# The kernel ends a child when we are killed by -9, and exec keeps that order. A shell starts what
# it runs in the background with SIGINT ignored; exec keeps that too, and a worker ends by SIGINT.
LAUNCHER = (
    "import os, signal, sys; from lmpipe.runtime.processes import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)


class Children:
    """Processes of ours that end together."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        """Start a Python command in a session of its own: Ctrl-C reaches us alone."""
        self._running[name] = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(os.getpid()), *command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def check(self) -> None:
        """Raise if one has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise LmpipeError(f"{name} ended with {describe_exit(process.returncode)}")

    def end(self) -> list[str]:
        """End all, the newest first: a worker still needs the server to report its runs."""
        ended = []
        for name, process in reversed(self._running.items()):
            ended += end_trees([process.pid], GRACE_SECONDS, names={process.pid: name})
            process.wait()
        return ended


def up(console: Console, port: int, store: str) -> None:
    """Run a server with our deployments and a worker until someone ends it.

    Everything queued runs here: GPU deployments go to `gpu-process` where there is a GPU, else to
    the CPU worker. The database is Prefect's SQLite. docker/compose.yaml is the shared stack, on
    PostgreSQL, Redis and S3.
    """
    from flows.deploy import gpu_devices

    url = f"http://127.0.0.1:{port}"
    environment = WORKER_SETTINGS | dict(os.environ) | {"PREFECT_API_URL": f"{url}/api"}
    environment |= {"PREFECT_UI_URL": url, "PREFECT_CLI_PROMPT": "false"}
    gpu_pool = "gpu-process" if gpu_devices() else "cpu"
    children = Children()
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        server = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        children.start("server", server, environment)
        _wait_for(f"{url}/api/health", children)
        deploy = [sys.executable, "-m", "flows.cli", "deploy", "--gpu-pool", gpu_pool]
        subprocess.run([*deploy, "--store", store], env=environment, check=True)
        for pool in dict.fromkeys(["cpu", gpu_pool]):
            children.start(f"{pool} worker", ["-m", "flows.cli", "worker", pool], environment)
        console.print(f"the stack is up: {url}; Ctrl-C ends it", highlight=False)
        while True:
            children.check()
            time.sleep(1)
    except KeyboardInterrupt:
        pass
    finally:
        for name in children.end():
            console.print(f"ended {name}", highlight=False)


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
