"""Every split trains to the weights of one process, on two real ranks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lmpipe.bench.collectives import run
from lmpipe.errors import ConfigError
from lmpipe.parallelism import data_parallel, pipeline_parallel, tensor_parallel
from lmpipe.parallelism.block import Weights, initial_weights, train_alone
from lmpipe.parallelism.ranks import on_ranks

HEAD, WIDTH, STEPS = 8, 32, 3
SPLITS = {"data": data_parallel, "tensor": tensor_parallel, "pipeline": pipeline_parallel}
SETTINGS: dict[str, Any] = {"head_size": HEAD, "learning_rate": 0.03}
Result = tuple[list[Weights], list[float]]


def model() -> list[Weights]:
    return initial_weights(4, WIDTH, seed=1)


def batches(rows: int = 4) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    drawn = torch.randn(STEPS, 2, rows, 6, WIDTH, generator=generator)
    return [(pair[0], pair[1]) for pair in drawn]


def train_all() -> dict[str, Result]:
    """Train by every split, and note how each refuses what it cannot split; on each rank."""
    trained: dict[str, Any] = {
        name: split.train(model(), batches(), **SETTINGS) for name, split in SPLITS.items()
    }
    odd_heads = initial_weights(2, 3 * HEAD, seed=1)
    refused = []
    for split, layers, given in (
        (tensor_parallel, odd_heads, batches()),
        (pipeline_parallel, model()[:3], batches()),
        (pipeline_parallel, model(), batches(rows=3)),
    ):
        try:
            split.train(layers, given, **SETTINGS)
        except ConfigError as error:
            refused.append(str(error))
    return trained | {"refused": refused}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(train_all, 2)


@pytest.mark.parametrize("split", SPLITS)
def test_two_ranks_train_to_the_weights_of_one_process(
    split: str, ranks: list[dict[str, Any]]
) -> None:
    alone, losses = train_alone(model(), batches(), **SETTINGS)
    assert losses[-1] < 0.95 * losses[0], "training moved the weights"
    for rank in ranks:
        weights, its_losses = rank[split]
        assert its_losses == pytest.approx(losses, rel=1e-5)
        for layer, reference in zip(weights, alone, strict=True):
            for name, weight in layer.items():
                torch.testing.assert_close(weight, reference[name], rtol=1e-4, atol=1e-5)


def test_what_does_not_divide_is_refused_with_the_numbers(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["refused"] == [
        "3 heads do not divide by 2 ranks; take fewer ranks",
        "3 layers do not divide by 2",
        "3 rows of a batch do not divide by 2",
    ]


def test_every_collective_is_timed_and_its_bandwidth_follows_from_size_and_ranks() -> None:
    rows = run({"ranks": 2, "sizes": [2**20], "repeats": 2})
    found = {(r["case"].split()[0], r["metric"]): r["value"] for r in rows if r["impl"] == "gloo"}
    shares = dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), 0.5)
    for name, share in (shares | {"all_reduce": 1.0, "broadcast": 1.0}).items():
        algorithm = found.pop((name, "algorithm bandwidth"))
        assert found.pop((name, "bus bandwidth")) == pytest.approx(algorithm * share, abs=1e-3)
        assert algorithm * found.pop((name, "time")) * 1e3 == pytest.approx(2**20, rel=0.01)
    assert not found
