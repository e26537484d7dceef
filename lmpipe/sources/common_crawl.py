"""Download WARC files of a Common Crawl snapshot, so that an interrupted download goes on.

A snapshot lists its files in `warc.paths.gz`: 90,000 lines or so, one file of about 1 GB each.
Which of them are taken is a function of seed and snapshot alone: the list is ordered by a hash of
seed and path, so that a larger `num_files` takes the same files and some more.

A file is written to `NAME.part` and gets its name only when it is whole: it has the length that the
server announced, and every gzip member decompresses. Members alone would not do: a WARC file has
one for each record, so a file cut between two records is a valid file with fewer. Lost connections,
short bodies and answers like 503 are tried again with growing pauses, from the byte that was
reached, if the server says that the object is still the same (`If-Range` with its ETag).
"""

import gzip
import hashlib
import http.client
import random
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lmpipe.errors import ConfigError, InputError

BASE_URL = "https://data.commoncrawl.org"
BLOCK_BYTES = 1 << 18
RETRIED_STATUS = (403, 408, 425, 429, 500, 502, 503, 504)  # 403: how its front end says "slow down"

Progress = Callable[[str, int, int], None]
"""Told a file's name, its bytes so far, and its length (0 if unknown)."""


@dataclass(frozen=True)
class Patience:
    """How often and how slowly a request is repeated.

    Attributes:
        attempts: tries in a row without a single new byte before giving up.
        first_pause_seconds: pause after the first failure; it doubles with each further one.
        longest_pause_seconds: bound of the pause.
        timeout_seconds: how long a connection may stay silent.
    """

    attempts: int = 8
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 120.0
    timeout_seconds: float = 60.0

    def pause(self, failures: int) -> float:
        """Return the pause after so many failures in a row, spread so that workers do not meet."""
        longest = min(self.longest_pause_seconds, self.first_pause_seconds * 2 ** (failures - 1))
        return float(longest * random.uniform(0.5, 1.0))


def download(
    snapshot: str,
    num_files: int,
    to: Path,
    *,
    base_url: str = BASE_URL,
    seed: int = 0,
    progress: Progress | None = None,
    patience: Patience | None = None,
) -> list[Path]:
    """Download some WARC files of a snapshot and return their paths; whole ones are kept.

    Args:
        snapshot: such as `CC-MAIN-2024-10`.
        num_files: how many files; the same seed takes the same ones first.
        to: folder, made if need be.
        base_url: where the crawl lies, `https://` or `http://`.
        seed: chooses among the snapshot's files.

    Raises:
        ConfigError: an argument is out of range.
        InputError: the server has no such snapshot, or a file could not be had whole.
    """
    if num_files < 1:
        raise ConfigError(f"num_files={num_files} must be at least 1")
    if not base_url.startswith(("https://", "http://")):
        raise ConfigError(f"base_url={base_url!r} must begin with https:// or http://")
    patience = patience or Patience()
    tell = progress or (lambda name, done, total: None)
    to.mkdir(parents=True, exist_ok=True)
    chosen = choose(list_paths(snapshot, to, base_url, patience), num_files, seed, snapshot)
    files = []
    for path in chosen:
        target = to / path.rsplit("/", 1)[-1]
        if not target.exists():
            fetch(f"{base_url.rstrip('/')}/{path}", target, patience, tell)
        files.append(target)
    return files


def list_paths(snapshot: str, to: Path, base_url: str, patience: Patience) -> list[str]:
    """Return the paths of a snapshot's WARC files; the list is kept beside them."""
    listing = to / f"{snapshot}.warc.paths.gz"
    url = f"{base_url.rstrip('/')}/crawl-data/{snapshot}/warc.paths.gz"
    if not listing.exists():
        fetch(url, listing, patience, lambda name, done, total: None)
    paths = gzip.decompress(listing.read_bytes()).decode().split()
    if not paths or any(".." in path.split("/") for path in paths):
        raise InputError(f"{url} lists no usable paths; delete {listing} and look at the URL")
    return paths


def choose(paths: list[str], num_files: int, seed: int, snapshot: str) -> list[str]:
    """Choose files by a hash of seed and path: a larger number takes the same ones and more."""
    if num_files > len(paths):
        raise ConfigError(f"num_files={num_files} must be at most {len(paths)} in {snapshot}")

    def order(path: str) -> bytes:
        return hashlib.sha256(f"{seed}:{path}".encode()).digest()

    return sorted(paths, key=order)[:num_files]


def fetch(url: str, target: Path, patience: Patience, progress: Progress) -> None:
    """Download one gzip file to its place, going on from `target.part` if there is one.

    Raises:
        InputError: it is not there, or not whole after all attempts.
    """
    part = target.with_name(target.name + ".part")
    stamp = target.with_name(target.name + ".etag")
    failures, damaged = 0, False
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _receive(url, part, stamp, patience, progress)
            _check_gzip(part, url)
            break
        except (urllib.error.URLError, http.client.HTTPException, OSError, InputError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code not in RETRIED_STATUS:
                raise InputError(f"{url} answered {error.code} {error.reason}") from error
            if isinstance(error, InputError):
                if damaged:
                    raise
                damaged = True
                part.unlink()  # from its beginning, once: the server may have sent an error page
            gained = part.exists() and part.stat().st_size > before
            failures = 1 if gained else failures + 1
            if failures >= patience.attempts:
                raise InputError(
                    f"{url}: {failures} attempts in a row got nothing more ({error}); run the same "
                    f"command again to go on from byte {before}"
                ) from error
            time.sleep(patience.pause(failures))
    part.replace(target)
    stamp.unlink(missing_ok=True)


def _receive(url: str, part: Path, stamp: Path, patience: Patience, progress: Progress) -> None:
    """Append what is missing to the partial file; return only when it has its full length."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "lmpipe"}
    if start and stamp.exists():
        headers |= {"Range": f"bytes={start}-", "If-Range": stamp.read_text(encoding="utf-8")}
    request = urllib.request.Request(url, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=patience.timeout_seconds)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is left after `start`: whole, or longer than the object
            size = error.headers.get("Content-Range", "").rpartition("/")[2]
            if size == str(start):
                return
            part.unlink()
            raise OSError(f"{part} is longer than the object; beginning again") from error
        raise
    with answer:
        if answer.status != 206:
            start = 0  # the server has another object now, or knows no ranges
        _note_etag(answer, stamp)
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else 0
        is_delimited = bool(length) or answer.chunked
        with part.open("ab" if start else "wb") as file:
            _copy(answer, file, lambda done: progress(part.stem, start + done, total))
        reached = part.stat().st_size
        if reached < total or not is_delimited:
            raise OSError(f"body ended at byte {reached} of {total or 'an unknown length'}")


def _note_etag(answer: http.client.HTTPResponse, stamp: Path) -> None:
    etag = answer.headers.get("ETag")
    if etag and not etag.startswith("W/"):  # a weak one does not promise equal bytes
        stamp.write_text(etag, encoding="utf-8")
    else:
        stamp.unlink(missing_ok=True)


def _copy(source: http.client.HTTPResponse, file: IO[bytes], tell: Callable[[int], None]) -> None:
    done = 0
    while block := source.read1(BLOCK_BYTES):
        file.write(block)
        done += len(block)
        tell(done)


def _check_gzip(path: Path, url: str) -> None:
    """Require that every gzip member decompresses to its end and its checksum."""
    members, is_inside, inflate = 0, False, zlib.decompressobj(31)
    with path.open("rb") as file:
        while data := file.read(BLOCK_BYTES):
            while data:
                try:
                    inflate.decompress(data)
                except zlib.error as error:
                    raise InputError(f"{url}: gzip member {members} is damaged: {error}") from error
                is_inside, data = not inflate.eof, inflate.unused_data
                if inflate.eof:
                    members, inflate = members + 1, zlib.decompressobj(31)
    if members == 0 or is_inside:
        raise InputError(f"{url}: ends within gzip member {members}")
