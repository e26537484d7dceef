"""DSIR: weights against plain Python, and the stage."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lmpipe.curation.selection.config import ResampleConfig
from lmpipe.curation.selection.dsir import bucket_counts, gumbel, log_ratios, log_weights
from lmpipe.curation.selection.resample import resample
from lmpipe.curation.text.word_hashes import hash_words, ngram_hashes
from lmpipe.errors import InputError
from tests.curation.conftest import Workbench
from tests.curation.given import given, kept, removed, shards

EXAMPLES = Path(__file__).parents[3] / "flows/recipes/demo_data/quality/examples.jsonl"


def plain_buckets(text: str, num_buckets: int) -> list[int]:
    words = hash_words([text])
    pairs, _ = ngram_hashes(words, 2)
    return [int(h) % num_buckets for h in [*words.hashes.tolist(), *pairs.tolist()]]


def test_weights_are_the_sums_of_log_ratios() -> None:
    pool = ["the cat sat on the mat", "a b", "", "one"]
    target = ["the cat", "cat on a mat"]
    counts = [bucket_counts(texts, 64) for texts in (target, pool)]
    for found, texts in zip(counts, (target, pool), strict=True):
        plain = Counter(b for text in texts for b in plain_buckets(text, 64))
        assert {n: int(c) for n, c in enumerate(found) if c} == plain
    ratios = log_ratios(*counts)
    sums = [int(c.sum()) for c in counts]
    for text, weight in zip(pool, log_weights(pool, ratios), strict=True):
        expected = sum(
            math.log((counts[0][b] + 1) / (sums[0] + 64) / ((counts[1][b] + 1) / (sums[1] + 64)))
            for b in plain_buckets(text, 64)
        )
        assert weight == pytest.approx(expected)


def test_noise_is_gumbels_and_one_of_seed_and_id() -> None:
    ids = [f"{n:032x}" for n in range(20_000)]
    noise = gumbel(ids, 3)
    assert np.mean(noise) == pytest.approx(0.5772, abs=0.03)
    assert np.var(noise) == pytest.approx(math.pi**2 / 6, abs=0.06)
    assert np.array_equal(gumbel(ids[:5], 3), noise[:5])


def test_the_stage_draws_what_looks_like_the_target(bench: Workbench) -> None:
    rows = [json.loads(line) for line in EXAMPLES.read_text().splitlines()]
    texts = {f"{n}-{row['label']}": row["text"] for n, row in enumerate(rows[:200])}
    target = bench.files(
        "target",
        a__jsonl="\n".join(json.dumps(r) for r in rows[200:] if r["label"] == "positive"),
    )
    keys = list(texts)
    halves = [{k: texts[k] for k in half} for half in (keys[:90], keys[90:])]
    documents = bench.run(given, shards(*halves))
    drawn = bench.run(resample, ResampleConfig(kept_fraction=0.3), documents, target)
    assert len(kept(drawn)) == 60
    assert len(removed(drawn)) == 140
    share = [
        np.mean([r["label"] == "positive" for r in rows[:200] if (r["text"] in found)])
        for found in (set(kept(drawn).values()), set(texts.values()))
    ]
    assert share[0] > share[1] + 0.2
    two = bench.run(resample, ResampleConfig(kept_fraction=0.3), documents, target, workers=2)
    assert two.digest == drawn.digest
    whole = bench.run(given, shards(texts))
    joined = bench.run(resample, ResampleConfig(kept_fraction=0.3), whole, target)
    assert kept(joined) == kept(drawn)
    assert all(row["score"] < row["threshold"] for row in removed(drawn).values())  # type: ignore[operator]


def test_a_target_without_text_is_refused(bench: Workbench) -> None:
    documents = bench.run(given, shards({"a": "x"}))
    for number, text in enumerate(("", '{"body": 1}')):
        with pytest.raises(InputError, match=r"no text|line 1"):
            bench.run(
                resample, ResampleConfig(), documents, bench.files(f"t{number}", a__jsonl=text)
            )
