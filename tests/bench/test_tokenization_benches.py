from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmpipe.bench import bpe_train, encode, loader
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
