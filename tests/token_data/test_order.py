import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.errors import ConfigError
from lmpipe.token_data.order import SequenceOrder

SIZES = st.one_of(st.integers(1, 40), st.integers(41, 5000))


@given(SIZES, st.integers(0, 2**63), st.integers(0, 5))
@settings(deadline=None)
def test_every_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    numbers = SequenceOrder(size, seed).numbers(epoch * size, size)
    assert np.array_equal(np.sort(numbers), np.arange(size))


@given(SIZES, st.integers(0, 99), st.integers(0, 20_000), st.integers(0, 300))
@settings(deadline=None)
def test_a_range_across_epochs_equals_single_look_ups(
    size: int, seed: int, first: int, count: int
) -> None:
    order = SequenceOrder(size, seed)
    some = sorted({0, count // 2, count - 1} & set(range(count)))
    numbers = order.numbers(first, count)
    assert numbers.size == count
    assert [int(numbers[i]) for i in some] == [order(first + i) for i in some]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_any_world_size_reads_the_same_sequences_also_after_two_resumes(world_size: int) -> None:
    order, batch = SequenceOrder(61, seed=4), 24
    read: list[int] = []
    for run in (range(3), range(3, 4), range(4, 10)):  # stopped after 3 and 4 steps; 3.9 epochs
        fresh = SequenceOrder(61, seed=4)
        for step in run:
            per_rank = batch // world_size
            for rank in range(world_size):
                read += fresh.numbers(step * batch + rank * per_rank, per_rank).tolist()
    assert read == order.numbers(0, 240).tolist()


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = [SequenceOrder(1000, seed).numbers(0, 1000) for seed in range(3)]
    orders.append(SequenceOrder(1000, 0).numbers(1000, 1000))
    assert len({order.tobytes() for order in orders}) == 4


def test_the_order_is_uniform_over_seeds() -> None:
    # 11 places × 11 numbers over 4,400 seeds: 400 expected in each cell, sigma about 19
    count = np.zeros((11, 11), int)
    for seed in range(4400):
        count[np.arange(11), SequenceOrder(11, seed).numbers(0, 11)] += 1
    assert np.abs(count - 400).max() < 5 * 19
    chi_square = ((count - 400) ** 2 / 400).sum()  # 100 degrees of freedom, sigma 14
    assert chi_square < 100 + 5 * 14


def test_neighbours_in_the_order_are_not_neighbours_in_the_data() -> None:
    numbers = SequenceOrder(100_000, 1).numbers(0, 100_000)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
    assert (np.abs(np.diff(numbers)) == 1).mean() < 1e-3


def test_a_trillion_sequences_cost_nothing() -> None:
    numbers = SequenceOrder(10**12, 1).numbers(10**12 - 500, 1000)
    assert np.unique(numbers).size == 1000
    assert numbers.min() >= 0
    assert numbers.max() < 10**12


def test_this_order_never_changes() -> None:
    # a change here breaks the resume of every run that was started before it
    epochs = [6, 5, 7, 9, 2, 0, 1, 8, 3, 4, 7, 8, 4, 3, 6, 2, 0, 5, 9, 1]
    assert SequenceOrder(10, seed=7).numbers(0, 20).tolist() == epochs


def test_no_sequences_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match="shorter sequence_length"):
        SequenceOrder(0, 1)
