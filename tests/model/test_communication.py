"""Volumes and bubbles of lectures 7 and 8; the ring's share is counted on a simulated ring."""

import pytest

from lmpipe.errors import ConfigError
from lmpipe.model import communication as wires


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    for ranks in (1, 2, 8, 1024):
        parts = wires.ring_share("reduce_scatter", ranks) + wires.ring_share("all_gather", ranks)
        assert wires.ring_share("all_reduce", ranks) == parts == 2 * (ranks - 1) / ranks


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_that_is_played_through_sends_that_share(ranks: int) -> None:
    chunks = [[{rank} for _ in range(ranks)] for rank in range(ranks)]  # whose values are in it
    sent = 0  # chunks by each rank
    for step in range(ranks - 1):  # reduce-scatter: each rank passes one chunk on
        moved = [(rank, (rank - step) % ranks) for rank in range(ranks)]
        values = [chunks[rank][chunk] for rank, chunk in moved]
        for (rank, chunk), value in zip(moved, values, strict=True):
            chunks[(rank + 1) % ranks][chunk] = chunks[(rank + 1) % ranks][chunk] | value
        sent += 1
    everyone = set(range(ranks))
    assert all(chunks[rank][(rank + 1) % ranks] == everyone for rank in range(ranks))
    assert sent / ranks == wires.ring_share("reduce_scatter", ranks)
    for step in range(ranks - 1):  # all-gather: the finished chunks go round
        moved = [(rank, (rank + 1 - step) % ranks) for rank in range(ranks)]
        for rank, chunk in moved:
            assert chunks[rank][chunk] == everyone
            chunks[(rank + 1) % ranks][chunk] = everyone
        sent += 1
    assert all(chunk == everyone for row in chunks for chunk in row)
    assert sent / ranks == wires.ring_share("all_reduce", ranks)


def test_bus_bandwidth_counts_as_nccl_tests_does() -> None:
    assert wires.bus_bandwidth("all_reduce", 1e9, 0.01, 8) == pytest.approx(1e11 * 2 * 7 / 8)
    assert wires.bus_bandwidth("all_gather", 1e9, 0.01, 8) == pytest.approx(1e11 * 7 / 8)
    assert wires.bus_bandwidth("reduce_scatter", 1e9, 0.01, 8) == pytest.approx(1e11 * 7 / 8)
    assert wires.bus_bandwidth("broadcast", 1e9, 0.01, 8) == pytest.approx(1e11)


def test_ddp_and_zero_send_2p_and_zero_3_sends_3p() -> None:
    sent = [wires.data_parallel_elements(7e9, stage) / 7e9 for stage in (0, 1, 2, 3)]
    assert sent == [2, 2, 2, 3]
    assert wires.data_parallel_elements(8e9, 0, ranks=8) == 2 * 7e9
    assert wires.data_parallel_elements(8e9, 3, ranks=1) == 0


def test_stages_without_a_whole_gradient_pay_for_each_micro_batch() -> None:
    sent = [wires.data_parallel_elements(1.0, stage, micro_batches=4) for stage in (0, 1, 2, 3)]
    assert sent == [2, 2, 5, 12]


def test_tensor_parallelism_sends_8bsh_a_layer() -> None:
    b, s, h, n = 2, 2048, 12_288, 8
    assert wires.tensor_parallel_elements(b, s, h, n) == 8 * b * s * h * (n - 1) / n
    assert wires.tensor_parallel_elements(b, s, h, 1) == 0


def test_a_pipeline_sends_activations_and_gradients_over_each_border() -> None:
    assert wires.pipeline_parallel_elements(1, 2048, 4096, micro_batches=8) == 16 * 2048 * 4096


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8), (4, 1), (1, 3)])
def test_the_bubble_is_what_a_played_schedule_leaves_idle(stages: int, micro_batches: int) -> None:
    # GPipe, forward and backward of equal length: stage k runs micro-batch m at time k + m
    times = {(k, k + m) for k in range(stages) for m in range(micro_batches)}
    length = max(time for _, time in times) + 1
    idle = length - micro_batches
    assert wires.bubble_fraction(stages, micro_batches) == idle / micro_batches
    assert wires.bubble_fraction(stages, micro_batches, interleaved=2) == idle / micro_batches / 2


def test_refuses_what_is_no_number_of_ranks_or_stage() -> None:
    with pytest.raises(ConfigError, match="ranks must be 1 or more"):
        wires.ring_share("all_reduce", 0)
    with pytest.raises(ConfigError, match="micro_batches must be 1 or more"):
        wires.bubble_fraction(4, 0)
    with pytest.raises(ConfigError, match="zero_stage"):
        wires.data_parallel_elements(1e9, 4)
