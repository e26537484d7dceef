"""Data parallelism: every rank holds the model and a share of the batch; gradients are summed.

A step moves one all-reduce of the gradients: a ring sends 2 (n-1)/n of their bytes from each rank
(lmpipe/model/communication.py prices it). Memory for weights, gradients and moments is not split:
that is what ZeRO adds, in three stages.

Source: the course's lecture on parallelism; Rajbhandari et al., ZeRO (2020), section 3.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from lmpipe.parallelism.block import Weights, block, descend, require_gradients, squared_error


def train(
    layers: list[Weights],
    batches: list[tuple[Tensor, Tensor]],
    *,
    head_size: int,
    learning_rate: float,
) -> tuple[list[Weights], list[float]]:
    """Train on this rank's rows of every batch; the arguments are those of `train_alone`."""
    rank, world = dist.get_rank(), dist.get_world_size()
    layers, losses = require_gradients(layers), []
    for x_BTD, target_BTD in batches:
        y_BTD = x_BTD[rank::world]
        for weights in layers:
            y_BTD = block(y_BTD, weights, head_size)
        # Divided by the whole batch, so that the sum over ranks is its mean whatever each one has.
        loss = squared_error(y_BTD, target_BTD[rank::world]) / target_BTD.numel()
        loss.backward()  # type: ignore[no-untyped-call]
        for weights in layers:
            for weight in weights.values():
                dist.all_reduce(weight.grad)
        descend(layers, learning_rate)
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total))
    return layers, losses
