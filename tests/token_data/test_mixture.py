import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.errors import ConfigError
from lmpipe.token_data.mixture import MixtureOrder, MixtureSource, MixtureStage

SOURCES = [MixtureSource("web", 500), MixtureSource("code", 70), MixtureSource("maths", 9)]
STAGES = [
    MixtureStage(400, {"web": 0.7, "code": 0.25, "maths": 0.05}),
    MixtureStage(101, {"web": 1, "code": 2, "maths": 1}),
]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any))
@settings(deadline=None, max_examples=150)
def test_every_prefix_holds_each_share_less_than_one_sequence_off(weights: list[int]) -> None:
    sources = [MixtureSource(str(i), 10) for i in range(len(weights))]
    stage = MixtureStage(200, {str(i): weight for i, weight in enumerate(weights)})
    read, _ = MixtureOrder(sources, [stage], 1).places(0, 200)
    for i, weight in enumerate(weights):
        share = np.arange(1, 201) * weight / sum(weights)
        assert np.abs(np.cumsum(read == i) - share).max() < 1


@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=4), st.integers(0, 300), st.integers(0, 200)
)
@settings(deadline=None)
def test_shares_hold_in_every_window_and_exactly_in_one_of_whole_patterns(
    weights: list[int], first: int, count: int
) -> None:
    sources = [MixtureSource(str(i), 10) for i in range(len(weights))]
    stage = MixtureStage(700, {str(i): weight for i, weight in enumerate(weights)})
    order = MixtureOrder(sources, [stage], 1)
    period = sum(weights) // math.gcd(*weights)
    for length in (count, count // period * period):
        read = np.bincount(order.places(first, length)[0], minlength=len(weights))
        off = read - length * np.array(weights) / sum(weights)
        assert np.abs(off).max() < (2 if length % period else 1e-9)


@given(st.integers(0, 500), st.integers(0, 200))
@settings(deadline=None)
def test_any_range_equals_single_look_ups(first: int, count: int) -> None:
    order = MixtureOrder(SOURCES, STAGES, seed=8)
    count = min(count, order.num_sequences - first)
    numbers = order.numbers(first, count)
    assert numbers.tolist() == [int(order.numbers(n, 1)[0]) for n in range(first, first + count)]
    source, number = order.places(first, count)
    assert [order.place_of(n) for n in numbers.tolist()] == list(
        zip(source.tolist(), number.tolist(), strict=True)
    )


def test_this_order_never_changes() -> None:
    # a change here breaks the resume of every run that was started before it
    expected = [
        265,
        24,
        540,
        250,
        33,
        545,
        105,
        113,
        185,
        564,
        477,
        220,
        504,
        284,
        575,
        501,
        546,
        424,
        570,
        563,
        543,
        134,
        574,
        518,
    ]
    order = MixtureOrder(SOURCES, [MixtureStage(12, STAGES[0].weights), STAGES[1]], seed=7)
    assert order.numbers(0, 24).tolist() == expected


def test_each_source_is_read_once_an_epoch_also_across_stages() -> None:
    which, number = MixtureOrder(SOURCES, STAGES, seed=3).places(0, 501)
    for i, source in enumerate(SOURCES):
        mine = number[which == i].tolist()
        for start in range(0, len(mine) - source.num_sequences + 1, source.num_sequences):
            epoch = mine[start : start + source.num_sequences]
            assert sorted(epoch) == list(range(source.num_sequences))
    assert which.tolist().count(2) == 20 + 25


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_any_world_size_reads_the_same_after_two_resumes_and_across_a_stage(
    world_size: int,
) -> None:
    expected = MixtureOrder(SOURCES, STAGES, seed=5).numbers(0, 480).tolist()
    read: list[int] = []
    for run in (range(7), range(7, 9), range(9, 20)):
        order = MixtureOrder(SOURCES, STAGES, seed=5)
        for step in run:
            share = 24 // world_size
            for rank in range(world_size):
                read += order.numbers(step * 24 + rank * share, share).tolist()
    assert read == expected


def test_contributions_are_what_was_read() -> None:
    order = MixtureOrder(SOURCES, STAGES, seed=3)
    for length in (0, 1, 399, 400, 437, 501):
        read = order.places(0, length)[0].tolist()
        given_by = order.contributions(length)
        assert [given_by[s.name]["sequences"] for s in SOURCES] == [read.count(i) for i in range(3)]
    assert order.contributions(501)["maths"]["epochs"] == 5.0


def test_a_source_is_never_read_more_often_than_allowed() -> None:
    few = [MixtureSource("web", 500), MixtureSource("maths", 9, max_epochs=4)]
    MixtureOrder(few, [MixtureStage(72, {"web": 1, "maths": 1})], 0)
    with pytest.raises(ConfigError, match=r"'maths' would be read 4.11 times.*lower its weight"):
        MixtureOrder(few, [MixtureStage(74, {"web": 1, "maths": 1})], 0)


def test_bad_weights_and_reading_past_the_end_are_refused() -> None:
    with pytest.raises(ConfigError, match="for the sources web, code, maths only"):
        MixtureOrder(SOURCES, [MixtureStage(5, {"books": 1})], 0)
    with pytest.raises(ConfigError, match="fewer digits"):
        MixtureOrder(SOURCES, [MixtureStage(5, {"web": 0.1234567, "code": 1})], 0)
    with pytest.raises(ConfigError, match="last stage longer"):
        MixtureOrder(SOURCES, STAGES, 0).numbers(500, 2)
