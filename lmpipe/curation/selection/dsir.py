"""DSIR: weigh documents by how much likelier their n-grams are in a target than in the pool.

A document's log weight is the sum, over its hashed words and word pairs, of the log ratio of the
target's share of the bucket to the pool's. Drawing without replacement by Gumbel noise on the log
weights keeps the pool's variety, where a cut at the top would keep copies of the target. The noise
is a hash of (seed, id): the same for any order, split or number of workers.

Source: Xie et al. 2023, section 3.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmpipe.curation.selection.sampling import uniform
from lmpipe.curation.text.word_hashes import hash_words, ngram_hashes

Counts = NDArray[np.int64]
PSEUDO_COUNT = 1.0  # of every bucket, so that an unseen n-gram weighs little and not infinitely


def bucket_counts(texts: Sequence[str], num_buckets: int) -> Counts:
    """Count the hashed words and word pairs of all texts together."""
    total = np.zeros(num_buckets, dtype=np.int64)
    for buckets, _ in _features(texts, num_buckets):
        total += np.bincount(buckets, minlength=num_buckets)
    return total


def log_ratios(target: Counts, pool: Counts) -> NDArray[np.float64]:
    """Return each bucket's log(target's share / pool's share)."""
    shares = [
        (counts + PSEUDO_COUNT) / (counts.sum() + PSEUDO_COUNT * len(counts))
        for counts in (target, pool)
    ]
    return np.asarray(np.log(shares[0]) - np.log(shares[1]))


def log_weights(texts: Sequence[str], ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each text's log importance weight; 0 for one without words."""
    weights = np.zeros(len(texts), dtype=np.float64)
    for buckets, offsets in _features(texts, len(ratios)):
        sums = np.concatenate([[0.0], np.cumsum(ratios[buckets])])
        weights += sums[offsets[1:]] - sums[offsets[:-1]]
    return weights


def gumbel(ids: Sequence[str], seed: int) -> NDArray[np.float64]:
    """Return each document's noise."""
    draws = np.clip(uniform(ids, seed), 2.0**-54, None)
    return np.asarray(-np.log(-np.log(draws)))


def _features(
    texts: Sequence[str], num_buckets: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the buckets and text offsets of single words, then of pairs."""
    words = hash_words(texts)
    pairs, pair_offsets = ngram_hashes(words, 2)
    size = np.uint64(num_buckets)
    return [
        ((words.hashes % size).astype(np.int64), words.offsets),
        ((pairs % size).astype(np.int64), pair_offsets),
    ]
