"""Ends the children of a process that was killed: for children which a library starts.

`die_with_parent` is the better guard, but the child itself has to call it, and Prefect's ephemeral
server does not. Left alone by `kill -9` of a run it stays for ever, holding the database. The
watcher, 20 MB in a session of its own, holds the reading end of a pipe to the process, notes its
children twice a second, and when the pipe closes ends those that are still there.

Run as `python -m lmpipe.runtime.watcher PID`, with the pipe as stdin.
"""

import contextlib
import os
import select
import subprocess
import sys

import psutil

from lmpipe.runtime.processes import end_trees

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 5.0
_watchers: list["subprocess.Popen[bytes]"] = []


def children_end_with_this_process() -> None:
    """Have a watcher end what this process leaves behind, however it ends."""
    if _watchers:
        return
    command = [sys.executable, "-m", "lmpipe.runtime.watcher", str(os.getpid())]
    reading, _ = os.pipe()  # the writing end is closed by the end of this process and by no call
    _watchers.append(subprocess.Popen(command, stdin=reading, start_new_session=True))
    os.close(reading)


def main(parent_pid: int) -> None:
    """Note the parent's children until stdin closes, then end them."""
    parent = psutil.Process(parent_pid)
    noted: set[psutil.Process] = set()
    while not select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
        with contextlib.suppress(psutil.NoSuchProcess):
            noted.update(child for child in parent.children() if child.pid != os.getpid())
        noted = {child for child in noted if child.is_running()}
    end_trees([child.pid for child in noted if child.is_running()], _GRACE_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]))
