"""A run of a process pool watches its worker, and ends in order when that is gone."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lmpipe.runtime.processes import end_tree

WORKER_PID = "LMPIPE_WORKER_PID"  # how a run knows its worker


WATCH_SECONDS = 1.0


GRACE_SECONDS = 40.0  # a stage has 15 s to end; then the state is reported


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
