import numpy as np
import pytest

from lmpipe.curation.dedup.minhash import (
    HashFamily,
    band_keys,
    choose_keepers,
    match_probability,
    signatures,
)
from lmpipe.curation.text.word_hashes import Words


def pairs(similarity: float, count: int) -> Words:
    """Make pairs of texts, one after another, whose word sets have this Jaccard similarity."""
    rng = np.random.default_rng(round(1000 * similarity))
    size = 400
    shared = round(2 * size * similarity / (1 + similarity))
    words = rng.integers(0, 2**64, (count, 2 * size - shared), np.uint64)
    both = np.stack([words[:, :size], np.roll(words, -(size - shared), axis=1)[:, :size]], axis=1)
    offsets = np.arange(2 * count + 1) * size
    nothing = np.empty(0, np.int64)
    return Words(both.reshape(-1), nothing, nothing, offsets, np.empty((0, 2), np.uint64))


def meeting_rate(similarity: float, bands: int, rows: int, count: int) -> float:
    minima = signatures(pairs(similarity, count), 1, HashFamily.from_seed(7, bands * rows))
    keys = band_keys(minima, bands)
    return float((keys[:, ::2] == keys[:, 1::2]).any(axis=0).mean())


def test_the_curve_is_the_published_one():
    curve = [match_probability(s, 14, 8) for s in (0.70, 0.75, 0.80, 0.85)]
    assert np.round(curve, 3).tolist() == [0.565, 0.772, 0.924, 0.988]


@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.75, 0.8, 0.85])
def test_documents_meet_as_often_as_the_curve_says(similarity: float):
    expected, count = match_probability(similarity, 14, 8), 4000
    deviation = np.sqrt(expected * (1 - expected) / count)
    assert abs(meeting_rate(similarity, 14, 8, count) - expected) < 3.5 * deviation + 0.002


@pytest.mark.parametrize(("bands", "rows", "similarity"), [(20, 5, 0.55), (9, 13, 0.85)])
def test_other_settings_follow_their_curve(bands: int, rows: int, similarity: float):
    expected, count = match_probability(similarity, bands, rows), 1500
    deviation = np.sqrt(expected * (1 - expected) / count)
    assert abs(meeting_rate(similarity, bands, rows, count) - expected) < 3.5 * deviation + 0.002


def test_equal_minima_estimate_similarity():
    minima = signatures(pairs(0.6, 40), 1, HashFamily.from_seed(0, 256))
    estimates = [np.mean(minima[i] == minima[i + 1]) for i in range(0, 80, 2)]
    assert abs(np.mean(estimates) - 0.6) < 0.02
    assert np.std(estimates) < 2 * np.sqrt(0.6 * 0.4 / 256)


def test_hash_family_is_a_function_of_seed_and_count():
    family = HashFamily.from_seed(0, 3)
    assert family.factors.tolist()[0] == 0xE220A8397B1DCDAF  # splitmix64's first number for seed 0
    assert (family.factors % np.uint64(2) == 1).all()
    assert HashFamily.from_seed(1, 3).factors.tolist() != family.factors.tolist()
    assert len(np.unique(HashFamily.from_seed(0, 112).factors)) == 112


def test_bands_use_every_minimum():
    minima = np.zeros((3, 112), np.uint32)
    minima[1, 111] = 1
    minima[2, 0] = 1
    keys = band_keys(minima, 14)
    assert (keys[:, 0] == keys[:, 1]).tolist() == [True] * 13 + [False]
    assert (keys[:, 0] == keys[:, 2]).tolist() == [False] + [True] * 13


def test_bands_with_the_same_minima_have_different_keys():
    keys = band_keys(np.zeros((1, 16), np.uint32), 2)
    assert keys[0, 0] != keys[1, 0]


def test_a_chain_does_not_remove_what_hardly_resembles_the_keeper():
    minima = np.zeros((3, 10), np.uint32)
    minima[1, :2] = 1  # .8 like the first
    minima[2, :4] = 1  # .8 like the second, .6 like the first
    bounds = np.array([0, 3])
    keepers, scores = choose_keepers(minima, bounds, 0.7, 100)
    assert keepers.tolist() == [0, 0, 2]
    assert scores.tolist() == [1.0, 0.8, 1.0]
    assert choose_keepers(minima, bounds, 0.0, 100)[0].tolist() == [0, 0, 0]


def test_comparisons_of_a_huge_cluster_are_bounded():
    minima = np.arange(40, dtype=np.uint32).reshape(4, 10)
    minima[3] = minima[2]
    keepers, _ = choose_keepers(minima, np.array([0, 4]), 0.7, 2)
    assert keepers.tolist() == [0, 1, 2, 3]  # the third stays unseen, so its copy does too
