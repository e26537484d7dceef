"""Artifacts as readers see them: a manifest and the objects it names, and a type for each kind.

The types carry no logic of their fields' packages (reading Parquet lies in `documents`, token
arrays in `tokenization`); they exist so that a stage's signature says what it takes and gives, and
so that a wrong wiring fails before anything runs.
"""

import hashlib
import json
import secrets
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import fsspec

from lmpipe.artifacts import local_copies
from lmpipe.artifacts.manifest import FileRecord, Manifest
from lmpipe.artifacts.store import Store, url_options
from lmpipe.errors import StoreError


class Artifact:
    """A published artifact: immutable, found by (stage, id), its content named by `digest`."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.store = store
        self.manifest = manifest
        self._records = {record.name: record for record in manifest.outputs}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stage}/{self.id})"

    @property
    def stage(self) -> str:
        """Name of the stage that made it."""
        return self.manifest.stage

    @property
    def id(self) -> str:
        """Identity known before the stage ran."""
        return self.manifest.id

    @property
    def digest(self) -> str:
        """Hash of the content: what enters the ids of consumers."""
        return self.manifest.digest

    @property
    def metrics(self) -> dict[str, Any]:
        """Numbers that the stage reported."""
        return self.manifest.metrics

    def names(self, prefix: str = "") -> list[str]:
        """Return the logical names of its objects below a prefix, sorted."""
        return sorted(name for name in self._records if name.startswith(prefix))

    def record(self, name: str) -> FileRecord:
        """Return size, hash and place of one object."""
        if name not in self._records:
            raise StoreError(f"{self!r} holds no {name!r}; it holds {', '.join(self.names()[:12])}")
        return self._records[name]

    def url(self, name: str) -> str:
        """Return the URL of one object."""
        return self.store.url(self.record(name).path)

    def link(self, name: str, seconds: int) -> str:
        """Return a URL of one object that a browser can follow for a time."""
        return self.store.link(self.record(name).path, seconds)

    @property
    def remedy(self) -> str:
        """What to do about an object that is not what was written."""
        return (
            f"`lmpipe verify {self.stage}/{self.id} --store {self.store.root}` lists what is "
            f"damaged; build it again (lmpipe run … --force {self.stage})"
        )

    def open(self, name: str) -> IO[bytes]:
        """Open one object for reading.

        What cannot be decoded in a `with` block of the file raises StoreError naming the object.
        """
        opened = _Opened(self.store.open(self.record(name).path), f"{self!r} {name}", self.remedy)
        return cast(IO[bytes], opened)

    def read_bytes(self, name: str) -> bytes:
        """Return one object whole."""
        with self.open(name) as file:
            return file.read()

    def read_json(self, name: str) -> Any:
        """Return one JSON object, parsed."""
        with self.open(name) as file:
            return json.loads(file.read())

    def local(self, name: str) -> Path:
        """Return a local path with one object's bytes; a remote object is downloaded once."""
        record = self.record(name)
        if self.store.is_local:
            return Path(self.store.full(record.path))
        target = self.copies_folder() / name
        if not target.exists() or target.stat().st_size != record.bytes:
            local_copies.with_room(lambda: self.store.download(record.path, target))
        return target

    def local_dir(self, prefix: str = "") -> Path:
        """Return a local folder that holds all objects below a prefix under their logical names."""
        names = self.names(prefix)
        target = self.copies_folder()
        for name in names:
            if self.store.is_local:
                _point(target / name, Path(self.store.full(self.record(name).path)))
            else:
                self.local(name)
        return target / prefix if prefix else target

    def missing(self) -> list[str]:
        """Return the names of objects that are gone or have another size than the manifest says."""
        outside = [r for r in self.manifest.outputs if not _below(self.stage, self.id, r.path)]
        sizes = self.store.sizes(f"{self.stage}/{self.id}")
        for record in outside:
            size = self.store.size(record.path)
            if size is not None:
                sizes[record.path] = size
        return [r.name for r in self.manifest.outputs if sizes.get(r.path) != r.bytes]

    def corrupt(self) -> list[str]:
        """Re-hash every object; return the names whose bytes are not what the manifest says."""
        wrong = set(self.missing())
        for record in self.manifest.outputs:
            if record.name not in wrong and _sha256(self.open(record.name)) != record.sha256:
                wrong.add(record.name)
        return sorted(wrong)

    def copies_folder(self) -> Path:
        """Return a folder of this host for copies of its objects."""
        return local_copies.folder(self.store.root, self.stage, self.manifest.attempt)


class Documents(Artifact):
    """Documents as Parquet (`kept/`) and the ledger of what was removed (`removed/`)."""


class Model(Artifact):
    """A small classical model, such as a fastText classifier."""


class Tokenizer(Artifact):
    """A byte-level BPE tokenizer as tokenizer.json and tiktoken ranks."""


class TokenShards(Artifact):
    """Token ids as flat arrays with an index from token to document."""


class Measures(Artifact):
    """Measurements of other artifacts, for the report."""


class Checkpoint(Artifact):
    """Model weights in the Hugging Face layout, and the training state beside them."""


class Scores(Artifact):
    """Benchmark results with standard errors and the samples behind them."""


class ScalingFit(Artifact):
    """Points of a scaling sweep, the fitted law and its predictions."""


class Report(Artifact):
    """One self-contained page about a run, and its Markdown twin."""


class Source(Artifact):
    """Files from outside, pinned by name, size and sha256; their bytes may lie outside the
    store."""

    def __init__(
        self, store: Store, manifest: Manifest, locations: dict[str, str] | None = None
    ) -> None:
        super().__init__(store, manifest)
        self._files = {f["name"]: f for f in manifest.config["files"]}
        copied = {r.name: store.url(r.path) for r in manifest.outputs}
        self._locations: dict[str, str] = {
            **manifest.metrics["locations"],
            **(locations or {}),
            **copied,
        }

    @property
    def name(self) -> str:
        """The source's name: the first half of every document id that comes from it."""
        return str(self.manifest.config["name"])

    @property
    def locations(self) -> dict[str, str]:
        """Where each file lies now: a local path or an fsspec URL."""
        return self._locations

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of the pinned files below a prefix, sorted."""
        return sorted(name for name in self._files if name.startswith(prefix))

    def url(self, name: str) -> str:
        """Return the place of one pinned file."""
        if name not in self._locations:
            raise StoreError(f"{self!r} pins no {name!r}; it pins {', '.join(self.names()[:12])}")
        return self._locations[name]

    def open(self, name: str) -> IO[bytes]:
        """Open one pinned file."""
        url = self.url(name)
        return fsspec.open(url, "rb", **url_options(url)).open()  # type: ignore[no-any-return]

    def local(self, name: str) -> Path:
        """Return a local path with one pinned file's bytes."""
        url = self.url(name)
        if "://" not in url or url.startswith("file://"):
            return Path(url.removeprefix("file://"))
        target = self.copies_folder() / name
        if not target.exists() or target.stat().st_size != self._files[name]["bytes"]:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = _beside(target)
            try:
                local_copies.with_room(lambda: self._fetch(name, partial))
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)
        return target

    def _fetch(self, name: str, target: Path) -> None:
        with self.open(name) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, 2**20)

    def local_dir(self, prefix: str = "") -> Path:
        """Return a local folder with the pinned files under their names."""
        folder = self.copies_folder()
        for name in self.names(prefix):
            path = self.local(name)
            if path != folder / name:
                _point(folder / name, path.absolute())
        return folder / prefix if prefix else folder


_CLASSES: dict[str, type[Artifact]] = {
    kind.__name__: kind
    for kind in (
        *(Documents, Model, Tokenizer, TokenShards, Measures, Checkpoint, Scores, ScalingFit),
        *(Report, Source),
    )
}


def open_artifact(
    store: Store, manifest: Manifest, locations: dict[str, str] | None = None
) -> Artifact:
    """Return the artifact of a manifest, of the class that its stage declared.

    Args:
        locations: where a source's files lie now; empty or None: where they lay when pinned.

    Raises:
        StoreError: the manifest names a class that this lmpipe does not have.
    """
    kind = _CLASSES.get(manifest.type)
    if kind is None:
        raise StoreError(
            f"{manifest.stage}/{manifest.id} is a {manifest.type}, unknown here; upgrade lmpipe"
        )
    return Source(store, manifest, locations) if kind is Source else kind(store, manifest)


class _Opened:
    """An open object whose `with` block turns the errors of decoders into one that names it.

    Parquet, JSON and gzip readers know neither artifact nor object. All of them read from here, so
    that no stage needs a word of its own.
    """

    def __init__(self, file: IO[bytes], place: str, remedy: str) -> None:
        self._file, self._place, self._remedy = file, place, remedy

    def __enter__(self) -> IO[bytes]:
        return self._file.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, trace)
        if error is not None and _is_of_a_decoder(error):
            raise StoreError(
                f"{self._place} cannot be read ({str(error)[:200]}): it is damaged; {self._remedy}"
            ) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._file)


def _is_of_a_decoder(error: BaseException) -> bool:
    """Whether bytes could not be decoded; pyarrow says so by OSErrors without a number, too."""
    if isinstance(error, OSError):
        return error.errno is None
    is_arrow = type(error).__module__.startswith("pyarrow")
    return is_arrow or isinstance(error, json.JSONDecodeError | UnicodeDecodeError | zlib.error)


def _beside(path: Path) -> Path:
    """Name a file that becomes `path` once it is whole; several processes may be making it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}")


def _point(link: Path, target: Path) -> None:
    """Have a link that others may be making or reading: it is there at every moment, or not yet."""
    if link.is_symlink() and link.readlink() == target:
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    made = _beside(link)
    made.symlink_to(target)
    made.replace(link)


def _below(stage: str, artifact_id: str, path: str) -> bool:
    return path.startswith(f"{stage}/{artifact_id}/")


def _sha256(file: IO[bytes]) -> str:
    with file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
