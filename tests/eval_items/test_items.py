import gzip
import io
import json
from pathlib import Path

import pytest
from datasets import load_dataset

from lmpipe.errors import InputError
from lmpipe.eval_items.items import benchmark_files, parse_item, read_benchmarks

DEMO = Path(__file__).parents[2] / "flows" / "recipes" / "demo_data" / "eval"


class Files:
    """A source of files in memory."""

    def __init__(self, **files: bytes) -> None:
        self._files = {name.replace("__", "."): data for name, data in files.items()}

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self._files if name.startswith(prefix))

    def open(self, name: str) -> io.BytesIO:
        return io.BytesIO(self._files[name])


@pytest.mark.parametrize(
    ("row", "question", "answer", "texts"),
    [
        ({"sentence_good": "He runs.", "sentence_bad": "He run."}, "", "He runs.",
         ["He runs.", "He run."]),
        ({"query": "Q?", "choices": ["a", "b"], "gold": 1}, "Q?", "b", ["Q? b", "Q?", "b"]),
        ({"context_options": ["so Ann", "so Bob"], "continuation": "won.", "gold": 0},
         "so Ann", "won.", ["so Ann won."]),
        ({"question": "Q?", "answer": "A"}, "Q?", "A", ["Q? A", "Q?", "A"]),
        ({"context": "Once", "continuation": " more"}, "Once", " more", ["Once more"]),
        ({"context": "C", "answer": "1", "chain_of_thought": "x"}, "C", "1", ["C 1", "C", "1"]),
        ({"prompt": "def f", "canonical_solution": "  pass", "test": "t"}, "def f", "  pass",
         ["def f   pass", "def f", "  pass"]),
        ({"text": "anything"}, "", "anything", ["anything"]),
    ],
)  # fmt: skip
def test_reads_items_in_their_published_shapes(row, question, answer, texts):
    item = parse_item("set", 3, json.dumps(row), "set.jsonl:4")
    assert (item.question, item.answer, item.name) == (question, answer, "set:3")
    assert [text for _, text in item.contaminating] == texts
    assert item.row == row


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "set.jsonl:1 is no JSON"),
        ("[]", "set.jsonl:1 has keys \\[\\]"),
        ('{"foo": 1}', "has keys \\['foo'\\]; an item has one of: sentence_good"),
        ('{"query": "q", "choices": ["a"], "gold": 5}', "does not read as"),
    ],
)
def test_an_unknown_shape_is_an_error_that_names_the_line(line: str, message: str):
    with pytest.raises(InputError, match=message):
        read_benchmarks(Files(set__jsonl=line.encode()))


def test_benchmarks_are_named_by_their_files():
    row = b'{"text": "t"}\n\n{"text": "u"}\n'
    source = Files(b__jsonl=row, a__jsonl__gz=gzip.compress(row), LICENSE=b"")
    found = read_benchmarks(source)
    assert [(name, len(items)) for name, items in found.items()] == [("a", 2), ("b", 2)]
    assert [item.index for item in found["a"]] == [0, 1]
    with pytest.raises(InputError, match="both 'a'"):
        benchmark_files(Files(a__jsonl=row, a__jsonl__gz=row))
    with pytest.raises(InputError, match="no \\*\\.jsonl"):
        benchmark_files(Files(README=b""))


def test_an_items_number_is_its_row_where_evaluation_loads_the_file(tmp_path: Path):
    lines = ["", '{"text": "a"}', "", " ", '{"text": "b"}', '{"text": "c"}\r', "", '{"text": "d"}']
    data = "\n".join(lines).encode()
    (tmp_path / "set.jsonl").write_bytes(data)
    loaded = load_dataset(
        "json", data_files=str(tmp_path / "set.jsonl"), split="train", cache_dir=str(tmp_path)
    )
    items = read_benchmarks(Files(set__jsonl=data))["set"]
    found = {item.index: item.row["text"] for item in items}
    assert found == dict(enumerate(loaded["text"]))


def test_an_error_names_the_line_and_not_the_row():
    data = b'{"text": "a"}\n\n\n{"foo": 1}\n'
    with pytest.raises(InputError, match=r"set\.jsonl:4 has keys"):
        read_benchmarks(Files(set__jsonl=data))


def test_the_demo_ships_two_benchmarks_that_can_be_read():
    source = Files(**{path.name: path.read_bytes() for path in DEMO.glob("*.jsonl")})
    found = read_benchmarks(source)
    assert {name: len(items) for name, items in found.items()} == {"blimp": 300, "docs_cloze": 171}
    assert len({item.row["UID"] for item in found["blimp"]}) == 5
    assert all(len(set(item.row["choices"])) == 4 for item in found["docs_cloze"])
