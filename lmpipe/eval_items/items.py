"""Evaluation items as files: JSONL in the shapes in which benchmarks are published.

A benchmark is one file, `NAME.jsonl` or `NAME.jsonl.gz`, one item a line, kept as published so
that it can be checked against its origin. An item's number is its row, blank lines not counted.
What an item asks and answers is read off its keys; an unknown shape is an error, because an item
that is silently empty is never decontaminated against.

    sentence_good, sentence_bad           a minimal pair (BLiMP)
    query, choices, gold                  multiple choice (ARC, PIQA, COPA, docs_cloze …)
    context_options, continuation, gold   which context fits (Winogrande)
    question, answer                      free answer (GSM8K)
    context, answer [, chain_of_thought]  free answer (SVAMP)
    context, continuation                 the next words (LAMBADA)
    prompt, canonical_solution            code (HumanEval)
    text                                  anything else
"""

import gzip
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, Protocol

from lmpipe.documents.text_files import json_lines, parse_json
from lmpipe.errors import InputError


@dataclass(frozen=True)
class EvalItem:
    """One item of a benchmark.

    Attributes:
        benchmark: the file's name without its endings.
        index: row in the file, from 0; blank lines are none, as for the library that loads tasks.
        row: the line as published.
        question: what a model is shown.
        answer: what it should say; for a minimal pair the good sentence.
        contaminating: texts by part, any of which a training text must not hold.
    """

    benchmark: str
    index: int
    row: dict[str, Any]
    question: str
    answer: str
    contaminating: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Name of the item across benchmarks, as the ledger has it."""
        return f"{self.benchmark}:{self.index}"


class Files(Protocol):
    """What is needed of a source: its names, and a file by name."""

    def names(self, prefix: str = "") -> list[str]: ...

    def open(self, name: str) -> IO[bytes]: ...


class Reading(NamedTuple):
    """What one line asks and answers, and its texts by part."""

    question: str
    answer: str
    contaminating: tuple[tuple[str, str], ...]


Reader = Callable[[dict[str, Any]], Reading]


def benchmark_files(source: Files) -> dict[str, str]:
    """Map each benchmark's name to its file; other files (notices, tables) are passed over.

    Raises:
        InputError: two files of one benchmark name, or none at all.
    """
    found: dict[str, str] = {}
    for name in source.names():
        if not name.endswith((".jsonl", ".jsonl.gz")):
            continue
        benchmark = benchmark_name(name)
        if benchmark in found:
            raise InputError(f"{name} and {found[benchmark]} are both {benchmark!r}; rename one")
        found[benchmark] = name
    if not found:
        raise InputError(f"no *.jsonl or *.jsonl.gz among {source.names()[:10]}")
    return found


def benchmark_name(file_name: str) -> str:
    """Return the benchmark's name: the file's name without folder and endings."""
    return file_name.rsplit("/", 1)[-1].removesuffix(".gz").removesuffix(".jsonl")


def benchmark_digests(source: Files) -> dict[str, str]:
    """Return the sha256 of each benchmark's lines: what an item's number means.

    Packed or not, the same lines have the same digest.
    """
    return {name: benchmark_digest(source, file) for name, file in benchmark_files(source).items()}


def benchmark_digest(source: Files, name: str) -> str:
    """Return the sha256 of one file's lines, of the unpacked ones if it is packed."""
    with source.open(name) as file:
        data = file.read()
    return hashlib.sha256(gzip.decompress(data) if name.endswith(".gz") else data).hexdigest()


def read_benchmarks(source: Files) -> dict[str, list[EvalItem]]:
    """Read every benchmark of a source, in the order of names."""
    return {
        benchmark: list(read_items(benchmark, source, name))
        for benchmark, name in sorted(benchmark_files(source).items())
    }


def read_items(benchmark: str, source: Files, name: str) -> Iterator[EvalItem]:
    """Yield one file's items.

    Raises:
        InputError: a line is no JSON object or of an unknown shape.
    """
    with source.open(name) as file:
        data = file.read()
    lines = json_lines(gzip.decompress(data) if name.endswith(".gz") else data)
    for index, (number, line) in enumerate(lines):
        yield parse_item(benchmark, index, line, f"{name}:{number}")


def parse_item(benchmark: str, index: int, line: bytes | str, where: str) -> EvalItem:
    """Read one line. `where` names it in errors."""
    try:
        row = parse_json(line)
    except ValueError as error:
        raise InputError(f"{where} is no JSON: {error}") from error
    keys = set(row) if isinstance(row, dict) else set()
    for needed, reader in _SHAPES:
        if keys >= set(needed):
            try:
                reading = reader(row)
            except (TypeError, IndexError, KeyError, ValueError) as error:
                raise InputError(f"{where} does not read as {needed}: {error}") from error
            return EvalItem(benchmark, index, row, *reading)
    shapes = "; ".join(", ".join(needed) for needed, _ in _SHAPES)
    raise InputError(f"{where} has keys {sorted(keys)}; an item has one of: {shapes}")


def _pair(row: dict[str, Any]) -> Reading:
    good, bad = str(row["sentence_good"]), str(row["sentence_bad"])
    return Reading("", good, (("good", good), ("bad", bad)))


def _choice(row: dict[str, Any]) -> Reading:
    question, answer = str(row["query"]), str(row["choices"][int(row["gold"])])
    return Reading(question, answer, _asked(question, answer))


def _context_choice(row: dict[str, Any]) -> Reading:
    question, answer = str(row["context_options"][int(row["gold"])]), str(row["continuation"])
    return Reading(question, answer, (("item", f"{question} {answer}"),))


def _free(question_key: str, answer_key: str) -> Reader:
    def read(row: dict[str, Any]) -> Reading:
        question, answer = str(row[question_key]), str(row[answer_key])
        return Reading(question, answer, _asked(question, answer))

    return read


def _continued(row: dict[str, Any]) -> Reading:
    question, answer = str(row["context"]), str(row["continuation"])
    return Reading(question, answer, (("item", f"{question} {answer.lstrip()}"),))


def _text(row: dict[str, Any]) -> Reading:
    return Reading("", str(row["text"]), (("text", str(row["text"])),))


def _asked(question: str, answer: str) -> tuple[tuple[str, str], ...]:
    """The question with its answer, and each alone: a page may hold one without the other."""
    return (("item", f"{question} {answer}"), ("question", question), ("answer", answer))


_SHAPES: tuple[tuple[tuple[str, ...], Reader], ...] = (
    (("sentence_good", "sentence_bad"), _pair),
    (("query", "choices", "gold"), _choice),
    (("context_options", "continuation", "gold"), _context_choice),
    (("question", "answer"), _free("question", "answer")),
    (("context", "continuation"), _continued),
    (("context", "answer"), _free("context", "answer")),
    (("prompt", "canonical_solution"), _free("prompt", "canonical_solution")),
    (("text",), _text),
)
