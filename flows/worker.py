"""Workers, and the runs that must not outlive them.

Prefect's worker starts each run in a session of its own. Killed with -9, it leaves the run and its
ranks behind: they hold the GPU, and nobody can cancel them. So a run of a process pool watches its
parent, and once that is gone ends itself as a cancelled run would: SIGTERM, the stage's processes
ended in order and by name, the lock released, the state reported as Crashed. A kernel's order to
kill the run at once (PR_SET_PDEATHSIG), the alternative, would leave the report to missing
heartbeats, ten minutes later. Below the run that order is what guards: its stages die with it.

A container is not ours to end: it has a life of its own, reports by itself, can be cancelled, and
Docker removes it. Nothing here concerns it: its worker hands on Prefect's and the store's variables
only.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from lmpipe.runtime.processes import end_tree

WORKER_SETTINGS = {
    "PREFECT_WORKER_QUERY_SECONDS": "5",  # how long a queued run waits for nothing
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60",
    # A server whose database is away answers 500, which clients take for final: a run that ends in
    # those seconds could not say so. Seven tries, pauses doubling from 2 s, are four minutes.
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
WORKER_PID = "LMPIPE_WORKER_PID"  # how a run knows its worker
WATCH_SECONDS = 1.0
GRACE_SECONDS = 40.0  # a stage has 15 s to end; then the state is reported


def become_worker(pool: str, limit: int, with_healthcheck: bool = False) -> NoReturn:
    """Replace this process by a worker of a pool, so that signals reach it directly."""
    from flows.remote import require_server

    require_server()
    environment = WORKER_SETTINGS | dict(os.environ) | {WORKER_PID: str(os.getpid())}
    command = worker_command(pool, limit, pool_kind(pool))
    command += ["--with-healthcheck"] if with_healthcheck else []
    # A shell starts what it runs in the background with SIGINT ignored, and exec keeps that; a
    # worker ends by SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execve(sys.executable, [sys.executable, *command], environment)


def worker_command(pool: str, limit: int, kind: str) -> list[str]:
    """Return the command for Prefect's worker with our watch in it, less the interpreter."""
    options = ["--pool", pool, "--limit", str(limit), "--install-policy", "never"]
    module = "flows.docker_worker" if kind == "docker" else "flows.waiting"
    return ["-m", module, "worker", "start", *options, *(["--type", kind] if kind else [])]


def pool_kind(pool: str) -> str:
    """Return the type of a pool of ours; of others the server knows it."""
    from flows.deploy import read_file

    unused = dict.fromkeys(("LMPIPE_IMAGE", "LMPIPE_GPU_IMAGE", "LMPIPE_API_URL"), "-")
    pools = read_file(unused)["definitions"]["pools"]
    kind: str = pools.get(pool, {}).get("type", "")
    return kind


@contextmanager
def ends_with_worker() -> Iterator[None]:
    """End this process, a run that `lmpipe worker` started, when that worker is gone.

    Elsewhere (a terminal, a container, a worker that `prefect worker start` started) this does
    nothing. A worker that died while the run was being prepared is noticed at once.
    """
    worker = os.environ.pop(WORKER_PID, None)  # what this run starts has another parent
    if worker is None:
        yield
        return
    done = threading.Event()
    watch = threading.Thread(
        target=_watch, args=[int(worker), done], name="worker-watch", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        done.set()


def _watch(worker: int, done: threading.Event) -> None:
    while os.getppid() == worker:
        if done.wait(WATCH_SECONDS):
            return
    # Output went through pipes to the worker; a write to a broken one would stop the way out.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    end_tree(os.getpid(), 0)  # native code that never lets the handler of SIGTERM run
