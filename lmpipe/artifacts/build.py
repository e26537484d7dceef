"""Building an artifact: look it up, take its lock, run the stage, publish the manifest.

The publishing write is conditional (create-if-absent, or replace-if-unchanged for a forced
rebuild), so that of two builders, however they came to run at once, one manifest wins and names
one attempt.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from lmpipe.artifacts import attempts
from lmpipe.artifacts.events import Sink, discard
from lmpipe.artifacts.identity import content_digest
from lmpipe.artifacts.lock import LEASE_SECONDS, BuildLock
from lmpipe.artifacts.lookup import (
    as_list,
    home,
    homes_of,
    identify,
    input_records,
    manifest_path,
    read_manifest,
)
from lmpipe.artifacts.manifest import Manifest, Origin
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.provenance import cpu_seconds, gpu_hours, now, provenance
from lmpipe.artifacts.stage import A, Inputs, Stage, StageConfig, given_roles
from lmpipe.artifacts.store import Store, names_full_disk
from lmpipe.artifacts.tombstone import claim, covers
from lmpipe.artifacts.types import open_artifact
from lmpipe.errors import LmpipeError, LockLost, StoreError
from lmpipe.runtime import Runtime
from lmpipe.runtime.redaction import Redactor


def find(stage: Stage[A], artifact: str, store: Store, runtime: Runtime) -> A | None:
    """Return the artifact of an id if its manifest and all its objects are there.

    What gc is about to delete is taken back from it; what it has begun to delete is not there.
    """
    entry = read_manifest(store, stage.name, artifact)
    if entry is None or is_collected(store, entry[0]):
        return None
    found = open_artifact(store, entry[0], runtime.locations)
    return None if found.missing() else found  # type: ignore[return-value]


def is_collected(store: Store, manifest: Manifest) -> bool:
    """Take an artifact back from gc wherever its objects lie; tell whether it is too late."""
    paths = [file.path for file in manifest.outputs]
    taken = ((claim(store, place), place) for place in homes_of(manifest))
    return any(covers(gone, place, path) for gone, place in taken for path in paths)


def build(
    stage: Stage[A],
    config: StageConfig,
    inputs: Inputs,
    *,
    store: Store,
    runtime: Runtime,
    force: bool = False,
    sink: Sink = discard,
    reason: str = "",
    origin: Origin | None = None,
    lease_seconds: float = LEASE_SECONDS,
) -> A:
    """Return the artifact of a stage, built in this process if it is not whole in the store.

    Args:
        stage: what to run.
        config: what it does.
        inputs: artifacts by role; those that a stage can do without may be left out.
        store: where it is looked up and published.
        runtime: where and how it runs.
        force: build even if it is there; the new attempt replaces the manifest.
        sink: hears progress, curves, tables and log lines.
        reason: why it runs, for the manifest.
        origin: which run asks for it, for the manifest.
        lease_seconds: see BuildLock.

    Raises:
        InputError: the stage's gate refuses the inputs, whether the artifact is there or not.
        ConfigError: the stage's check refuses the config or the runtime.
        LockLost: another builder took over; nothing was published.
    """
    inputs = stage.complete(inputs)
    artifact = identify(stage, config, inputs)
    before = read_manifest(store, stage.name, artifact)
    stage.admit(config, inputs)
    if not force and (found := find(stage, artifact, store, runtime)) is not None:
        return found
    if stage.check is not None:
        stage.check(config, given_roles(inputs), runtime)

    def on_wait(holder: str) -> None:
        sink(
            {
                "type": "log",
                "level": "info",
                "message": f"waiting for {holder}, which builds {stage.name}/{artifact}",
            }
        )

    folder = home(stage.name, artifact)
    used = [
        place
        for value in inputs.values()
        for item in as_list(value)
        for place in homes_of(item.manifest)
    ]
    with BuildLock(
        store, f"{folder}/lock.json", lease_seconds=lease_seconds, on_wait=on_wait, leases=used
    ) as lock:
        attempts.record(store, attempts.of_lock(folder, lock.displaced, "killed"))
        current = read_manifest(store, stage.name, artifact)
        published_meanwhile = current is not None and (before is None or current[1] != before[1])
        if published_meanwhile and (found := find(stage, artifact, store, runtime)) is not None:
            return found
        _keep_from_gc(store, inputs)
        account = _Account(reason, origin or Origin())
        publisher = _Publisher(stage, config, inputs, store, runtime, lock, current, account)
        out: Output[A] = Output(store, folder, stage.kind, sink, publisher)
        out.collected = claim(store, folder)
        lock.note = lambda: account.note(out)
        if force and current is not None:
            out.supersede(current[0].attempt)
        sink({"type": "attempt", "stage": stage.name, "id": artifact, "attempt": out.attempt})
        temporary = f"temporary files in {runtime.scratch_folder()}, or in {store.url(folder)}"
        with account.of_failure(store, stage.name, artifact, out), names_full_disk(temporary):
            result = stage.function(out, config, *inputs.values(), runtime=runtime)
            if not publisher.done:
                raise LmpipeError(f"stage {stage.name} returned without out.commit()")
        return result


def _keep_from_gc(store: Store, inputs: Inputs) -> None:
    """Take inputs back from gc, which reads in our lock that we use them from now on.

    Raises:
        StoreError: gc has taken one between its lookup and now.
    """
    for item in (item for value in inputs.values() for item in as_list(value)):
        if is_collected(store, item.manifest):
            raise StoreError(
                f"{item.stage}/{item.id} was collected by gc after it was found; run again, and it "
                "is built anew"
            )


class _Account:
    """What an attempt takes, from its beginning on."""

    def __init__(self, reason: str, origin: Origin) -> None:
        self.reason, self.origin = reason, origin
        self.started = now()
        self._clock, self._cpu = time.monotonic(), cpu_seconds()

    @property
    def seconds(self) -> float:
        """Wall time until now."""
        return time.monotonic() - self._clock

    @property
    def cpu(self) -> float:
        """CPU time until now."""
        return cpu_seconds() - self._cpu

    def note(self, out: Output[Any]) -> dict[str, Any]:
        """Return what the lock says of the attempt, for the case that nobody else can."""
        return {
            "attempt": out.attempt,
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "devices": out.devices,
            "reason": self.reason,
            "origin": self.origin.model_dump(),
        }

    @contextlib.contextmanager
    def of_failure(
        self, store: Store, stage: str, artifact: str, out: Output[Any]
    ) -> Iterator[None]:
        """Write down what a failing attempt took."""
        try:
            yield
        except BaseException as error:
            # the last handler of SIGTERM turns it into SystemExit
            by_signal = isinstance(error, SystemExit | KeyboardInterrupt)
            account = attempts.Attempt(
                stage=stage,
                id=artifact,
                attempt=out.attempt,
                outcome="killed" if by_signal else "failed",
                error=Redactor(os.environ).text(f"{type(error).__name__}: {error}")[:500],
                started=self.started,
                seconds=round(self.seconds, 3),
                host=socket.gethostname(),
                devices=tuple(out.devices),
                gpu_hours=gpu_hours(out.devices, self.seconds),
                cpu_hours=round(self.cpu / 3600, 6),
                reason=self.reason,
                origin=self.origin,
            )
            with contextlib.suppress(StoreError):  # the error itself counts more than its record
                attempts.record(store, account)
            raise


class _Publisher:
    """Turns a finished Output into a published artifact; called once, by `Output.commit`."""

    def __init__(
        self,
        stage: Stage[Any],
        config: StageConfig,
        inputs: Inputs,
        store: Store,
        runtime: Runtime,
        lock: BuildLock,
        current: tuple[Manifest, str] | None,
        account: _Account,
    ) -> None:
        self._stage, self._config, self._inputs = stage, config, inputs
        self._store, self._runtime, self._lock = store, runtime, lock
        self._current, self._account = current, account
        self.done = False

    def __call__(self, out: Output[Any]) -> Any:
        manifest = self._manifest(out)
        path = manifest_path(self._stage.name, manifest.id)
        self._lock.check()
        if self._current is None:
            etag = self._store.create(path, manifest.dump())
        else:
            attempts.record(self._store, attempts.of_manifest(self._current[0], "replaced"))
            etag = self._store.replace(path, manifest.dump(), self._current[1])
        if etag is None and not self._is_published(out):
            raise LockLost(
                f"{self._store.url(path)} was published by another builder meanwhile; this attempt "
                "publishes nothing"
            )
        self.done = True
        return open_artifact(self._store, manifest, self._runtime.locations)

    def _is_published(self, out: Output[Any]) -> bool:
        """Tell another builder's manifest from ours, written by a try whose answer got lost."""
        entry = read_manifest(self._store, self._stage.name, out.home.rpartition("/")[2])
        return entry is not None and entry[0].attempt == out.attempt

    def _manifest(self, out: Output[Any]) -> Manifest:
        files = [out.files[name] for name in sorted(out.files)]
        content = [(file.name, file.sha256) for file in files if file.digest] + out.pins
        token = out.attempt if self._stage.kind == "statistical" else None
        return Manifest(
            stage=self._stage.name,
            version=self._stage.version,
            kind=self._stage.kind,
            type=self._stage.output_type.__name__,
            id=identify(self._stage, self._config, self._inputs),
            attempt=out.attempt,
            config=self._config.model_dump(mode="json"),
            files=self._config.identity_file_digests(),
            inputs=input_records(self._inputs),
            outputs=files,
            digest=content_digest(content, token),
            metrics=out.metrics,
            inexact=out.inexact_records,
            provenance=provenance(
                self._account.started,
                self._account.seconds,
                devices=out.devices,
                bytes_read=self._bytes_read(),
                reason=self._account.reason,
                origin=self._account.origin,
                cpu=self._account.cpu,
            ),
        )

    def _bytes_read(self) -> int:
        items = [item for value in self._inputs.values() for item in as_list(value)]
        return sum(file.bytes for item in items for file in item.manifest.outputs)
