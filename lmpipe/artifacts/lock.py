"""One builder per artifact: a lock that outlives nothing it should not.

The lock is one small object that its holder rewrites every few seconds; each rewrite changes its
etag. An observer that sees the same etag for a whole lease, on its own monotonic clock and over
successful reads only, takes the lock over by a write conditional on that etag. No clock is compared
between machines, and a store that is unreachable for a minute costs nobody the lock, because the
observer's count starts anew after a failed read.

Where the holder can be seen (same boot, same pid namespace), a dead one is taken over at once: who
runs again after `kill -9` on one machine waits for nothing.

A holder notices the loss at its next rewrite. It may notice late; that is why publishing is fenced
by a conditional put of the manifest and not by the lock alone.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from lmpipe.artifacts.store import Store
from lmpipe.errors import LockLost, StoreError, StoreUnavailable

LEASE_SECONDS = 60.0  # six missed beats; a stop-the-world pause of a loaded laptop stays below it
MAX_FAILURES = 10  # unanswered tries in a row, each of them a minute on S3, before waiting ends
RELEASED = b"{}"


class BuildLock:
    """Exclusive right to build one artifact; use as a context manager.

    Args:
        store: where the lock lies.
        path: the lock object's path.
        lease_seconds: silence after which another builder may take over.
        on_wait: called with the holder's description when somebody else holds the lock.
        leases: artifacts ("stage/id") that the holder reads; gc leaves them alone.

    Attributes:
        note: what else the lock says of its holder, asked at every beat.
        displaced: what a dead or silent holder had said, if the lock was taken over.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        on_wait: Callable[[str], None] | None = None,
        leases: list[str] | None = None,
    ) -> None:
        self.note: Callable[[], dict[str, Any]] = dict
        self.displaced: dict[str, Any] = {}
        self._leases = leases or []
        self._store = store
        self._path = path
        self._lease = lease_seconds
        self._on_wait = on_wait or (lambda holder: None)
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._etag: str | None = None
        self._lost = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "BuildLock":
        if self._etag is None:
            self._acquire()
        self._thread = threading.Thread(target=self._beat_until_stopped, name="lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if not self._lost and self._etag is not None:
            # a release that fails must not undo what was published: the lock is then found silent
            with contextlib.suppress(StoreError):
                self._store.replace(self._path, RELEASED, self._etag)

    def check(self) -> None:
        """Raise LockLost unless this builder still holds the lock, by the store's own word."""
        current = self._store.read_tagged(self._path)
        holder = json.loads(current[0]).get("token") if current else None
        if self._lost or holder != self._token:
            self._lost = True
            raise LockLost(
                f"{self._store.url(self._path)} was taken over by another builder; this attempt "
                "publishes nothing. Its finished shards stay and are adopted"
            )

    def _acquire(self) -> None:
        watch, failures = Watch(self._lease), 0
        poll = min(1.0, self._lease / 10)
        while True:
            try:
                if self.take(watch):
                    return
                failures = 0
            except StoreUnavailable:
                watch = Watch(self._lease)  # silence of the store is no silence of the holder
                failures += 1
                if failures == MAX_FAILURES:
                    raise
            time.sleep(poll)

    def take(self, watch: "Watch") -> bool:
        """Take the lock if it is free, released, silent for the lease, or a dead process has it.

        Never waits. After True, entering the context starts the heartbeat.
        """
        self._etag = self._store.create(self._path, self._payload())
        if self._etag is not None:
            return True
        current = self._store.read_tagged(self._path)
        if current is None:
            return False
        data, etag = current
        holder = json.loads(data)
        if holder.get("token") == self._token:
            self._etag = etag  # our own write: its answer got lost and the store's client retried
            return True
        is_first_look = watch.etag is None
        if watch.sees_silence(etag) or data == RELEASED or is_dead(holder):
            self._etag = self._store.replace(self._path, self._payload(), etag)
            self.displaced = holder
        elif is_first_look:
            self._on_wait(describe(holder))
        return self._etag is not None

    def _beat_until_stopped(self) -> None:
        while not self._stop.wait(self._lease / 6):
            self._beats += 1
            assert self._etag is not None
            try:
                etag = self._store.replace(self._path, self._payload(), self._etag)
            except Exception:  # a failed beat is no loss yet: check() asks before publishing
                continue
            if etag is None and not self._still_ours():
                self._lost = True
                return
            self._etag = etag or self._etag

    def _still_ours(self) -> bool:
        """Tell a takeover from a beat whose answer got lost; adopt the etag of the latter."""
        try:
            current = self._store.read_tagged(self._path)
        except StoreUnavailable:
            return True
        if current is None or json.loads(current[0]).get("token") != self._token:
            return False
        self._etag = current[1]
        return True

    def _payload(self) -> bytes:
        holder = {
            "token": self._token,
            **this_process(),
            "beat": self._beats,
            "uses": self._leases,
            **self.note(),
        }
        return json.dumps(holder).encode()


def this_process() -> dict[str, Any]:
    """Describe this process so that `is_dead` can tell later whether it still runs."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": _birth(os.getpid()),
        "namespace": _namespace(),
    }


class Watch:
    """How long somebody else's lock has kept its etag, by our own clock."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease = lease_seconds
        self._since = time.monotonic()
        self.etag: str | None = None

    @classmethod
    def of_silent(cls, etag: str) -> "Watch":
        """Return a watch that has seen enough of a lock with this etag."""
        watch = cls(LEASE_SECONDS)
        watch.etag, watch._since = etag, time.monotonic() - 2 * LEASE_SECONDS
        return watch

    def sees_silence(self, etag: str) -> bool:
        """Note what is seen now; tell whether it has been the same for the whole lease."""
        if etag != self.etag:
            self.etag, self._since = etag, time.monotonic()
        return time.monotonic() - self._since > self._lease


def _namespace() -> str:
    """Name this boot and pid namespace: two processes that share it can see one another's pids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""  # not Linux: nobody is seen, and the lease decides


def _birth(pid: int) -> float:
    """Return when a process started, which tells it from a later one with the same pid."""
    return psutil.Process(pid).create_time()


def is_dead(holder: dict[str, Any]) -> bool:
    """Whether the holder is known to have ended; False when it cannot be seen from here."""
    return can_be_seen(holder) and not _lives(holder)


def is_alive(holder: dict[str, Any]) -> bool:
    """Whether the holder is known to run; False when it cannot be seen from here."""
    return can_be_seen(holder) and _lives(holder)


def can_be_seen(holder: dict[str, Any]) -> bool:
    """Whether the holder is, or was, a process of this boot and pid namespace."""
    return bool(holder.get("namespace")) and holder["namespace"] == _namespace()


def _lives(holder: dict[str, Any]) -> bool:
    try:
        return bool(abs(_birth(holder["pid"]) - holder["born"]) <= 1.0)
    except psutil.NoSuchProcess:
        return False


def describe(holder: dict[str, Any]) -> str:
    """Name a holder for people."""
    return f"process {holder.get('pid')} on {holder.get('host')}"
