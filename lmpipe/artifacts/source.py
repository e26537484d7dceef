"""What comes from outside, pinned: the only stage that knows of paths.

A recipe says where files lie. `pin` looks at them once and turns each into a name, a size and a
sha256 (for a remote object that cannot be hashed cheaply: its version or etag). Those are the
stage's config and thus identity; the places are Runtime. Move the files, and nothing below is
rebuilt; change one byte, and everything that read it is.
"""

import glob
import hashlib
import importlib.util
import json
import os
import zlib
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import fsspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import url_options
from lmpipe.artifacts.types import Source
from lmpipe.errors import ConfigError, InputError
from lmpipe.runtime import Runtime
from lmpipe.runtime.redaction import URL_WITH_PASSWORD, without_password


class PinnedFile(BaseModel):
    """One file: its name within the source, and which bytes it must have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="File name, unique within the source.")
    bytes: int = Field(ge=0, description="Size in bytes.")
    sha256: str = Field(description="Hash of the bytes, or `version:…` of a remote object.")


class SourceConfig(StageConfig):
    """A named set of pinned files."""

    name: str = Field(description="The source's name: enters the ids of its documents.")
    files: tuple[PinnedFile, ...] = Field(description="The pinned files, by name.")


# The pattern is for forms, so that a server refuses a password before it keeps it.
PathOrUrl = Annotated[
    str,
    AfterValidator(without_password),
    WithJsonSchema({"type": "string", "pattern": rf"^(?!{URL_WITH_PASSWORD[1:]})"}),
]


class SourceSpec(BaseModel):
    """Where a recipe finds the files of a source. Never identity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: tuple[PathOrUrl, ...] = Field(
        min_length=1,
        description="Files, globs or fsspec URLs; relative ones are relative to the recipe; "
        "package://NAME/FILE is a file of an installed Python package; @FILE is a list of such "
        "paths (plain or .gz), one a line, the relative ones relative to the list.",
    )
    copy_files: bool = Field(
        False, description="Copy the files into the store, for workers that cannot see the paths."
    )


class PinnedSource(BaseModel):
    """A source ready to be built: identity and place apart.

    `recalled` says why the files were taken from a record in place of a look at them, and `absent`
    why their bytes cannot be read either; empty: they were looked at.
    """

    model_config = ConfigDict(frozen=True)

    config: SourceConfig
    locations: dict[str, str]
    copy_files: bool
    absent: str = ""
    recalled: str = ""


def pin(name: str, spec: SourceSpec, base: Path) -> PinnedSource:
    """Find a source's files and pin their bytes.

    Args:
        name: the source's name.
        spec: where the files lie.
        base: what relative paths are relative to.

    Raises:
        InputError: a path matches nothing, or two files have the same name.
    """
    locations: dict[str, str] = {}
    for pattern in spec.paths:
        for place in _listed(pattern, base, name):
            file = PurePosixPath(place).name
            if locations.setdefault(file, place) != place:
                raise InputError(
                    f"source {name!r}: {locations[file]} and {place} have the same name {file!r}; "
                    "rename one, since names bear identity and folders do not"
                )
    files = tuple(_pin_file(file, locations[file]) for file in sorted(locations))
    return PinnedSource(
        config=SourceConfig(name=name, files=files), locations=locations, copy_files=spec.copy_files
    )


@stage(version=1, kind="exact")
def source(out: Output[Source], config: SourceConfig, *, runtime: Runtime) -> Source:
    """Pin files from outside; with `copy_sources` their bytes go into the store as well."""
    locations = dict(runtime.locations)
    for index, file in enumerate(config.files):
        out.pin(file.name, file.sha256)
        if runtime.copy_sources:
            _copy(out, config.name, file, locations[file.name])
            locations[file.name] = out.store.url(out.files[file.name].path)
        out.progress(index + 1, len(config.files), unit="files")
    out.metric("locations", locations)
    out.metric("bytes", sum(file.bytes for file in config.files))
    out.metric("files", len(config.files))
    return out.commit()


def _copy(out: Output[Source], name: str, file: PinnedFile, place: str) -> None:
    opened = fsspec.open(place, "rb", **url_options(place))
    with opened as original, out.open(file.name, digest=False) as copy:
        while block := original.read(2**22):
            copy.write(block)
    written = out.files[file.name]
    if not file.sha256.startswith("version:") and written.sha256 != file.sha256:
        raise InputError(
            f"source {name!r}: {place} changed while it was read (sha256 {written.sha256[:12]}…, "
            f"pinned {file.sha256[:12]}…); run again when it is at rest"
        )


def _listed(pattern: str, base: Path, name: str) -> list[str]:
    """Return the files of one path, or of all paths in the lists that it names."""
    if not pattern.startswith("@"):
        return _expand(pattern, base, name)
    lists = _expand(pattern[1:], base, name)
    return [file for place in lists for file in _read_list(place, name)]


def _read_list(place: str, name: str) -> list[str]:
    options = {"compression": "infer", "encoding": "utf-8-sig", **url_options(place)}
    try:
        with fsspec.open(place, "rt", **options) as file:
            lines = [line.strip() for line in file]
    except (EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(
            f"source {name!r}: the list {place} is no whole UTF-8 text of one path a line: {error}"
        ) from error
    folder, _, _ = place.rpartition("/")
    found: list[str] = []
    for line in lines:
        if line and not line.startswith("#"):
            is_relative = "://" not in line and "://" in folder
            found += _expand(f"{folder}/{line}" if is_relative else line, Path(folder), name)
    if not found:
        raise InputError(f"source {name!r}: the list {place} names no file")
    return found


def _expand(pattern: str, base: Path, name: str) -> list[str]:
    if pattern.startswith("package://"):
        package, _, inner = pattern.removeprefix("package://").partition("/")
        spec = importlib.util.find_spec(package)  # finds without importing: some take seconds
        if spec is None or not spec.submodule_search_locations:
            raise InputError(f"source {name!r}: no Python package {package!r} for {pattern}")
        places = _glob(Path(spec.submodule_search_locations[0]), inner)
    elif "://" in pattern:
        fs, path = fsspec.core.url_to_fs(pattern, **url_options(pattern))
        protocol = pattern.partition("://")[0]
        places = [f"{protocol}://{p}" for p in sorted(fs.glob(path))] if "*" in path else [pattern]
    else:
        places = _glob(base, pattern)
    if not places:
        raise InputError(f"source {name!r}: {pattern} matches no file (relative to {base})")
    return places


def _glob(base: Path, pattern: str) -> list[str]:
    """Return the files that match a pattern; an absolute pattern ignores the base.

    What exists under its very name is itself: `[2024] crawl.jsonl` is no class of letters then.
    """
    parts = (base / Path(pattern).expanduser()).parts
    literal = Path(parts[0])
    num_literal = 1
    while num_literal < len(parts) and os.path.lexists(literal / parts[num_literal]):
        literal /= parts[num_literal]
        num_literal += 1
    whole = str(Path(glob.escape(str(literal)), *parts[num_literal:]))
    found = glob.glob(whole, recursive=True)  # noqa: PTH207 absolute ones too
    return sorted(place for place in found if Path(place).is_file())


def _pin_file(name: str, place: str) -> PinnedFile:
    if "://" not in place:
        path = Path(place)
        status = path.stat()
        try:
            sha256 = _cached_sha256(path, status)
        except OSError as error:
            raise InputError(f"{place} cannot be read: {error}; see its permissions") from error
        return PinnedFile(name=name, bytes=status.st_size, sha256=sha256)

    fs, path_ = fsspec.core.url_to_fs(place, **url_options(place))
    try:
        info: dict[str, Any] = fs.info(path_)
    except OSError as error:
        raise InputError(
            f"{place} is not there or not for us: {error}; see its spelling and your credentials"
        ) from error
    mark = info.get("VersionId") or info.get("ETag") or info.get("etag")
    if not mark or info.get("size") is None:
        raise ConfigError(
            f"{place} has neither a version nor an etag to pin; download it and name the local file"
        )
    return PinnedFile(name=name, bytes=int(info["size"]), sha256=f"version:{mark}")


def _cached_sha256(path: Path, status: os.stat_result) -> str:
    """Hash a file, or recall its hash while size, inode and change times are the same."""
    stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    key = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:32]
    caches = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    cache = Path(caches) / "lmpipe" / "pins" / key
    try:
        known = json.loads(cache.read_bytes())
        if known["stamp"] == stamp:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError):
        pass
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        temporary = cache.with_name(f"{cache.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"stamp": stamp, "sha256": digest}))
        temporary.replace(cache)
    except OSError:
        pass  # a cache that cannot be written costs time and nothing else
    return digest
