import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmpipe.bench import contamination, dedup_passages, dedup_scale, minhash_recall
from lmpipe.curation.text.word_hashes import hash_words
from lmpipe.errors import ConfigError

GSM8K = Path(__file__).parents[1] / "data" / "gsm8k"


def test_recall_follows_the_curve_and_counts_documents_exactly(tmp_path: Path) -> None:
    base = [f"word{n}" for n in range(200)]
    texts = [" ".join(base), " ".join([*base[:-3], "x", "y", "z"]), " ".join(base[::-1])]
    pq.write_table(pa.table({"text": texts}), tmp_path / "texts.parquet")
    rows = minhash_recall.run({"pairs": 400, "paths": [str(tmp_path / "texts.parquet")]})
    worst = [row["value"] for row in rows if row["metric"] == "largest difference"]
    assert len(worst) == 3 and max(worst) < 8  # 400 pairs: three deviations of 2.5 points
    real = [row for row in rows if "documents" in row["case"]]
    assert {row["metric"]: row["value"] for row in real if row["case"].startswith("14x8")}[
        "recall of pairs"
    ] == 100
    assert all("1 pairs" in row["case"] for row in real)
    stage = {row["metric"]: row["value"] for row in real if row["case"].startswith("14x8")}
    assert (stage["pairs settled by the stage"], stage["removed"]) == (100, 1)
    assert stage["removed with a similar one"] == 100


def test_pairs_are_those_of_all_comparisons_across_blocks(monkeypatch) -> None:
    monkeypatch.setattr(minhash_recall, "BLOCK", 3)
    rng = random.Random(1)
    texts = [" ".join(rng.choices("abc", k=rng.randrange(0, 14))) for _ in range(20)]
    one, two, exact = minhash_recall._similar_pairs(hash_words(texts), 2, 0.3)
    sets = [{tuple(t.split()[i : i + 2]) for i in range(len(t.split()) - 1)} for t in texts]
    expected = {
        (i, j): len(sets[i] & sets[j]) / len(sets[i] | sets[j])
        for i in range(20) for j in range(i + 1, 20)
        if sets[i] and sets[j] and len(sets[i] & sets[j]) >= 0.3 * len(sets[i] | sets[j])
    }  # fmt: skip
    pairs = zip(one.tolist(), two.tolist(), strict=True)
    found = dict(zip(pairs, exact.tolist(), strict=True))
    assert found == expected and len(found) > 20


def test_scale_counts_what_was_joined_and_spilled(tmp_path: Path) -> None:
    options = {"sizes": [300_000], "memory_mb": 16, "bands": 2, "scratch": str(tmp_path)}
    rows = {row["metric"]: row["value"] for row in dedup_scale.run(options)}
    assert rows["spilled at a time"] == 12e-6 * 300_000
    assert rows["joined"] >= 0 and rows["clustering"] > 0
    assert list(tmp_path.iterdir()) == []


def test_merged_test_items_are_exactly_those_found(tmp_path: Path) -> None:
    rows = contamination.run(
        {"train": str(GSM8K / "train.jsonl"), "test": str(GSM8K / "test.jsonl"), "merged_every": 5}
    )
    found = {(r["case"].rpartition(", ")[2], r["metric"]): r["value"] for r in rows}
    assert found["all n-grams", "records"] == found["all n-grams", "items"] == 0
    assert found["all n-grams", "recall"] == found["all n-grams", "precision"] == 100
    assert any("12 test items merged" in r["case"] for r in rows)
    pages = [" ".join(f"w{n}x{word}" for word in range(30)) for n in range(8)]
    leaked = json.loads((GSM8K / "test.jsonl").read_text().splitlines()[0])["question"]
    pq.write_table(pa.table({"text": [*pages, leaked]}), tmp_path / "pages.parquet")
    options = {"train": str(GSM8K / "train.jsonl"), "test": str(GSM8K / "test.jsonl")}
    rows = contamination.run(options | {"pages": [str(tmp_path / "pages.parquet")]})
    found = {(r["case"], r["metric"]): r["value"] for r in rows}
    assert found["9 pages as they are", "flagged"] == 1
    assert found["4 items in 9 pages, any n-gram", "recall"] == 100
    assert found["4 items in 9 pages, any n-gram", "found beside them"] == 1
    with pytest.raises(ConfigError, match="there is no file nowhere"):
        contamination.run({"train": "nowhere", "test": "nowhere"})


def test_passages_are_counted_and_copies_are_new_text(tmp_path: Path) -> None:
    words = [" ".join(f"w{n}x{k}" for k in range(30)) for n in range(9)]
    pages = [f"{words[n]}\n{words[8]}\nshort" for n in range(4)]
    pq.write_table(pa.table({"text": pages}), tmp_path / "pages.parquet")
    rows = dedup_passages.run({"paths": [str(tmp_path / "pages.parquet")], "copies": 2})
    found = {(r["case"].split(", ")[-1], r["metric"]): r["value"] for r in rows}
    assert (found["paragraphs", "passages"], found["paragraphs", "repeats"]) == (16, 6)
    assert found["Bloom filter of 16 MB", "repeats"] == 6
    assert found["documents", "repeats"] == 0 and found["all cases", "peak"] > 0
