import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.curation.passages.bloom import BloomFilter, capacity, needed_bits, num_probes


def keys(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


@pytest.mark.parametrize("asked", [0.1, 0.01, 0.001])
def test_a_full_filter_errs_at_the_asked_rate_on_keys_that_are_new(asked: float):
    bloom = BloomFilter(1 << 18, asked)
    full = keys(1, bloom.capacity)
    wrong = int(bloom.add(full).sum())
    assert bloom.error_rate == pytest.approx(asked, rel=0.05)
    rate, fresh = 0.0, keys(2, 200_000)
    for start in range(0, len(fresh), 1000):  # asked, not put in: a copy of the filter each time
        probe = BloomFilter(1 << 18, asked)
        probe._words, probe.num_set = bloom._words.copy(), bloom.num_set
        rate += probe.add(fresh[start : start + 1000]).sum() / len(fresh)
    deviation = np.sqrt(asked * (1 - asked) / len(fresh))
    assert abs(rate - asked) < 4 * deviation + 0.05 * asked
    expected = bloom.expected_errors  # while it filled: less
    assert abs(wrong - expected) < 4 * np.sqrt(expected) + 1
    assert expected < 0.6 * asked * len(full)


def test_bits_and_probes_follow_the_formulas():
    assert [num_probes(p) for p in (0.5, 0.1, 0.01, 0.001)] == [1, 3, 7, 10]
    assert needed_bits(10**6, 0.01) == pytest.approx(9.585e6, rel=0.001)  # −n ln p / ln² 2
    assert capacity(needed_bits(10**6, 0.01), 0.01) == pytest.approx(10**6, abs=2)
    bloom = BloomFilter(1 << 20, 0.001)
    assert (bloom.num_bits, bloom.num_probes) == (8 << 20, 10)
    assert bloom.capacity == pytest.approx(583_430, rel=0.001)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 1, 7, 2**63, 2**64 - 1]), max_size=30))
def test_what_was_put_in_is_always_found_sentinels_included(values: list[int]):
    bloom = BloomFilter(1 << 12, 1e-6)
    seen = bloom.add(np.array(values, np.uint64)).tolist()
    assert seen == [value in values[:place] for place, value in enumerate(values)]
    assert bloom.num_keys == len(set(values))
