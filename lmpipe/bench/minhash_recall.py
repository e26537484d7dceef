"""`lmpipe bench minhash_recall`: matches by similarity beside the curve, and recall on documents.

Pairs of sets of a known Jaccard similarity go through the product's signatures and bands; the share
that meets is compared with 1 − (1 − s^rows)^bands. With `paths`, all pairs of the documents whose
exact Jaccard is at least 0.3 are found by brute force over an inverted index, and the bands' recall
and precision at `threshold` are counted against them.
"""

from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.curation.minhash import HashFamily, band_keys, match_probability, signatures
from lmpipe.curation.word_hashes import Words, hash_words, ngram_hashes

SETTINGS = ((14, 8), (20, 5), (9, 13))
SIMILARITIES = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


class Options(BaseModel):
    """How many pairs, and which documents."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pairs: int = Field(6000, ge=100, description="Pairs a similarity.")
    shingles: int = Field(400, ge=20, description="N-grams of a set.")
    paths: list[str] = Field(default_factory=list, description="Parquet files with `text`.")
    documents: int = Field(3000, ge=2, description="How many of their documents, from the first.")
    threshold: float = Field(0.7, gt=0, le=1, description="What counts as a duplicate.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return the measured and expected rates, and recall and precision on documents."""
    settings = Options.model_validate(options)
    rows = []
    for bands, width in SETTINGS:
        worst = 0.0
        for similarity in SIMILARITIES:
            rate = _rate(settings, similarity, bands, width)
            expected = match_probability(similarity, bands, width)
            worst = max(worst, abs(rate - expected))
            case = f"{bands}x{width}, s={similarity}, curve {100 * expected:.1f}"
            rows.append(row("minhash_recall", "lmpipe", case, "met", 100 * rate, "%"))
        case = f"{bands}x{width}, s=.5 to .95"
        rows.append(
            row("minhash_recall", "lmpipe", case, "largest difference", 100 * worst, "points")
        )
    return rows + (_on_documents(settings) if settings.paths else [])


def _rate(settings: Options, similarity: float, bands: int, width: int) -> float:
    rng = np.random.default_rng(round(1000 * similarity) + bands)
    size = settings.shingles
    shared = round(2 * size * similarity / (1 + similarity))
    met = 0
    for start in range(0, settings.pairs, 1000):
        count = min(1000, settings.pairs - start)
        words = rng.integers(0, 2**64, (count, 2 * size - shared), np.uint64)
        two = np.roll(words, -(size - shared), axis=1)[:, :size]
        both = np.stack([words[:, :size], two], axis=1)
        nothing = np.empty(0, np.int64)
        offsets = np.arange(2 * count + 1) * size
        sets = Words(both.reshape(-1), nothing, nothing, offsets, np.empty((0, 2), np.uint64))
        keys = band_keys(signatures(sets, 1, HashFamily.from_seed(start, bands * width)), bands)
        met += int((keys[:, ::2] == keys[:, 1::2]).any(axis=0).sum())
    return met / settings.pairs


def _on_documents(settings: Options) -> list[Row]:
    texts = [
        text
        for path in settings.paths
        for text in pq.read_table(path, columns=["text"])["text"].to_pylist()
    ][: settings.documents]
    words = hash_words(texts)
    one, two, exact = _similar_pairs(words, 5, 0.3)
    rows = []
    for bands, width in SETTINGS:
        keys = band_keys(signatures(words, 5, HashFamily.from_seed(0, bands * width)), bands)
        met = (keys[:, one] == keys[:, two]).any(axis=0)
        duplicate = exact >= settings.threshold
        expected = match_probability_mean(exact[duplicate], bands, width)
        case = f"{bands}x{width}, {len(texts)} documents, {int(duplicate.sum())} pairs"
        recall = float(met[duplicate].mean()) if duplicate.any() else float("nan")
        precision = float(duplicate[met].mean()) if met.any() else float("nan")
        for metric, value in (
            ("recall of pairs", recall),
            ("recall by the curve", expected),
            ("precision of bands alone", precision),
        ):
            rows.append(row("minhash_recall", "lmpipe", case, metric, 100 * value, "%"))
    return rows


def match_probability_mean(similarities: NDArray[np.float64], bands: int, rows: int) -> float:
    """Return the recall that the curve promises for pairs of these similarities."""
    return float(np.mean([match_probability(float(s), bands, rows) for s in similarities]))


def _similar_pairs(
    words: Words, ngram: int, least: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return all pairs at least that similar, by counting shared n-grams exactly."""
    from scipy.sparse import csr_matrix

    hashes, offsets = ngram_hashes(words, ngram)
    columns = np.unique(hashes, return_inverse=True)[1]
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    pairs = np.unique(np.stack([owners, columns]), axis=1)
    shape = (len(offsets) - 1, int(columns.max()) + 1)
    matrix = csr_matrix((np.ones(pairs.shape[1], np.int32), (pairs[0], pairs[1])), shape)
    sizes = np.bincount(pairs[0], minlength=shape[0])
    shared = (matrix @ matrix.T).tocoo()
    upper = shared.row < shared.col
    one, two, count = shared.row[upper], shared.col[upper], shared.data[upper]
    similarity = count / (sizes[one] + sizes[two] - count)
    keep = similarity >= least
    return one[keep].astype(np.int64), two[keep].astype(np.int64), similarity[keep]
