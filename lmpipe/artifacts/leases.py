"""Leases of running flows: which artifacts each uses, in a record with a heartbeat for gc.

A lock says who builds an artifact. A flow also uses what it found: a tokenizer that it hit at the
start and that its last stage reads three days later. So a run writes down each artifact before it
looks whether it is there, in its lease `uses/<token>.json`.

The order is what makes it safe: a run writes its lease and then reads what gc says; gc condemns and
then reads the leases. Whichever of the two comes later sees what the other wrote.
"""

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from lmpipe.artifacts.lock import (
    LEASE_SECONDS,
    Watch,
    describe,
    is_alive,
    is_dead,
    this_process,
)
from lmpipe.artifacts.store import Store
from lmpipe.errors import LockLost, StoreError, StoreRefused, StoreUnavailable

FOLDER = "uses"
# A run that cannot be seen and is silent for this long counts as dead. Longer than a lock's lease:
# nothing waits for it but gc, and what gc takes from a living run costs a rebuild.
SILENCE_SECONDS = 5 * LEASE_SECONDS
BEAT_SECONDS = LEASE_SECONDS / 6


class RunLeases:
    """The lease of a run on the artifacts that it uses; a context manager around the run.

    Args:
        store: where they lie.
        label: names the run for people.
        beat_seconds: between two heartbeats.

    Attributes:
        refusal: why nothing is written down, or "": of a store that may be read only. A run that
            finds everything needs no more; gc does not know of it and may take what it reads.
    """

    def __init__(self, store: Store, label: str, *, beat_seconds: float = BEAT_SECONDS) -> None:
        self._store, self._label, self._beat_seconds = store, label, beat_seconds
        self._path = f"{FOLDER}/{secrets.token_hex(8)}.json"
        self.refusal = ""
        self._taken: list[str] = []
        self._beats = 0
        self._etag: str | None = None
        self._lost = False
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="leases", daemon=True)

    def __enter__(self) -> "RunLeases":
        try:
            with self._guard:
                self._write([])
        except StoreRefused as error:
            self.refusal = str(error)
        else:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.refusal:
            return
        self._stop.set()
        self._thread.join(timeout=5.0)  # a beat may be waiting for a store that is away
        with contextlib.suppress(StoreError):  # gc finds it silent then
            _delete(self._store, self._path)

    def take(self, stage: str, artifact: str) -> None:
        """Note that the run uses an artifact; to be called before looking whether it is there.

        Raises:
            LockLost: gc has held this run for dead and may have taken what it uses.
        """
        name = f"{stage}/{artifact}"
        with self._guard:
            if name not in self._taken and not self.refusal:
                self._write([*self._taken, name])
                self._taken.append(name)

    def _write(self, leases: list[str]) -> None:
        if not self._lost:
            holder = {**this_process(), "label": self._label, "beat": self._beats, "uses": leases}
            data = json.dumps(holder).encode()
            if self._etag is None:
                etag = self._store.create(self._path, data)
            else:
                etag = self._store.replace(self._path, data, self._etag)
            self._etag = etag or self._after_a_lost_answer()
            self._lost = self._etag is None
        if self._lost:
            raise LockLost(
                f"{self._store.url(self._path)} is gone: this run was silent for over "
                f"{SILENCE_SECONDS:g} s and gc has held it for dead. Run it again; what gc took is "
                "built anew"
            )

    def _after_a_lost_answer(self) -> str | None:
        """Return the etag of our own write, whose answer got lost; nobody else writes here."""
        found = self._store.read_tagged(self._path)
        return found[1] if found else None

    def _beat(self) -> None:
        while not self._stop.wait(self._beat_seconds):
            with self._guard, contextlib.suppress(Exception):  # `take` says what a beat cannot
                self._beats += 1
                self._write(self._taken)


@dataclass
class Holder:
    """A build or a run that may be at work, as its lock or its lease says."""

    path: str
    said: dict[str, Any]
    etag: str
    leases: set[str] = field(default_factory=set)

    @property
    def label(self) -> str:
        """Name it for people."""
        return f"{self.said.get('label') or self.path.rpartition('/')[0]} by {describe(self.said)}"


def find_holders(store: Store, locks: Iterable[str]) -> list[Holder]:
    """Return the builds and runs that are not known to have ended.

    Args:
        locks: paths of the locks to look at; a lock's own artifact counts as used.
    """
    names = [n for n in store.children(FOLDER) if n.endswith(".json") and not n.startswith(".")]
    paths = [*locks, *(f"{FOLDER}/{name}" for name in names)]
    found = [holder for path in paths if (holder := _look(store, path)) is not None]
    return [holder for holder in found if not is_dead(holder.said)]


def find_silent(
    store: Store,
    holders: list[Holder],
    *,
    lock_seconds: float = LEASE_SECONDS,
    lease_seconds: float = SILENCE_SECONDS,
    on_wait: Callable[[str], None] = lambda text: None,
) -> dict[str, str]:
    """Wait until each holder has given a sign of life or been silent for its lease.

    Nothing waits for one that can be seen from here. An unseen one that lives beats every ten
    seconds, so only an unseen dead one takes the whole lease.

    Returns:
        Path and etag of the records that were silent.
    """
    waiting, silent = {h.path: h for h in holders if not is_alive(h.said)}, {}
    watches = {
        path: Watch(lease_seconds if path.startswith(f"{FOLDER}/") else lock_seconds)
        for path in waiting
    }
    if waiting:
        on_wait(f"waiting for a sign of life of {', '.join(h.label for h in waiting.values())}")
    while waiting:
        for path, holder in list(waiting.items()):
            try:
                now = _look(store, path)
            except StoreUnavailable:
                watches[path].etag = None  # silence of the store is no silence of the holder
                continue
            if now is None or is_dead(now.said) or now.etag != holder.etag:
                del waiting[path]
            elif watches[path].sees_silence(now.etag):
                silent[path] = now.etag
                del waiting[path]
        time.sleep(min(1.0, lock_seconds / 10) if waiting else 0.0)
    return silent


def delete_dead_leases(store: Store, silent: dict[str, str]) -> None:
    """Delete the leases of runs that ended without deleting theirs; a living run notices it."""
    for name in store.children(FOLDER):
        path = f"{FOLDER}/{name}"
        holder = _look(store, path) if name.endswith(".json") and name[0] != "." else None
        if holder is not None and (is_dead(holder.said) or silent.get(path) == holder.etag):
            _delete(store, path)


def _look(store: Store, path: str) -> Holder | None:
    found = store.read_tagged(path)
    said = json.loads(found[0]) if found else {}
    if found is None or not said:
        return None
    leases = set(said.get("uses", []))
    if not path.startswith(f"{FOLDER}/"):
        leases.add(path.rpartition("/")[0])
    return Holder(path, said, found[1], leases)


def _delete(store: Store, path: str) -> None:
    store.delete(path)
    if store.is_local:
        folder, _, name = path.rpartition("/")
        store.delete(f"{folder}/.{name}.flock")  # what orders conditional puts of one file
