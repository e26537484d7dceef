"""Run a command, and let the container live until what the command left behind has ended.

A worker that is stopped ends at once; its runs notice that, end their stages in order and report
themselves crashed. Without this the container would end with the worker, the kernel would kill the
runs, and the server would miss nobody for ten minutes. `docker stop` still has the last word: it
kills all when its grace period is over.

    tini -g -- python docker/entry.py COMMAND...
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def is_left(pid: int) -> bool:
    """Whether a process came from the command and lives; `docker exec` starts others, below 0."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return pid not in (1, os.getpid()) and state != "Z" and parent != "0"


# tini signals the whole group: the command has its own copy, and we outlive it
signal.signal(signal.SIGTERM, lambda number, frame: None)
signal.signal(signal.SIGINT, lambda number, frame: None)
code = subprocess.Popen(sys.argv[1:]).wait()
while os.getppid() == 1 and any(is_left(int(p.name)) for p in Path("/proc").glob("[0-9]*")):
    time.sleep(0.2)
sys.exit(code if code >= 0 else 128 - code)
