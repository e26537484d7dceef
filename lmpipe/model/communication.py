"""How much training says over the wires: data, tensor and pipeline parallelism, and the bubble.

Volumes are per rank, in elements, as a ring sends them: latency, which trees are better at, is left
out, since gradients of a model worth splitting are megabytes. What each collective sends is exact;
what overlaps with computing is not said here.
"""

from __future__ import annotations

from typing import Literal

from lmpipe.errors import ConfigError

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]


def ring_share(collective: Collective, ranks: int) -> float:
    """Elements that a rank sends for each element of the whole tensor.

    An all-reduce is a reduce-scatter and an all-gather: 2 (W - 1) / W against (W - 1) / W each.
    """
    _check("ranks", ranks)
    share = (ranks - 1) / ranks
    if collective == "all_reduce":
        return 2 * share
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return share
    return 1.0 if ranks > 1 else 0.0


def bus_bandwidth(collective: Collective, num_bytes: float, seconds: float, ranks: int) -> float:
    """Bytes per second over each rank's link, as nccl-tests counts: comparable over world sizes.

    Args:
        num_bytes: of the whole tensor, also where a rank holds a part of it.
    """
    return num_bytes / seconds * ring_share(collective, ranks)


def data_parallel_elements(
    parameters: float, zero_stage: int, ranks: int | None = None, *, micro_batches: int = 1
) -> float:
    """Elements that a rank sends each optimizer step: 2P, or 3P at ZeRO-3.

    Stage 0 all-reduces gradients; 1 and 2 reduce-scatter them and all-gather the new parameters,
    the same volume; 3 gathers the parameters twice, for forward and backward, and scatters
    gradients. Stages 2 and 3 hold no whole gradient to sum micro-batches in, so they scatter, and 3
    gathers, for each of them.

    Args:
        ranks: None counts as W -> infinity, the papers' round numbers.

    Source: Rajbhandari et al., ZeRO (2020), section 7.
    """
    if zero_stage not in (0, 1, 2, 3):
        raise ConfigError(f"zero_stage must be 0, 1, 2 or 3, got {zero_stage}")
    share = 1.0 if ranks is None else ring_share("all_gather", ranks)
    passes = {0: 2, 1: 2, 2: micro_batches + 1, 3: 3 * micro_batches}[zero_stage]
    return passes * parameters * share


def tensor_parallel_elements(batch: int, seq_len: int, d_model: int, ranks: int) -> float:
    """Elements that a rank sends for one layer's step: 8 b s h (n - 1) / n.

    Attention and the feed-forward network each all-reduce once forward and once backward. Sequence
    parallelism makes each all-reduce a reduce-scatter and an all-gather: the same volume, less
    memory.
    """
    return 4 * ring_share("all_reduce", ranks) * batch * seq_len * d_model


def pipeline_parallel_elements(
    batch: int, seq_len: int, d_model: int, micro_batches: int = 1
) -> float:
    """Elements over the border of two stages each step: activations forward, gradients back.

    Args:
        batch: sequences of a micro-batch.
    """
    return 2 * micro_batches * batch * seq_len * d_model


def bubble_fraction(stages: int, micro_batches: int, *, interleaved: int = 1) -> float:
    """Idle time over busy time of a pipeline: (stages - 1) / micro_batches.

    Args:
        interleaved: chunks of layers each rank holds; divides the bubble, multiplies the traffic.

    Source: Narayanan et al., Megatron-LM (2021), section 2.2.
    """
    for name, value in (
        ("stages", stages),
        ("micro_batches", micro_batches),
        ("interleaved", interleaved),
    ):
        _check(name, value)
    return (stages - 1) / (micro_batches * interleaved)


def _check(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be 1 or more, got {value}")
