"""Run a command; when it ends or the container is stopped, let what it started end first.

A worker ends at once when it is told to. Its runs then write into broken pipes and end without a
word, and the server misses them only after minutes without heartbeats. So they are told first,
while the worker, halted, takes no new one: each ends its stage in order and reports itself crashed.
A worker that is killed tells nobody: its runs see that it is gone, end and report by themselves,
which takes them seconds. This process adopts and awaits them: the kernel kills what is left in a
container whose first process has ended. `docker stop` has the last word: it kills all when its
grace period is over.

Temporary files lie in a folder of this container's own below TMPDIR, locked while it lives. Of a
container that was killed the folder stays; whoever starts next finds it without a lock, which the
kernel has released, and deletes it. Several containers, with process ids of their own, may so share
a volume.

    tini -- python docker/entry.py COMMAND...
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

AWAIT_SECONDS = 50.0  # a run kills itself 40 s after it has missed its worker
PREFIX = "container-"
_PR_SET_CHILD_SUBREAPER = 36


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


def own_folder(shared: Path) -> Path:
    """Make and lock a folder for temporary files; delete those of containers that are gone."""
    # One at a time: a folder that is made is locked before anybody else can look at it.
    gate = os.open(shared / f"{PREFIX}gate", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(gate, fcntl.LOCK_EX)
    for folder in shared.glob(f"{PREFIX}*/"):
        if (free := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(free)
            print(f"deleted {folder}, which a container that is gone has left", flush=True)
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=shared))
    _lock(made)
    os.close(gate)
    # Copies of remote objects outlive their container: they hold locks of their own
    # (lmpipe/artifacts/local_copies.py), and the next run reads them again.
    copies = f"lmpipe-copies-{os.getuid()}"
    (shared / copies).mkdir(mode=0o700, exist_ok=True)
    (made / copies).symlink_to(shared / copies)
    return made


def _lock(folder: Path) -> int | None:
    """Lock a folder until this process ends; None if another process has, or it is another's."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def await_children(seconds: float) -> None:
    """Wait until everything that was started below us has ended."""
    deadline = time.monotonic() + seconds
    while children(os.getpid()) and time.monotonic() < deadline:
        time.sleep(0.2)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)


ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
temporary = os.environ.get("TMPDIR")
own = own_folder(Path(temporary)) if temporary else None
command = subprocess.Popen(sys.argv[1:], env=os.environ | ({"TMPDIR": str(own)} if own else {}))
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
while True:  # orphans are ours, and are reaped on the way
    pid, status = os.waitpid(-1, 0)
    if pid == command.pid:
        break
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left is on its way out
await_children(AWAIT_SECONDS)
if own is not None:
    shutil.rmtree(own, ignore_errors=True)
code = os.waitstatus_to_exitcode(status)
sys.exit(code if code >= 0 else 128 - code)
