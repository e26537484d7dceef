"""Tensor parallelism: every rank holds a part of each matrix and sees every token.

The first matrix of a pair is cut by rows (query, key, value by heads; up), the second by columns
(output, down). Between the two nothing is exchanged: each rank's heads and hidden features are its
own. Entering a pair costs an all-reduce in the backward pass, leaving it one in the forward pass:
four a layer and step, of B T D elements each, which is why it wants the links inside one machine.

Source: Shoeybi et al., Megatron-LM (2019), section 3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lmpipe.errors import ConfigError
from lmpipe.parallelism.block import Weights, block, descend, require_gradients, squared_error

CUT_BY_COLUMNS = ("output", "down")


class _Enter(torch.autograd.Function):
    """Nothing forward; sums backward, since every rank used the same input."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class _Leave(torch.autograd.Function):
    """Sums the ranks' parts forward; nothing backward."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        return grad


def own_part(layers: list[Weights], head_size: int) -> list[Weights]:
    """Return this rank's part of every matrix, contiguous.

    Raises:
        ConfigError: heads or hidden features do not divide by the ranks.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    num_heads = layers[0]["query"].shape[0] // head_size
    if num_heads % world:
        raise ConfigError(f"{num_heads} heads do not divide by {world} ranks; take fewer ranks")

    def part(name: str, weight: Tensor) -> Tensor:
        return weight.chunk(world, dim=1 if name in CUT_BY_COLUMNS else 0)[rank].contiguous()

    return [{name: part(name, w) for name, w in weights.items()} for weights in layers]


def train(
    layers: list[Weights],
    batches: list[tuple[Tensor, Tensor]],
    *,
    head_size: int,
    learning_rate: float,
) -> tuple[list[Weights], list[float]]:
    """Train this rank's part of the matrices; the arguments are those of `train_alone`."""
    own, losses = require_gradients(own_part(layers, head_size)), []
    for x_BTD, target_BTD in batches:
        y_BTD = x_BTD
        for weights in own:
            y_BTD = block(y_BTD, weights, head_size, _Enter.apply, _Leave.apply)
        loss = squared_error(y_BTD, target_BTD) / target_BTD.numel()
        loss.backward()  # type: ignore[no-untyped-call]
        descend(own, learning_rate)
        losses.append(float(loss.detach()))
    return [gathered(weights) for weights in own], losses


def gathered(weights: Weights) -> Weights:
    """Put the ranks' parts of a layer together again."""
    whole: Weights = {}
    for name, weight in weights.items():
        parts = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, weight.detach())
        whole[name] = torch.cat(parts, dim=1 if name in CUT_BY_COLUMNS else 0)
    return whole
