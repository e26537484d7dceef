from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpipe.curation.dedup import clusters as module
from lmpipe.curation.dedup.clusters import Clusters, equal_pairs, join_keys, number_type


def test_clusters_join_chains_whatever_the_order():
    one, two = Clusters(6), Clusters(6)
    first = (np.array([5, 5, 9], np.uint64), np.array([4, 1, 2]))
    second = (np.array([3, 8, 3], np.uint64), np.array([1, 0, 5]))
    for keys, members in (first, second):
        one.join_equal(keys, members)
    for keys, members in (second, first):
        two.join_equal(keys[::-1], members[::-1])
    assert one.roots().tolist() == two.roots().tolist() == [0, 1, 2, 3, 1, 1]
    members, roots = one.members()
    assert members.tolist() == [1, 4, 5] and roots.tolist() == [1, 1, 1]


@given(st.lists(st.sampled_from([0, 1, 2**63, 2**64 - 1, 77, 78]), max_size=40))
def test_pairs_are_those_of_a_dictionary_sentinel_keys_included(values: list[int]):
    expected, seen = [], {}
    for number, key in enumerate(values):
        if key in seen:
            expected.append((seen[key], number))
        seen.setdefault(key, number)
    one, two = equal_pairs(np.array(values, np.uint64), np.arange(len(values)))
    assert list(zip(one.tolist(), two.tolist(), strict=True)) == expected


def test_numbers_at_the_bounds_of_their_type_are_told_from_no_number():
    for largest in (2**32 - 3, 2**32 - 2, 2**32 - 1, 2**32, 2**63):
        numbers = np.array([0, largest], np.uint64)
        one, two = equal_pairs(np.full(2, 2**64 - 1, np.uint64), numbers)
        assert (one.tolist(), two.tolist()) == ([0], [largest])
    assert number_type(2**32 - 2) == np.uint32 and number_type(2**32 - 1) == np.uint64


@pytest.mark.parametrize(("memory", "threads"), [(10**9, 1), (200_000, 1), (100_000, 2)])
def test_clusters_are_the_same_with_and_without_spilling(
    tmp_path: Path, memory: int, threads: int, monkeypatch
):
    monkeypatch.setattr(module, "CHUNK", 1000)
    rng = np.random.default_rng(0)
    size = 20_000
    expected, found = Clusters(size), Clusters(size)
    spilled = 0
    for _ in range(3):
        keys = rng.integers(0, 15_000, size).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        expected.join_equal(keys, np.arange(size))
        batches = [
            (keys[a : a + 3333], np.arange(size)[a : a + 3333]) for a in range(0, size, 3333)
        ]
        spilled += join_keys(found, batches, size, tmp_path, memory, threads)
    assert (found.roots() == expected.roots()).all()
    assert spilled == (0 if memory == 10**9 else 3 * 12 * size)
    assert list(tmp_path.iterdir()) == []
