"""Every reader of text from outside: marks are no content, and lines end at newlines alone."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lmpipe.alignment.chat import read_conversations
from lmpipe.artifacts.source import SourceSpec, pin
from lmpipe.curation.decontamination.scan_files import LocalFiles, texts_of_records
from lmpipe.curation.quality.block_lists import read_block_lists
from lmpipe.curation.quality.config import QualityClassifierConfig
from lmpipe.curation.quality.perplexity import _texts
from lmpipe.curation.quality.quality_classifier import _read_examples
from lmpipe.curation.selection.resample import target_texts
from lmpipe.eval_items.items import read_benchmarks
from tests.curation.conftest import Workbench
from tests.curation.extraction.test_import_documents import MARKED

TEXT = "one\u2028sentence\x85 of 鐘"  # two ends of lines to str.splitlines, none to JSON


def written(path: Path, text: str, encoding: str) -> Path:
    path.write_bytes(MARKED[encoding] + text.encode(encoding))
    return path


def rows(*rows: object) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def examples(bench: Workbench, encoding: str) -> list[str]:
    text = rows({"text": TEXT, "label": "a"}, {"text": "two", "label": "b"})
    source = bench.source("e", written(bench.root / "e.jsonl", text, encoding))
    return [text for _, text in _read_examples(source, QualityClassifierConfig())]


def target(bench: Workbench, encoding: str) -> list[str]:
    text = rows({"text": TEXT}, {"text": "two"})
    written(bench.root / "a.jsonl", text, encoding)
    written(bench.root / "b.txt", "plain", encoding)
    return target_texts(bench.source("t", bench.root / "a.jsonl", bench.root / "b.txt"))


def items(bench: Workbench, encoding: str) -> list[str]:
    path = written(bench.root / "set.jsonl", rows({"text": TEXT}, {"text": "two"}), encoding)
    return [item.answer for item in read_benchmarks(LocalFiles([path]))["set"]]


def records(bench: Workbench, encoding: str) -> list[str]:
    path = written(bench.root / "a.jsonl", rows({"text": TEXT}, {"text": "two"}), encoding)
    return list(texts_of_records(path))


def conversations(bench: Workbench, encoding: str) -> list[str]:
    turns = [
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
        for text in (TEXT, "two")
    ]
    text = rows(*({"messages": messages} for messages in turns))
    path = written(bench.root / "c.jsonl", text, encoding)
    return [conversation[1].content for conversation in read_conversations(path)]


def model_text(bench: Workbench, encoding: str) -> list[str]:
    return list(_texts(str(written(bench.root / "a.txt", TEXT, encoding))))


@pytest.mark.parametrize("encoding", MARKED)
@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (examples, ["one sentence of 鐘", "two"]),
        (target, [TEXT, "two", "plain"]),
        (items, [TEXT, "two"]),
        (records, [TEXT, "two"]),
        (conversations, [TEXT, "two"]),
        (model_text, [TEXT]),
    ],
)
def test_a_file_with_a_mark_is_read_as_without_one(
    bench: Workbench,
    encoding: str,
    read: Callable[[Workbench, str], list[str]],
    expected: list[str],
) -> None:
    assert read(bench, encoding) == expected


@pytest.mark.parametrize("encoding", MARKED)
def test_the_first_entry_of_a_marked_block_list_counts(bench: Workbench, encoding: str) -> None:
    path = written(bench.root / "hosts.txt", "bad.example\r\nworse.example\n", encoding)
    lists = read_block_lists(bench.source("lists", path))
    assert lists.is_blocked(None, "bad.example") and lists.is_blocked(None, "worse.example")


def test_the_first_path_of_a_marked_list_of_paths_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    written(tmp_path / "list.txt", "a.jsonl\n", "utf-8")
    pinned = pin("s", SourceSpec(paths=("@list.txt",)), tmp_path)
    assert [file.name for file in pinned.config.files] == ["a.jsonl"]
