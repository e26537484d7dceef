"""`lmpipe bench minhash_recall`: matches by similarity beside the curve, and recall on documents.

Pairs of sets of a known Jaccard similarity go through the product's signatures and bands; the share
that meets is compared with 1 − (1 − s^rows)^bands. With `paths`, all pairs of the documents whose
exact Jaccard is at least 0.3 are found by brute force over an inverted index, and the bands' recall
and precision at `threshold` are counted against them. Then the stage itself runs, verified: of how
many such pairs at most one document stays, and how many of those that went had a similar one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.bench.dedup import kept_ids, texts_of
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.curation.dedup.minhash import HashFamily, band_keys, match_probability, signatures
from lmpipe.curation.text.word_hashes import Words, hash_words, ngram_hashes

NGRAM, LEAST, BLOCK = 5, 0.3, 512
SETTINGS = ((14, 8), (20, 5), (9, 13))
SIMILARITIES = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


class Options(BaseModel):
    """How many pairs, and which documents."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pairs: int = Field(6000, ge=100, description="Pairs a similarity.")
    shingles: int = Field(400, ge=20, description="N-grams of a set.")
    paths: list[str] = Field(
        default_factory=list, description="Parquet files with `text`, or WARC files."
    )
    documents: int = Field(20_000, ge=2, description="How many of their documents, from the first.")
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
    texts = [text for path in settings.paths for text in texts_of(path)][: settings.documents]
    words = hash_words(texts)
    one, two, exact = _similar_pairs(words, NGRAM, LEAST)
    duplicate = exact >= settings.threshold
    rows = []
    for bands, width in SETTINGS:
        family = HashFamily.from_seed(0, bands * width)
        met = _meet(band_keys(signatures(words, NGRAM, family), bands), one, two)
        stays = _stays(texts, bands, width, settings.threshold)
        left = int((stays[one] & stays[two] & duplicate).sum())
        gone, similar = ~stays, np.zeros(len(texts), np.bool)
        similar[one[duplicate]] = similar[two[duplicate]] = True
        # equal texts too short for an n-gram have no pair here
        similar |= words.counts < NGRAM
        case = f"{bands}x{width}, {len(texts)} documents, {int(duplicate.sum())} pairs"
        recall = float(met[duplicate].mean()) if duplicate.any() else float("nan")
        precision = float(duplicate[met].mean()) if met.any() else float("nan")
        kept = 1 - left / duplicate.sum() if duplicate.any() else float("nan")
        for metric, value in (
            ("recall of pairs", recall),
            ("recall by the curve", match_probability_mean(exact[duplicate], bands, width)),
            ("precision of bands alone", precision),
            ("pairs settled by the stage", kept),
            ("removed with a similar one", similar[gone].mean() if gone.any() else float("nan")),
        ):
            rows.append(row("minhash_recall", "lmpipe", case, metric, 100 * float(value), "%"))
        count = float(gone.sum())
        rows.append(row("minhash_recall", "lmpipe", case, "removed", count, "documents"))
    return rows


def _meet(
    keys: NDArray[np.uint64], one: NDArray[np.int64], two: NDArray[np.int64]
) -> NDArray[np.bool]:
    """Return which pairs share a key, band by band: all at once would take 16 bytes each a band."""
    met = np.zeros(len(one), np.bool)
    for band in keys:
        met |= band[one] == band[two]
    return met


def _stays(texts: list[str], bands: int, width: int, threshold: float) -> NDArray[np.bool]:
    """Run the stage, verified, by similarity alone; return which documents stay."""
    config = DedupConfig(bands=bands, rows=width, min_similarity=threshold, min_containment=1.0)
    kept = set(kept_ids(texts, config))
    return np.array([f"{number:032x}" in kept for number in range(len(texts))])


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
    shape = (len(offsets) - 1, int(columns.max(initial=0)) + 1)
    matrix = csr_matrix((np.ones(pairs.shape[1], np.int32), (pairs[0], pairs[1])), shape)
    sizes = np.bincount(pairs[0], minlength=shape[0])
    nothing = np.empty(0, np.int64)
    found = [(nothing, nothing, np.empty(0))]
    turned = matrix.T.tocsr()
    for first in range(0, shape[0], BLOCK):  # boilerplate makes nearly all pairs share something
        shared = (matrix[first : first + BLOCK] @ turned).tocoo()
        one, two = shared.row.astype(np.int64) + first, shared.col.astype(np.int64)
        similarity = shared.data / (sizes[one] + sizes[two] - shared.data)
        keep = (one < two) & (similarity >= least)
        found.append((one[keep], two[keep], similarity[keep]))
    one, two, exact = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return one, two, exact
