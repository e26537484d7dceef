"""Run a command; when the container is stopped, end what the command started before it.

A worker ends at once when it is told to. Its runs then write into broken pipes and end without a
word, and the server misses them only after minutes without heartbeats. So they are told first,
while the worker, halted, takes no new one: each ends its stage in order and reports itself crashed.
`docker stop` has the last word: it kills all when its grace period is over.

    tini -- python docker/entry.py COMMAND...
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType


def children(parent: int) -> list[int]:
    """Return the living children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, its_parent = path.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_parent) == parent and state != "Z":
            found.append(int(path.parent.name))
    return found


def stop(number: int, frame: FrameType | None) -> None:
    """End the command's children, then the command."""
    os.kill(command.pid, signal.SIGSTOP)
    for pid in children(command.pid):
        os.kill(pid, signal.SIGTERM)
    while children(command.pid):
        time.sleep(0.2)
    os.kill(command.pid, signal.SIGTERM)
    os.kill(command.pid, signal.SIGCONT)


command = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
code = command.wait()
sys.exit(code if code >= 0 else 128 - code)
