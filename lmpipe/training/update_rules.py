"""Optimizers as plain functions of tensors, one step each, in the order in which they came.

    momentum SGD   a running sum of gradients: steady directions add up, others cancel
    AdaGrad        each weight's step over the root of its squared gradients so far
    RMSProp        the same with a running mean, so that old gradients are forgotten
    AdamW          momentum's mean over RMSProp's root, both unbiased; weights decay apart
    Muon           momentum of a matrix, its singular values set to 1: all directions step alike

Each takes a weight, its gradient and what it remembers of earlier steps, and returns the new weight
and memory; nothing is changed in place. They are for reading, and for checking others: training
runs torch's fused AdamW under DeepSpeed (engine.py), which keeps these states in flat partitions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmpipe.errors import ConfigError
from lmpipe.training.optimizer import OptimizerConfig

# Steep at 0, so that small singular values grow 3.4-fold a round, at the price of ending in
# 0.7-1.2 and not at 1. Source: Jordan et al., Muon (2024).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def momentum_sgd(
    weight: Tensor, gradient: Tensor, velocity: Tensor, rate: float, momentum: float = 0.9
) -> tuple[Tensor, Tensor]:
    """Step along a decaying sum of gradients. Source: Polyak (1964).

    Args:
        velocity: zeros at first.
    """
    velocity = momentum * velocity + gradient
    return weight - rate * velocity, velocity


def adagrad(
    weight: Tensor, gradient: Tensor, square_sum: Tensor, rate: float, epsilon: float = 1e-10
) -> tuple[Tensor, Tensor]:
    """Divide by the root of all squared gradients, so steps shrink as 1/sqrt(t).

    Source: Duchi, Hazan and Singer (2011).
    """
    square_sum = square_sum + gradient.square()
    return weight - rate * gradient / (square_sum.sqrt() + epsilon), square_sum


def rmsprop(
    weight: Tensor, gradient: Tensor, square_mean: Tensor, rate: float, decay: float = 0.99
) -> tuple[Tensor, Tensor]:
    """Divide by the root of a running mean of squared gradients.

    Source: Tieleman and Hinton (2012), lecture 6.5.
    """
    square_mean = decay * square_mean + (1 - decay) * gradient.square()
    return weight - rate * gradient / (square_mean.sqrt() + 1e-8), square_mean


def adamw(
    weight: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    step: int,
    rate: float,
    settings: OptimizerConfig,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Step by mean over root mean square, each free of the bias of its start at zero.

    Source: Kingma and Ba (2015), algorithm 1; Loshchilov and Hutter (2019) for the decay.

    Args:
        moments: running means of the gradient and its square; zeros at first.
        step: 0 for the first step, as a schedule counts.
        rate: of this step; `settings.learning_rate` times the schedule.
    """
    mean = settings.beta1 * moments[0] + (1 - settings.beta1) * gradient
    square = settings.beta2 * moments[1] + (1 - settings.beta2) * gradient.square()
    unbiased_mean = mean / (1 - settings.beta1 ** (step + 1))
    unbiased_square = square / (1 - settings.beta2 ** (step + 1))
    decayed = weight * (1 - rate * settings.weight_decay)
    new = decayed - rate * unbiased_mean / (unbiased_square.sqrt() + settings.epsilon)
    return new, (mean, square)


def muon(
    weight: Tensor,
    gradient: Tensor,
    mean: Tensor,
    rate: float,
    momentum: float = 0.95,
    weight_decay: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Step a matrix of a block along its orthogonalised (Nesterov) momentum.

    Embeddings, the output layer and gains are no maps between features: those stay with AdamW. The
    factor sqrt(rows / columns) gives a tall matrix a step of the same size per output.

    Source: Jordan et al., Muon (2024).

    Raises:
        ConfigError: the weight is no matrix.
    """
    if weight.dim() != 2:
        raise ConfigError(
            f"Muon steps matrices, got shape {tuple(weight.shape)}; give vectors to adamw"
        )
    mean = momentum * mean + (1 - momentum) * gradient
    ahead = momentum * mean + (1 - momentum) * gradient
    size = math.sqrt(max(1.0, weight.shape[0] / weight.shape[1]))
    decayed = weight * (1 - rate * weight_decay)
    return decayed - rate * size * orthogonalise(ahead), mean


def orthogonalise(matrix: Tensor, rounds: int = 5) -> Tensor:
    """Bring all singular values near 1 and leave the singular vectors: U S V^T to about U V^T.

    Each round applies the odd polynomial a s + b s^3 + c s^5 to the singular values, by products
    alone (Newton-Schulz); an SVD, the alternative, is exact and slow on a GPU.
    """
    a, b, c = NEWTON_SCHULZ
    is_tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.mT if is_tall else matrix  # the smaller product of the two
    x = x / torch.linalg.matrix_norm(x).clamp_min(1e-7)
    for _ in range(rounds):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if is_tall else x


def zeros_for(weight: Tensor) -> Tensor:
    """Return what every rule remembers before its first step."""
    return torch.zeros_like(weight)
