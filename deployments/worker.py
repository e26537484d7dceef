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
from typing import NoReturn

from flows.worker_watch import WORKER_PID

WORKER_SETTINGS = {
    "PREFECT_WORKER_QUERY_SECONDS": "5",  # how long a queued run waits for nothing
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "60",
    # A server whose database is away answers 500, which clients take for final: a run that ends in
    # those seconds could not say so. Seven tries, pauses doubling from 2 s, are four minutes.
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


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
    module = "deployments.docker_worker" if kind == "docker" else "flows.waiting"
    return ["-m", module, "worker", "start", *options, *(["--type", kind] if kind else [])]


def pool_kind(pool: str) -> str:
    """Return the type of a pool of ours; of others the server knows it."""
    from deployments.deploy import read_file

    unused = dict.fromkeys(("LMPIPE_IMAGE", "LMPIPE_GPU_IMAGE", "LMPIPE_API_URL"), "-")
    pools = read_file(unused)["definitions"]["pools"]
    kind: str = pools.get(pool, {}).get("type", "")
    return kind
