from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmpipe.bench import bpe_scale, bpe_train, encode, loader
from lmpipe.errors import InputError

FIELDS = {"bench", "impl", "case", "metric", "value", "unit", "device", "commit"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    texts = [f"the text number {i} of the benchmark, again and again" for i in range(300)]
    ids = [f"{i:032x}" for i in range(300)]
    pq.write_table(pa.table({"id": ids, "text": texts}), tmp_path / "texts.parquet")
    return str(tmp_path / "texts.parquet")


def test_training_is_measured_beside_the_peers_that_are_installed(path: str) -> None:
    rows = bpe_train.run({"paths": [path], "vocab_sizes": [300], "threads": 1})
    assert {row["impl"] for row in rows} >= {"lmpipe", "tokenizers"}
    assert {row["metric"] for row in rows} == {"time", "peak_memory"}
    assert all(set(row) == FIELDS and row["value"] > 0 for row in rows)


def test_encoding_is_measured_beside_tiktoken(path: str) -> None:
    rows = encode.run({"paths": [path], "vocab_size": 300, "threads": 1})
    assert [row["impl"] for row in rows] == ["lmpipe", "tiktoken"]
    assert all(set(row) == FIELDS and row["value"] > 0 for row in rows)


def test_loading_is_measured_beside_a_bare_copy() -> None:
    rows = loader.run({"num_tokens": 100_000, "sequence_length": 64})
    assert [row["impl"] for row in rows] == ["lmpipe"] * 3 + ["numpy"]
    assert all(set(row) == FIELDS and row["value"] > 0 for row in rows)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"nowhere\.parquet"):
        bpe_train.run({"paths": ["nowhere.parquet"]})


def test_training_is_measured_over_the_size_of_a_text_that_it_makes_itself(
    path: str, tmp_path: Path
) -> None:
    plot = tmp_path / "plot.svg"
    rows = bpe_scale.run(
        {"paths": [path], "megabytes": [1], "vocab_size": 280, "threads": 1, "plot": str(plot)}
    )
    metrics = ["count", "learn", "cpu", "peak_memory", "distinct_pieces"]
    assert [row["metric"] for row in rows] == metrics
    assert all(set(row) == FIELDS and row["value"] > 0 for row in rows)
    assert plot.read_text().count("<polyline") + plot.read_text().count("<circle") >= 2


def test_the_made_text_has_the_words_of_the_given_one_in_other_documents(
    path: str, tmp_path: Path
) -> None:
    given = pq.read_table(path)["text"].to_pylist()
    size = sum(len(text) for text in given)
    files = bpe_scale.permuted_text([path], 2 * size, tmp_path)
    copies = [pq.read_table(file)["text"].to_pylist() for file in files]
    assert len(copies) == 2 and copies[0] != copies[1]
    for made in copies:
        assert sorted(" ".join(made).split(" ")) == sorted(" ".join(given).split(" "))
        assert [len(text.split(" ")) for text in made] == [len(t.split(" ")) for t in given]
        assert set(made).isdisjoint(given)
    (part,) = bpe_scale.permuted_text([path], size // 3, tmp_path)
    assert 90 <= len(pq.read_table(part)) <= 110
