"""import_documents: Parquet, JSONL and plain text → documents, for corpora that are text already.

One file is one shard. A row that cannot be used goes to the ledger with the file and row it came
from; a file that breaks off gives the rows before the break.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Documents, Source
from lmpipe.curation.extraction.config import ImportDocumentsConfig
from lmpipe.documents.ledger import removal
from lmpipe.documents.schema import document_id
from lmpipe.documents.stage import DocumentPart, make_documents
from lmpipe.documents.text_files import as_utf8, parse_json, utf8_lines
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

_PACKED_BYTES = 1 << 12  # may hold 128 MB: four bytes of zstd repeat one 131,072 times
_MAX_WINDOW_BYTES = 1 << 27  # zstd's own bound, on the memory that a file may ask for
_HEAD_BYTES = 18  # the longest header of a frame
SUFFIXES = (".parquet", ".jsonl", ".json", ".txt", ".md")


@stage(version=5, kind="exact")
def import_documents(
    out: Output[Documents], config: ImportDocumentsConfig, source: Source, *, runtime: Runtime
) -> Documents:
    """Import a source's Parquet, JSONL(.gz, .zst) and text files.

    Raises:
        InputError: a file of another kind, or no row with text.
    """
    names = source.names()
    if strange := [name for name in names if not _plain_name(name).endswith(SUFFIXES)]:
        raise InputError(
            f"cannot import {strange[:5]}; known are {', '.join(SUFFIXES)}, .gz and .zst"
        )
    by_key = {f"{number:05d}": name for number, name in enumerate(names)}
    work = partial(_import_file, source=source, names=by_key, config=config)
    mapped = make_documents(out, list(by_key), work, runtime)
    unreadable = [message for record in mapped.records for message in record.info["unreadable"]]
    for message in unreadable:
        out.log(message, level="warning")
    out.metric("unreadable", unreadable)
    mapped.report_reasons()
    if mapped.num_kept == 0:
        raise InputError(
            f"import_documents kept none of {mapped.num_input} rows of source {source.name!r}: "
            f"{dict(mapped.reasons)}. "
            + (unreadable[0] if unreadable else f"Is text_field={config.text_field!r} right?")
        )
    return mapped.finish()


def _import_file(
    part: DocumentPart, *, source: Source, names: dict[str, str], config: ImportDocumentsConfig
) -> None:
    from lmpipe.curation.crawl.warc import host_of
    from lmpipe.curation.extraction.extractors import clean_text

    name, seen = names[part.key], set[str]()
    unreadable: list[str] = []
    for number, row in enumerate(_rows(source.local(name), _plain_name(name), config)):
        if isinstance(row, _Break):
            unreadable.append(f"{name} cannot be read after row {number}: {row.why}")
        reason, row = (row, {}) if isinstance(row, str) else (None, row)
        text = row.get(config.text_field)
        label = row.get(config.id_field) if config.id_field else None
        row_key = f"{name}#{number if label is None else label}"
        if config.id_field and row_key in seen:  # the number tells rows of one name apart
            row_key = f"{row_key}@{number}"
        seen.update([row_key] if config.id_field else [])
        identity = document_id(source.name, row_key)
        url = _string(row.get(config.url_field))
        host = None if url is None else host_of(url)
        cleaned = clean_text(text) if isinstance(text, str) else ""
        if reason := reason or _reason(text, cleaned):
            place = f"{name}#{number}"
            gone = removal(identity, "import_documents", reason, score=number, url=place)
            part.refuse(gone, host)
            continue
        part.keep(
            {
                "id": identity,
                "text": cleaned,
                "url": url,
                "host": host,
                "date": _string(row.get(config.date_field)),
                "warc_path": name,
                "warc_offset": number,
                "extractor": "import",
            }
        )
    part.info["unreadable"] = unreadable


def _reason(text: Any, cleaned: str) -> str | None:
    if text is None:
        return "no_text_field"
    if not isinstance(text, str):
        return "text_is_no_string"
    return None if cleaned else "no_text"


def _string(value: Any) -> str | None:
    """Return a value as a string that Parquet can hold: JSON may escape half a surrogate pair."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value).encode("utf-8", "replace").decode()


def _plain_name(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".zst")


def _rows(
    path: Path, plain_name: str, config: ImportDocumentsConfig
) -> Iterator[dict[str, Any] | str]:
    """Yield a file's rows; a string is the reason why a row, or the rest, cannot be used."""
    try:
        if plain_name.endswith(".parquet"):
            yield from _parquet_rows(path, config)
        elif plain_name.endswith((".jsonl", ".json")):
            with _open(path) as file:
                for line in utf8_lines(file):
                    if line.strip():
                        yield _json_row(line)
        else:
            with _open(path) as file:
                is_whole = config.text_documents == "file"
                for line in [as_utf8(file.read())] if is_whole else utf8_lines(file):
                    yield {config.text_field: line.decode("utf-8", "replace")}
    except (OSError, EOFError, zlib.error, _ParquetError) as error:
        yield _Break(error)


class _Break(str):
    """The reason why the rest of a file cannot be used; `why` says what happened."""

    why: str

    def __new__(cls, error: Exception) -> Self:
        is_window = isinstance(error, _WindowError)
        reason = super().__new__(cls, "zstd_window_too_large" if is_window else "unreadable_file")
        reason.why = str(error)
        return reason


class _WindowError(OSError):
    """A zstd frame needs more memory than a file of documents may take."""


class _ParquetError(Exception):
    """A Parquet file cannot be read."""


def _parquet_rows(path: Path, config: ImportDocumentsConfig) -> Iterator[dict[str, Any]]:
    try:
        file = pq.ParquetFile(path)
        wanted = {config.text_field, config.id_field, config.url_field, config.date_field}
        known = [name for name in file.schema_arrow.names if name in wanted]
        for batch in file.iter_batches(batch_size=1024, columns=known):
            columns = dict(zip(batch.schema.names, map(_values, batch.columns), strict=True))
            for row in range(batch.num_rows):
                yield {name: values[row] for name, values in columns.items()}
    except (pa.ArrowException, UnicodeDecodeError) as error:  # the latter of columns' names
        raise _ParquetError(str(error)) from error


def _values(column: Any) -> list[Any]:
    """Return a column's values; one that Python cannot hold costs itself only.

    Such are times beyond the year 9999, which become null, and strings that are no UTF-8, which
    become bytes.
    """
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        return [_value(value) for value in column]


def _value(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return value.as_buffer().to_pybytes()
    except (OverflowError, ValueError):
        return None


def _json_row(line: bytes) -> dict[str, Any] | str:
    try:
        row = parse_json(line)
    except (ValueError, RecursionError):  # 100,000 brackets overflow the parser's stack
        return "invalid_json"
    return row if isinstance(row, dict) else "no_json_object"


def _open(path: Path) -> IO[bytes]:
    if path.name.endswith(".gz"):
        return gzip.open(path)  # type: ignore[return-value]
    if path.name.endswith(".zst"):
        return io.BufferedReader(_ZstdFile(path), 1 << 16)
    return path.open("rb")


class _ZstdFile(io.RawIOBase):
    """A file of zstd frames, read to its last whole block if it is cut short.

    To zstandard's own reader such a file has simply ended; Arrow's keeps the last 64 kB back.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._begin = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._begin()
        self._packed = self._head = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain:
            packed = self._packed or self._file.read(_PACKED_BYTES)
            if not packed:
                if self._file.tell() and not self._frame.eof:
                    raise EOFError("a zstd frame is cut short")
                return 0
            if self._frame.eof:
                self._frame, self._head = self._begin(), b""
            self._head = (self._head + packed)[:_HEAD_BYTES]
            try:
                self._plain = memoryview(self._frame.decompress(packed))
            except zstandard.ZstdError as error:
                raise self._named(error) from error
            self._packed = self._frame.unused_data if self._frame.eof else b""
        size = min(len(buffer), len(self._plain))
        buffer[:size], self._plain = self._plain[:size], self._plain[size:]
        return size

    def _named(self, error: Exception) -> OSError:
        """Name a window that is too large, which the frame's first bytes tell."""
        try:
            window = zstandard.get_frame_parameters(self._head).window_size
        except zstandard.ZstdError:
            window = 0
        if window <= _MAX_WINDOW_BYTES:
            return OSError(str(error))
        most, bits = _MAX_WINDOW_BYTES >> 20, (window - 1).bit_length()
        return _WindowError(
            f"it is written with a zstd window of {window >> 20} MiB, and at most {most} MiB are "
            f"read; write it again: zstd -dc --long={bits} FILE | zstd --long=27 -o NEW"
        )

    def close(self) -> None:
        self._file.close()
        super().close()
