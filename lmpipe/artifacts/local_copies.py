"""Copies of objects on this host's disk, for libraries that want a path or a map of a file.

They lie below the temporary directory (TMPDIR), one folder an attempt of a stage. Who asks for a
folder holds it, by a shared lock that the kernel gives back when the process ends, however it ends.
A folder that nobody holds goes once it was not asked for in KEEP_SECONDS, or at once when the disk
is full. Age alone would not do: a run reads its tokens for weeks, and asked for them on day one.
"""

import fcntl
import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lmpipe.artifacts.store import FULL
from lmpipe.errors import StoreError

KEEP_SECONDS = 7 * 24 * 3600
LOCK = ".in-use"  # its age is the time since the folder was asked for


def home() -> Path:
    """Return the folder of all copies of this user."""
    return Path(tempfile.gettempdir()) / f"lmpipe-copies-{os.getuid()}"


def folder(*key: str) -> Path:
    """Return the folder of a key, kept until this process ends."""
    return _held(home() / hashlib.sha256("|".join(key).encode()).hexdigest()[:24])


@functools.cache
def _held(path: Path) -> Path:
    prune(KEEP_SECONDS)
    while True:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(exist_ok=True)
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # removed since
            continue
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_nlink:
            os.utime(lock)
            return path  # the lock stays open as long as the process lives
        os.close(lock)


def prune(unused_seconds: float) -> int:
    """Remove the folders that no process holds and none has asked for in that time; count them."""
    return sum(_remove(path, unused_seconds) for path in sorted(home().glob("*")))


def _remove(path: Path, unused_seconds: float) -> bool:
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # removed since, or no folder of ours
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - os.fstat(lock).st_mtime < unused_seconds:
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def with_room(write: Callable[[], None]) -> None:
    """Write a copy; if the disk is full, drop what nobody holds and try once more."""
    try:
        write()
    except (OSError, StoreError) as error:
        reason = error.__cause__ if isinstance(error, StoreError) else error
        if not (isinstance(reason, OSError) and reason.errno in FULL and prune(0)):
            raise
        write()


def has_room(num_bytes: int) -> bool:
    """Return whether the disk has so many bytes free, if need be without what nobody holds."""
    return _free() >= num_bytes or (prune(0) > 0 and _free() >= num_bytes)


def _free() -> int:
    return shutil.disk_usage(home()).free
