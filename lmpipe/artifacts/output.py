"""The attempt being written: what a stage function gets as `out`.

Data go to `<stage>/<id>/attempts/<token>/`, hashed while they are written. Nothing of it counts
until `commit` has put the manifest. A stage that works shard by shard leaves a marker after each
finished shard; the next attempt of the same id adopts those whose objects are still whole, so that
a kill costs the shards in work and no more.
"""

import hashlib
import io
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.artifacts.events import Emitter, Event, Sink
from lmpipe.artifacts.manifest import FileRecord
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.tombstone import covers
from lmpipe.artifacts.types import Artifact
from lmpipe.errors import ConfigError
from lmpipe.runtime import Runtime

if TYPE_CHECKING:
    from lmpipe.artifacts.stage import Kind

A = TypeVar("A", bound=Artifact)
HOW_FAR = "how_far.json"  # beside an attempt's checkpoints: how far it came, and what it took


class HashingFile(io.RawIOBase):
    """A binary file that hashes and counts what is written to it, and reports when closed."""

    def __init__(self, store: Store, path: str, done: Callable[[int, str], None]) -> None:
        self._file = store.open(path, "wb")
        self._errors = partial(store.errors_of, path)
        self._done = done
        self._hash = hashlib.sha256()
        self._count = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with self._errors():
            self._file.write(view)
        self._hash.update(view)
        self._count += len(view)
        return len(view)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._count

    def close(self) -> None:
        """Close the file below and report size and hash; a second call does nothing."""
        if self.closed:
            return
        super().close()
        with self._errors():
            self._file.close()
        self._done(self._count, self._hash.hexdigest())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not self.closed:
            self._done = lambda count, digest: None  # a half-written object is never registered
        self.close()


class _Writer:
    """Named objects under one prefix, with their records: the part Output and shards share."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self.files: dict[str, FileRecord] = {}

    def open(self, name: str, mode: str = "wb", *, digest: bool = True) -> HashingFile:
        """Open an object for writing; it is registered when it is closed.

        Args:
            name: logical POSIX path; used once.
            mode: `wb` only: objects are written whole.
            digest: False for bytes that may differ between equal runs, such as timings.
        """
        if mode != "wb":
            raise ConfigError(f"objects are written whole: mode {mode!r} must be 'wb'")
        if name in self.files or name.startswith("/") or ".." in name.split("/"):
            raise ConfigError(f"object name {name!r} is taken or not a plain relative path")
        path = f"{self._prefix}/{name}"

        def register(count: int, sha256: str) -> None:
            self.files[name] = FileRecord(
                name=name, path=path, bytes=count, sha256=sha256, digest=digest
            )

        return HashingFile(self._store, path, register)

    def write_bytes(self, name: str, data: bytes, *, digest: bool = True) -> None:
        """Write one object whole."""
        with self.open(name, digest=digest) as file:
            file.write(data)

    def write_json(self, name: str, value: Any, *, digest: bool = True) -> None:
        """Write a value as JSON, keys sorted."""
        data = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False).encode()
        self.write_bytes(name, data, digest=digest)

    def put_file(self, name: str, local: Path, *, digest: bool = True) -> None:
        """Copy a local file into the artifact."""
        with local.open("rb") as source, self.open(name, digest=digest) as file:
            shutil.copyfileobj(source, file, 2**22)

    def put_dir(self, prefix: str, local: Path, *, digest: bool = True) -> None:
        """Copy all files below a local folder into the artifact."""
        for path in sorted(p for p in local.rglob("*") if p.is_file()):
            self.put_file(f"{prefix}/{path.relative_to(local).as_posix()}", path, digest=digest)

    def set_rows(self, name: str, rows: int) -> None:
        """Record how many rows an object holds."""
        self.files[name] = self.files[name].model_copy(update={"rows": rows})


class ShardRecord(BaseModel):
    """What a finished shard left behind."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    files: list[FileRecord]
    counts: dict[str, int | float] = Field(default_factory=dict)
    info: dict[str, Any] = Field(default_factory=dict)
    inexact: list[dict[str, str]] = Field(default_factory=list)


class ShardOutput(_Writer):
    """The output of one shard, written in a worker process.

    Attributes:
        counts: numbers that the caller sums over shards.
        info: any other JSON that the caller needs.
    """

    def __init__(self, store: Store, prefix: str, key: str) -> None:
        super().__init__(store, prefix)
        self.key = key
        self.counts: dict[str, int | float] = {}
        self.info: dict[str, Any] = {}
        self._inexact: list[dict[str, str]] = []

    def count(self, name: str, amount: float = 1) -> None:
        """Add to one of the shard's counts."""
        self.counts[name] = self.counts.get(name, 0) + amount

    def inexact(self, record: str, reason: str) -> None:
        """Say that a limit stopped a record, so that another machine might get another result."""
        self._inexact.append({"record": record, "reason": reason})

    def finish(self) -> ShardRecord:
        """Write the marker that makes the shard count."""
        record = ShardRecord(
            key=self.key,
            files=list(self.files.values()),
            counts=self.counts,
            info=self.info,
            inexact=self._inexact,
        )
        marker = f"{self._prefix}/done/{self.key}.json"
        with self._store.open(marker, "wb") as file:
            file.write(record.model_dump_json().encode())
        return record


class Output(_Writer, Emitter, Generic[A]):
    """Where a stage writes and to whom it talks. Made by `build`, one per attempt."""

    def __init__(
        self,
        store: Store,
        home: str,
        kind: "Kind",
        sink: Sink,
        publish: Callable[["Output[A]"], A],
    ) -> None:
        self.attempt = secrets.token_hex(6)
        self.home = home
        _Writer.__init__(self, store, f"{home}/attempts/{self.attempt}")
        Emitter.__init__(self, sink)
        self.kind = kind
        self.metrics: dict[str, Any] = {}
        self.inexact_records: list[dict[str, str]] = []
        self.pins: list[tuple[str, str]] = []
        self.devices: list[str] = []
        self._superseded = ""
        self.collected: tuple[str, ...] = ()
        self._publish = publish
        self._done, self._started = "", time.monotonic()

    def progress(self, done: float, total: float, unit: str = "documents", label: str = "") -> None:
        """Tell how far the stage is; see Emitter."""
        self._done = f"{done:g} of {total:g} {unit}"
        super().progress(done, total, unit, label)

    def emit(self, event: Event) -> None:
        """Pass an event on that another process made."""
        if event["type"] == "progress":
            self._done = f"{event['done']:g} of {event['total']:g} {event['unit']}"
        super().emit(event)

    @property
    def store(self) -> Store:
        """The store that the attempt is written to."""
        return self._store

    def metric(self, name: str, value: Any) -> None:
        """Record a number (or small JSON) in the manifest."""
        self.metrics[name] = value

    def inexact(self, record: str, reason: str) -> None:
        """Say that a limit stopped a record, so that another machine might get another result."""
        self.inexact_records.append({"record": record, "reason": reason})

    def pin(self, name: str, sha256: str) -> None:
        """Let bytes outside the store count for the content digest."""
        self.pins.append((name, sha256))

    def supersede(self, attempt: str) -> None:
        """Make everything anew that the published `attempt` holds, as a forced build does.

        Shards are then adopted only from attempts that were to replace the same one and were
        killed: they carry this mark too.
        """
        self._superseded = attempt
        with self._store.open(f"{self._prefix}/over/{attempt}", "wb"):
            pass

    @property
    def stage_name(self) -> str:
        """The name of the stage that writes here."""
        return self.home.partition("/")[0]

    def temporary(self, name: str, data: bytes) -> str:
        """Write bytes for workers of this attempt to read by the returned path.

        They are no part of the artifact, and go with the attempt's other leavings.
        """
        self.write_bytes(name, data)
        return self.take(name)

    def take(self, name: str) -> str:
        """Drop from the artifact a file that a shard wrote for others to read; return its path."""
        return self.files.pop(name).path

    def use_devices(self, names: list[str]) -> None:
        """Record the devices that did the work (`cuda:0 …`), for GPU-hours."""
        self.devices = names

    @contextmanager
    def scratch(self, runtime: Runtime | None = None) -> Iterator[Path]:
        """Yield a local folder that is deleted afterwards."""
        parent = runtime.scratch_folder() if runtime else None
        with tempfile.TemporaryDirectory(prefix="lmpipe-", dir=parent) as folder:
            yield Path(folder)

    def marker(self, key: str) -> str:
        """Return the path of a shard's marker in this attempt."""
        return f"{self._prefix}/done/{key}.json"

    def shard(self, key: str) -> ShardOutput:
        """Return the output of one shard of this attempt."""
        return ShardOutput(self._store, self._prefix, key)

    def register(self, record: ShardRecord) -> None:
        """Make what a finished shard wrote part of this attempt."""
        self.inexact_records.extend(record.inexact)
        for file in record.files:
            self.files[file.name] = file

    @property
    def prefix(self) -> str:
        """The folder of the attempt below the store's root."""
        return self._prefix

    def finished_shards(self, keys: list[str]) -> dict[str, ShardRecord]:
        """Return shards of earlier attempts of this id whose objects are all there."""
        if self.kind != "exact":
            return {}
        wanted = set(keys)
        sizes = self._usable_sizes()
        finished: dict[str, ShardRecord] = {}
        for path in sizes:
            folder, _, name = path.rpartition("/")
            if not folder.endswith("/done") or name.removesuffix(".json") not in wanted:
                continue
            data = self._store.read(path)
            try:
                record = ShardRecord.model_validate_json(data or b"")
            except ValueError:
                continue  # a marker cut short by a full disk counts as no marker
            if all(sizes.get(file.path) == file.bytes for file in record.files):
                finished[record.key] = record
        return finished

    def _usable_sizes(self) -> dict[str, int]:
        """Return the objects of earlier attempts that this one may go on from.

        None of what gc has collected, and in a forced build only those of attempts that were to
        replace the same one and were killed.
        """
        sizes = self._store.sizes(f"{self.home}/attempts")
        if self._superseded:
            mark = f"/over/{self._superseded}"
            forced = tuple(path.removesuffix(mark) + "/" for path in sizes if path.endswith(mark))
            sizes = {path: size for path, size in sizes.items() if path.startswith(forced)}
        gone = self.collected
        return {p: size for p, size in sizes.items() if not covers(gone, self.home, p)}

    def save_checkpoint(self, step: int, local: Path, keep: int = 2) -> None:
        """Store a folder as this attempt's checkpoint of a step, its marker last.

        Args:
            step: orders checkpoints.
            local: the folder with the files.
            keep: older checkpoints beyond this many are deleted after the new one is whole.
        """
        folder = f"{self._prefix}/checkpoints/{step:09d}"
        files = sorted(p for p in local.rglob("*") if p.is_file())
        sizes = {}
        for path in files:
            name = path.relative_to(local).as_posix()
            self._store.upload(path, f"{folder}/{name}")
            sizes[name] = path.stat().st_size
        with self._store.open(f"{folder}/COMPLETE.json", "wb") as file:
            file.write(json.dumps(sizes).encode())
        with self._store.open(f"{self._prefix}/{HOW_FAR}", "wb") as file:  # for people, see gc
            seconds = time.monotonic() - self._started
            file.write(
                json.dumps(
                    {"done": self._done, "seconds": seconds, "devices": self.devices}
                ).encode()
            )
        steps = self._store.children(f"{self._prefix}/checkpoints")
        for old in steps[: -keep or None]:
            for stored in self._store.sizes(f"{self._prefix}/checkpoints/{old}"):
                self._store.delete(stored)

    @contextmanager
    def previous_checkpoint(self, runtime: Runtime | None = None) -> Iterator[Path | None]:
        """Yield a local copy of the newest whole checkpoint of this id's attempts, or None.

        Incomplete ones (no marker, or an object of another size) are passed over, so a kill in the
        middle of an upload costs one interval and not the run.
        """
        newest: tuple[str, str, dict[str, int]] | None = None
        sizes = self._usable_sizes()
        for path in sizes:
            if not path.endswith("/COMPLETE.json"):
                continue
            folder = path.removesuffix("/COMPLETE.json")
            try:
                files: dict[str, int] = json.loads(self._store.read(path) or b"")
            except ValueError:
                continue
            whole = all(sizes.get(f"{folder}/{name}") == size for name, size in files.items())
            step = folder.rsplit("/", 1)[-1]
            if whole and (newest is None or step > newest[0]):
                newest = (step, folder, files)
        if newest is None:
            yield None
            return
        with self.scratch(runtime) as local:
            for name in newest[2]:
                self._store.download(f"{newest[1]}/{name}", local / name)
            yield local

    def commit(self) -> A:
        """Publish the manifest and return the artifact. Nothing can be added afterwards."""
        return self._publish(self)
