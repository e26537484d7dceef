"""A contamination report on files outside the store, such as conversations for fine-tuning."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from lmpipe.curation.decontamination.config import DecontaminateConfig
from lmpipe.curation.decontamination.matching import Findings, flag_documents, report, scan_texts
from lmpipe.curation.decontamination.ngram_index import NgramIndex
from lmpipe.documents.text_files import json_lines, parse_json
from lmpipe.errors import InputError
from lmpipe.eval_items.items import benchmark_digests, read_benchmarks


class LocalFiles:
    """Files by their names, as a source of benchmarks."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = {path.name: path for path in paths}
        if len(self._paths) < len(paths):
            raise InputError(f"two benchmark files have one name: {sorted(map(str, paths))}")

    def names(self, prefix: str = "") -> list[str]:
        return [name for name in sorted(self._paths) if name.startswith(prefix)]

    def open(self, name: str) -> IO[bytes]:
        return self._paths[name].open("rb")


def report_on_files(files: list[Path], benchmarks: list[Path], ngram: int) -> dict[str, Any]:
    """Search every record of JSONL files for benchmark items; nothing is removed.

    Raises:
        InputError: a line is no JSON object, or holds no text; no records, no items; a .gz file is
            cut short.
    """
    config = DecontaminateConfig(ngram=ngram)
    source = LocalFiles(benchmarks)
    items = [item for found in read_benchmarks(source).values() for item in found]
    if not items:
        raise InputError(f"no eval items in {', '.join(map(str, benchmarks))}: nothing to look for")
    index = NgramIndex(items, config.ngram, config.min_item_words)
    texts = [text for path in files for text in texts_of_records(path)]
    if not texts:
        raise InputError(f"no records in {', '.join(map(str, files))}: a report would say nothing")
    flags, boilerplate = flag_documents(scan_texts(index, texts, 0), index, config)
    findings = Findings(index, np.array([0, len(texts)], np.int64), flags, boilerplate)
    remaining = {flag.document for flag in flags}
    return report(index, findings, remaining, benchmark_digests(source))


def texts_of_records(path: Path) -> Iterator[str]:
    """Yield each record's strings as one text.

    Raises:
        InputError: see `report_on_files`.
    """
    data = path.read_bytes()
    try:
        plain = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is no whole gzip file: {error}; fetch it again") from error
    for number, line in json_lines(plain):
        try:
            text = "\n".join(_strings(parse_json(line)))
        except ValueError as error:
            raise InputError(f"{path}:{number} is no JSON: {error}") from error
        if not text.strip():
            raise InputError(f"{path}:{number} holds no text: nothing could be found in it")
        yield text


def _strings(value: Any) -> Iterator[str]:
    """Yield every string of a record, in order: turns of a conversation lie at many keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
