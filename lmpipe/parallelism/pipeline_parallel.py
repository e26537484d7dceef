"""Pipeline parallelism: every rank holds some layers and passes activations on.

The batch is cut into M micro-batches, so that ranks work at the same time: all forward passes,
then all backward passes in reverse (GPipe). With n ranks each idles (n-1)/M of the time it works,
the bubble (lmpipe/model/communication.py), and holds the activations of M micro-batches; the
schedule 1F1B has the same bubble and holds n. Only B T D elements cross a boundary, once each way:
the cheapest split to send over a slow link, and the one that a small batch cannot use.

Source: Huang et al., GPipe (2019), section 2.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from lmpipe.errors import ConfigError
from lmpipe.parallelism.block import Weights, block, descend, require_gradients, squared_error


def train(
    layers: list[Weights],
    batches: list[tuple[Tensor, Tensor]],
    *,
    head_size: int,
    learning_rate: float,
    num_micro_batches: int = 2,
) -> tuple[list[Weights], list[float]]:
    """Train this rank's layers; the arguments are those of `train_alone`.

    Raises:
        ConfigError: layers do not divide by the ranks, or rows by the micro-batches.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    for count, what, by in (
        (len(layers), "layers", world),
        (len(batches[0][0]), "rows of a batch", num_micro_batches),
    ):
        if count % by:
            raise ConfigError(f"{count} {what} do not divide by {by}")
    share = len(layers) // world
    own, losses = require_gradients(layers[rank * share : (rank + 1) * share]), []
    for batch in batches:
        losses.append(_step(own, batch, head_size, num_micro_batches))
        descend(own, learning_rate)
    gathered: list[list[Weights]] = [[] for _ in range(world)]
    dist.all_gather_object(gathered, [{n: w.detach() for n, w in layer.items()} for layer in own])
    return [weights for part in gathered for weights in part], losses


def _step(
    own: list[Weights], batch: tuple[Tensor, Tensor], head_size: int, num_micro_batches: int
) -> float:
    """Pass the batch forward and back once; gradients add up over its micro-batches."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    passes: list[tuple[Tensor, Tensor]] = []  # what entered and what left, by micro-batch
    losses = []
    for x_BTD, target_BTD in zip(*(part.chunk(num_micro_batches) for part in batch), strict=True):
        entered_BTD = x_BTD.clone() if rank == 0 else torch.empty_like(x_BTD)
        if rank > 0:
            dist.recv(entered_BTD, rank - 1)
        y_BTD = entered_BTD.requires_grad_()
        for weights in own:
            y_BTD = block(y_BTD, weights, head_size)
        if rank < last:
            dist.send(y_BTD.detach(), rank + 1)
        else:
            y_BTD = squared_error(y_BTD, target_BTD) / batch[1].numel()
            losses.append(y_BTD.detach())
        passes.append((entered_BTD, y_BTD))
    for entered_BTD, left in reversed(passes):
        grad = None if rank == last else torch.empty_like(entered_BTD)
        if grad is not None:
            dist.recv(grad, rank + 1)
        left.backward(grad)  # type: ignore[no-untyped-call]
        if rank > 0:
            assert entered_BTD.grad is not None
            dist.send(entered_BTD.grad, rank - 1)
    total = torch.stack(losses).sum() if losses else torch.zeros(())
    dist.broadcast(total, last)
    return float(total)
