"""Objects under one root URL, with the two conditional writes that make publishing safe.

Everything else in lmpipe names objects by a path relative to the root; only this module knows
whether the root is a folder or a bucket. Reading and plain writing go through fsspec. Two
operations need more than fsspec offers and are the base of locks and manifests:

    create(path, data)          only if nothing is there     (file: link; S3: If-None-Match)
    replace(path, data, etag)   only if nobody wrote since   (file: rename in flock; S3: If-Match)

S3 endpoint and credentials come from the usual AWS variables and files; none is ever part of a URL.
"""

import contextlib
import errno
import fcntl
import mimetypes
import os
import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

import fsspec
from fsspec.asyn import sync

from lmpipe.errors import ConfigError, StoreError, StoreRefused, StoreUnavailable

# Tries of one S3 request, pauses growing to 20 s: about a minute, so that a restart of the object
# store costs a running build time and nothing else. Botocore's default gives up within 5 s.
S3_ATTEMPTS = 10
DELETES_AT_A_TIME = 16
BUCKET = re.compile(r"[A-Za-z0-9._-]{3,255}")
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
FULL = (errno.ENOSPC, errno.EDQUOT)


def url_options(url: str) -> dict[str, Any]:
    """Return what fsspec is to open a URL with: S3 from outside is asked as patiently as ours."""
    if not url.startswith(("s3://", "s3a://")):
        return {}
    from lmpipe.artifacts.s3 import s3_options

    return s3_options(S3_ATTEMPTS)


def _problem_of(scheme: str, rest: str) -> str:
    """Say why a root is no place for a store, or nothing."""
    if scheme not in ("file", "s3"):
        return f"{scheme}:// has no conditional writes here"
    if scheme == "file" and Path(rest).is_file():
        return "it is a file"
    if not rest.strip("/"):
        return "it names no " + ("folder of its own" if scheme == "file" else "bucket")
    if scheme == "s3" and not BUCKET.fullmatch(bucket := rest.partition("/")[0]):
        return f"{bucket!r} is no name of a bucket"
    if scheme == "file" and re.match("[A-Za-z0-9]+:/", rest):
        return "a URL has two slashes after its colon"
    return ""


class Store:
    """Objects below a root URL, e.g. `file:///data/artifacts` or `s3://bucket/prefix`.

    Args:
        root: an fsspec URL or a local path; a relative path is anchored at the working directory.

    Raises:
        ConfigError: the root is no place, or its scheme has no conditional writes (only file and
            s3 have).
    """

    def __init__(self, root: str) -> None:
        scheme, _, rest = root.partition("://") if "://" in root else ("file", "", root)
        if problem := _problem_of(scheme, rest):
            raise ConfigError(
                f"store.root={root!r}: {problem}; use a folder, file:///… or s3://bucket/prefix"
            )
        is_local = scheme == "file"
        self._base = str(Path(rest).expanduser().absolute()) if is_local else rest.rstrip("/")
        self.root = f"{scheme}://{self._base}"
        self._fs: Any = None
        self._conditional: _Conditional | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_base": self._base, "root": self.root, "_fs": None, "_conditional": None}

    @property
    def is_local(self) -> bool:
        """Whether objects are plain files on this machine."""
        return self.root.startswith("file://")

    @property
    def fs(self) -> Any:
        """The fsspec filesystem, opened on first use and anew in every process."""
        if self._fs is None:
            if self.is_local:
                self._fs = fsspec.filesystem("file")
            else:
                self._fs = fsspec.filesystem("s3", **url_options(self.root))
        return self._fs

    def full(self, path: str) -> str:
        """Return the filesystem's own name of an object."""
        return f"{self._base}/{path}" if path else self._base

    def url(self, path: str) -> str:
        """Return the URL of an object."""
        return f"{self.root}/{path}"

    def link(self, path: str, seconds: int) -> str:
        """Return a URL that a browser can follow; an object in S3 is readable by it for a time.

        Args:
            seconds: how long, at most 7 days; what a file's URL ignores.
        """
        if self.is_local:
            return Path(self.full(path)).as_uri()
        content_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
        signed: str = self.fs.sign(
            self.full(path), expiration=seconds, ResponseContentType=content_type
        )
        return signed

    def open(self, path: str, mode: str = "rb") -> IO[bytes]:
        """Open an object; a reader that finds nothing raises StoreError naming the URL."""
        with self.errors_of(path):
            if "w" in mode and self.is_local:
                Path(self.full(path)).parent.mkdir(parents=True, exist_ok=True)
            try:
                return self.fs.open(self.full(path), mode)  # type: ignore[no-any-return]
            except FileNotFoundError as error:
                raise StoreError(
                    f"{self.url(path)} does not exist; `lmpipe verify` lists what is lost"
                ) from error

    def read(self, path: str) -> bytes | None:
        """Return an object's bytes, or None if there is no such object."""
        with self.errors_of(path):
            try:
                data: bytes = self.fs.cat_file(self.full(path))
            except FileNotFoundError:
                return None
        return data

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of an object."""
        with self.errors_of(path):
            data: bytes = self.fs.cat_file(self.full(path), start=start, end=stop)
        return data

    def size(self, path: str) -> int | None:
        """Return an object's size in bytes, or None if there is no such object."""
        with self.errors_of(path):
            try:
                info = self.fs.info(self.full(path))
            except FileNotFoundError:
                return None
        return int(info["size"]) if info["type"] == "file" else None

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return {path: bytes} of all objects below a prefix: one listing instead of many heads."""
        with self.errors_of(prefix):
            try:
                found = self.fs.find(self.full(prefix), detail=True)
            except FileNotFoundError:
                return {}
        cut = len(self._base) + 1
        return {name[cut:]: int(info["size"]) for name, info in sorted(found.items())}

    def listing(self, prefix: str) -> dict[str, tuple[int, float]]:
        """Return {path: (bytes, POSIX time of the last write)} of all objects below a prefix."""
        with self.errors_of(prefix):
            try:
                found = self.fs.find(self.full(prefix), detail=True)
            except FileNotFoundError:
                return {}
        cut = len(self._base) + 1
        return {
            name[cut:]: (int(info["size"]), _written_at(info))
            for name, info in sorted(found.items())
        }

    def children(self, prefix: str) -> list[str]:
        """Return the last path parts directly below a prefix, sorted."""
        with self.errors_of(prefix):
            try:
                names = self.fs.ls(self.full(prefix), detail=False)
            except FileNotFoundError:
                return []
        return sorted({name.rstrip("/").rsplit("/", 1)[-1] for name in names})

    def delete(self, path: str) -> None:
        """Delete an object if it is there."""
        with self.errors_of(path):
            try:
                self.fs.rm_file(self.full(path))
            except FileNotFoundError:
                return

    def delete_all(self, paths: list[str]) -> None:
        """Delete many objects, many at a time; on a local disk also the folders left empty."""
        with ThreadPoolExecutor(DELETES_AT_A_TIME) as pool:
            list(pool.map(self.delete, paths))
        if self.is_local:
            folders = {p for path in paths for p in PurePosixPath(path).parents if p.name}
            for folder in sorted(folders, key=lambda p: -len(p.parts)):
                with contextlib.suppress(OSError):  # not empty, or being written to
                    Path(self.full(str(folder))).rmdir()

    def upload(self, local: Path, path: str) -> None:
        """Copy a local file into the store."""
        with self.errors_of(path):
            if self.is_local:
                Path(self.full(path)).parent.mkdir(parents=True, exist_ok=True)
            self.fs.put_file(str(local), self.full(path))

    def download(self, path: str, local: Path) -> None:
        """Copy an object to a local file, whole or not at all."""
        local.parent.mkdir(parents=True, exist_ok=True)
        partial = local.with_name(f".{local.name}.{secrets.token_hex(4)}")
        try:
            with self.errors_of(path), names_full_disk(str(local)):
                self.fs.get_file(self.full(path), str(partial))
            partial.replace(local)
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.url(path)} does not exist; `lmpipe verify` lists what is lost"
            ) from error
        finally:
            partial.unlink(missing_ok=True)

    def create(self, path: str, data: bytes) -> str | None:
        """Write an object only if none is there; return its etag, or None if one was."""
        with self.errors_of(path):
            return self._writes().create(self.full(path), data)

    def replace(self, path: str, data: bytes, etag: str) -> str | None:
        """Write an object only if its etag is still `etag`; return the new etag or None."""
        with self.errors_of(path):
            return self._writes().replace(self.full(path), data, etag)

    def read_tagged(self, path: str) -> tuple[bytes, str] | None:
        """Return an object's bytes with the etag they belong to, or None."""
        with self.errors_of(path):
            return self._writes().read_tagged(self.full(path))

    @contextmanager
    def errors_of(self, path: str) -> Iterator[None]:
        """Say a refusal, a silence and a full disk of the store as errors that name the object."""
        try:
            with names_full_disk(self.url(path)):
                yield
        except Exception as error:
            if isinstance(error, StoreError | FileNotFoundError):
                raise  # before botocore is imported, which a local store never needs
            if not self.is_local and _is_silence(error):
                raise StoreUnavailable(
                    f"{self.url(path)}: no answer after {S3_ATTEMPTS} tries ({error}); see whether "
                    "the object store runs, and AWS_ENDPOINT_URL"
                ) from error
            refused = isinstance(error, PermissionError) or (  # that of S3 has no number
                isinstance(error, OSError) and error.errno in REFUSALS
            )
            if not refused and (self.is_local or not _lacks_key(error)):
                raise
            remedy = (
                "file permissions and mount"
                if self.is_local
                else "the AWS credentials and their rights"
            )
            raise StoreRefused(
                f"{self.url(path)}: access refused ({error}); see {remedy}"
            ) from error

    def _writes(self) -> "_Conditional":
        if self._conditional is None:
            self._conditional = _FileWrites() if self.is_local else _S3Writes(self.fs)
        return self._conditional


class _Conditional(Protocol):
    def create(self, full: str, data: bytes) -> str | None: ...
    def replace(self, full: str, data: bytes, etag: str) -> str | None: ...
    def read_tagged(self, full: str) -> tuple[bytes, str] | None: ...


class _FileWrites:
    """Conditional writes on a POSIX filesystem: a reader sees the old or the new file whole."""

    def create(self, full: str, data: bytes) -> str | None:
        with self._written(full, data) as (temporary, target):
            try:
                os.link(temporary, target)  # atomic, and fails if the name is taken
            except FileExistsError:
                return None
            _fsync_folder(target.parent)
            return _file_etag(temporary.stat())

    def replace(self, full: str, data: bytes, etag: str) -> str | None:
        with self._written(full, data) as (temporary, target), _flock(target):
            try:
                if _file_etag(target.stat()) != etag:
                    return None
            except FileNotFoundError:
                return None
            new_etag = _file_etag(temporary.stat())
            temporary.replace(target)
            _fsync_folder(target.parent)
            return new_etag

    def read_tagged(self, full: str) -> tuple[bytes, str] | None:
        try:
            with Path(full).open("rb") as file:
                return file.read(), _file_etag(os.fstat(file.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextmanager
    def _written(self, full: str, data: bytes) -> Iterator[tuple[Path, Path]]:
        """Yield a temporary file that holds `data` on disk for certain, and the target's path."""
        target = Path(full)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
        try:
            with names_full_disk(str(target)):
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())  # a full disk shows here, before the name exists
                yield temporary, target
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def names_full_disk(what: str) -> Iterator[None]:
    """Raise StoreError that says for what there was no space."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise StoreError(
            f"no space left for {what}: nothing was published; free space and run again"
        ) from error


class _S3Writes:
    """Conditional writes by If-None-Match and If-Match (AWS since 2024, SeaweedFS, MinIO)."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def create(self, full: str, data: bytes) -> str | None:
        return self._put(full, data, IfNoneMatch="*")

    def replace(self, full: str, data: bytes, etag: str) -> str | None:
        return self._put(full, data, IfMatch=etag)

    def read_tagged(self, full: str) -> tuple[bytes, str] | None:
        bucket, _, key = full.partition("/")
        from botocore.exceptions import ClientError

        try:
            return _get_tagged(self._fs, bucket, key)
        except FileNotFoundError:
            return None
        except ClientError as error:
            if error.response["Error"]["Code"] in ("404", "NoSuchKey", "NoSuchBucket"):
                return None
            raise

    def _put(self, full: str, data: bytes, **condition: str) -> str | None:
        bucket, _, key = full.partition("/")
        from botocore.exceptions import ClientError

        try:
            answer = self._fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data, **condition)
        except FileNotFoundError as error:
            if "IfMatch" in condition:
                return None  # the object is gone
            raise StoreError(f"s3://{bucket} does not exist; create the bucket first") from error
        except (ClientError, OSError) as error:
            if _is_precondition_failure(error):
                return None
            raise
        return str(answer["ETag"])


def _get_tagged(fs: Any, bucket: str, key: str) -> tuple[bytes, str]:
    """Read body and etag of one S3 object in one request (two could straddle a write)."""

    async def get() -> tuple[bytes, str]:
        answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
        async with answer["Body"] as body:
            return await body.read(), str(answer["ETag"])

    result: tuple[bytes, str] = sync(fs.loop, get)
    return result


def _is_precondition_failure(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if response and response["Error"]["Code"] in (
            "PreconditionFailed",
            "ConditionalRequestConflict",
            "412",
            "409",
        ):
            return True
        cause = cause.__cause__
    return False


def _is_silence(error: BaseException) -> bool:
    """Whether S3 did not answer, or answered that it cannot now (5xx); not what it refused."""
    from botocore.exceptions import ConnectionError, HTTPClientError

    if isinstance(error, ConnectionError | HTTPClientError | TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in (errno.EREMOTEIO, errno.EBUSY)


def _lacks_key(error: BaseException) -> bool:
    from botocore.exceptions import NoCredentialsError, PartialCredentialsError

    return isinstance(error, NoCredentialsError | PartialCredentialsError)


def _written_at(info: dict[str, Any]) -> float:
    """Return when an object was written, by the store's clock."""
    modified = info.get("mtime", info.get("LastModified"))
    return float(modified.timestamp() if isinstance(modified, datetime) else modified or 0.0)


def _file_etag(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _flock(target: Path) -> Iterator[None]:
    """Hold the advisory lock that orders conditional replaces of one file."""
    descriptor = os.open(target.with_name(f".{target.name}.flock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
