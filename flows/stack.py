"""Workers, and the whole stack of one machine as child processes."""

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

from lmpipe.errors import LmpipeError
from lmpipe.runtime.processes import describe_exit, end_trees

WORKER_SETTINGS = {
    "PREFECT_WORKER_QUERY_SECONDS": "5",  # how long a queued run waits for nothing
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60",
    # A server whose database is away answers 500, which clients take for final: a run that ends in
    # those seconds could not say so. Seven tries, pauses doubling from 2 s, are four minutes.
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
SERVER_START_SECONDS = 180.0  # a fresh home migrates its database for 55 s
GRACE_SECONDS = 40.0  # a worker ends its runs: Prefect grants those 30 s
# The kernel ends a child when we are killed by -9, and exec keeps that order. A shell starts what
# it runs in the background with SIGINT ignored; exec keeps that too, and a worker ends by SIGINT.
LAUNCHER = (
    "import os, signal, sys; from lmpipe.runtime.processes import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)


def worker_command(pool: str, limit: int, kind: str) -> list[str]:
    """Return Prefect's command for a worker, less the interpreter."""
    module = "flows.docker_worker" if kind == "docker" else "prefect"
    options = ["--pool", pool, "--limit", str(limit), "--install-policy", "never"]
    return ["-m", module, "worker", "start", *options, *(["--type", kind] if kind else [])]


def become_worker(pool: str, limit: int, with_healthcheck: bool) -> NoReturn:
    """Replace this process by a worker of a pool, so that signals reach it directly."""
    from flows.remote import require_server

    require_server()
    environment = WORKER_SETTINGS | dict(os.environ)
    command = worker_command(pool, limit, pool_kind(pool))
    command += ["--with-healthcheck"] if with_healthcheck else []
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # see LAUNCHER
    os.execve(sys.executable, [sys.executable, *command], environment)


def pool_kind(pool: str) -> str:
    """Return the type of a pool of ours; of others the server knows it."""
    from flows.deploy import read_file

    unused = dict.fromkeys(("LMPIPE_IMAGE", "LMPIPE_GPU_IMAGE", "LMPIPE_API_URL"), "-")
    pools = read_file(unused)["definitions"]["pools"]
    kind: str = pools.get(pool, {}).get("type", "")
    return kind


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
            children.start(f"{pool} worker", worker_command(pool, 1, "process"), environment)
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
