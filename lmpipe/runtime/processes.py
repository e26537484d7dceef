"""Child processes that cannot outlive their parent, and the end of whole process trees.

Two guards, because either alone leaks. `end_tree` ends every descendant in order, SIGTERM first;
it needs a living parent. `die_with_parent` has the kernel kill a child whose parent was killed
with SIGKILL or by the memory killer; Linux only. Process groups, the alternative, lose children
that start a session of their own, as torchrun's ranks do.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.05


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends.

    Called by the child first thing. The signal fires when the *thread* that started the child ends,
    so start children from a thread that waits for them. Elsewhere than on Linux this does nothing.

    Args:
        parent_pid: pid of the parent as the parent itself knows it; when it is no longer ours, the
            parent has died before this call and the process ends at once.
    """
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os._exit(1)


def end_tree(pid: int, grace_seconds: float, *, names: dict[int, str] | None = None) -> list[str]:
    """End a process and all its descendants: SIGTERM, then after the grace SIGKILL.

    Args:
        names: what to call some pids in the answer, such as {4711: "rank 0"}.

    Returns:
        One entry per process that was ended here, such as "rank 0 (pid 4711)"; empty when all had
        ended before.
    """
    return end_trees([pid], grace_seconds, names=names)


def end_trees(
    pids: Iterable[int], grace_seconds: float, *, names: dict[int, str] | None = None
) -> list[str]:
    """End several trees together, so that they share one grace period."""
    roots = list(pids)
    ended: dict[psutil.Process, str] = {}
    deadline = time.monotonic() + grace_seconds
    signalled: set[psutil.Process] = set()
    # again and again: a process may start another between our look and our signal
    while living := _living_trees(roots, ended):
        late = time.monotonic() >= deadline
        for process in living:
            if late or process not in signalled:
                ended.setdefault(process, _describe(process, names or {}))
                _send(process, signal.SIGKILL if late else signal.SIGTERM)
                signalled.add(process)
        time.sleep(_POLL_SECONDS)
    return list(ended.values())


def _living_trees(roots: list[int], known: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The roots, all their descendants, and those seen before that were orphaned since."""
    found: dict[psutil.Process, None] = dict.fromkeys(known)
    for pid in roots:
        try:
            root = psutil.Process(pid)
            found.update(dict.fromkeys([root, *root.children(recursive=True)]))
        except psutil.NoSuchProcess:
            continue
    for process in list(found):
        try:
            found.update(dict.fromkeys(process.children(recursive=True)))
        except psutil.NoSuchProcess:
            continue
    return [process for process in found if _is_living(process)]


def _is_living(process: psutil.Process) -> bool:
    """A zombie has ended; only its parent has not looked yet. A reused pid is another process."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _describe(process: psutil.Process, names: dict[int, str]) -> str:
    try:
        name = names.get(process.pid) or process.name()
    except psutil.NoSuchProcess:
        name = "process"
    return f"{name} (pid {process.pid})"


def memory_limit_bytes() -> int:
    """Return the memory this process may use: its cgroup's limit, else the machine's total."""
    limits = [psutil.virtual_memory().total]
    for path in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (Path("/sys/fs/cgroup") / path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def describe_exit(returncode: int) -> str:
    """Say how a process ended: "exit code 1", "SIGKILL (likely out of memory; the limit is 8 GiB)".

    Args:
        returncode: as in subprocess: negative for a signal. 137 is a shell's word for SIGKILL.
    """
    number = -returncode if returncode < 0 else returncode - 128 if returncode > 128 else 0
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {returncode}"
    text = f"{name} (exit code {returncode}"
    if number == signal.SIGKILL:
        text += f"; likely out of memory: the limit is {memory_limit_bytes() / 2**30:.1f} GiB"
    return text + ")"
