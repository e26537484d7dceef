"""A small transformer as pure functions of its weights: what the three ways of splitting share.

Every split in this package trains this model to the same weights as one process does. The pipeline
itself trains by DeepSpeed (lmpipe/training); here each idea stands alone, to be read in one go.

    h = x + leave(attention(enter(norm(x))))
    y = h + leave(mlp(enter(norm(h))))

`enter` and `leave` do nothing in one process; tensor parallelism puts its communication there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Weights = dict[str, Tensor]
Boundary = Callable[[Tensor], Tensor]

MATRICES = ("query", "key", "value", "output", "up", "down")


def unchanged(x: Tensor) -> Tensor:
    """Return what was given: the boundary of a block that is not split."""
    return x


def initial_weights(num_layers: int, width: int, seed: int) -> list[Weights]:
    """Draw the matrices (out, in) of every layer: four D x D, one 4D x D, one D x 4D."""
    generator = torch.Generator().manual_seed(seed)
    shapes = dict.fromkeys(MATRICES[:4], (width, width))
    shapes |= {"up": (4 * width, width), "down": (width, 4 * width)}
    return [
        {
            name: torch.randn(shape, generator=generator) / math.sqrt(shape[1])
            for name, shape in shapes.items()
        }
        for _ in range(num_layers)
    ]


def block(
    x_BTD: Tensor,
    weights: Weights,
    head_size: int,
    enter: Boundary = unchanged,
    leave: Boundary = unchanged,
) -> Tensor:
    """Return one layer's output; the number of heads follows from the weights given."""
    x_BTD = x_BTD + leave(attention(enter(norm(x_BTD)), weights, head_size))
    return x_BTD + leave(mlp(enter(norm(x_BTD)), weights))


def norm(x_BTD: Tensor) -> Tensor:
    """RMSNorm without a gain."""
    return functional.rms_norm(x_BTD, x_BTD.shape[-1:], eps=1e-6)


def attention(x_BTD: Tensor, weights: Weights, head_size: int) -> Tensor:
    """Causal attention with as many heads as the query matrix has rows for."""

    def heads(name: str) -> Tensor:
        made_BTD = x_BTD @ weights[name].T
        return made_BTD.view(*x_BTD.shape[:2], -1, head_size).transpose(1, 2)

    seen_BHTK = functional.scaled_dot_product_attention(
        heads("query"), heads("key"), heads("value"), is_causal=True
    )
    return seen_BHTK.transpose(1, 2).flatten(2) @ weights["output"].T


def mlp(x_BTD: Tensor, weights: Weights) -> Tensor:
    """Two matrices with a squared ReLU between them."""
    return functional.relu(x_BTD @ weights["up"].T).square() @ weights["down"].T


def squared_error(output_BTD: Tensor, target_BTD: Tensor) -> Tensor:
    """Return the summed squared error; callers divide by the elements of the whole batch."""
    return (output_BTD - target_BTD).square().sum()


def descend(layers: list[Weights], learning_rate: float) -> None:
    """Take one step of gradient descent in place and forget the gradients."""
    with torch.no_grad():
        for weights in layers:
            for weight in weights.values():
                assert weight.grad is not None
                weight -= learning_rate * weight.grad
                weight.grad = None


def require_gradients(layers: list[Weights]) -> list[Weights]:
    """Return leaves of the same values that collect gradients."""
    return [
        {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        for weights in layers
    ]


def train_alone(
    layers: list[Weights],
    batches: list[tuple[Tensor, Tensor]],
    *,
    head_size: int,
    learning_rate: float,
) -> tuple[list[Weights], list[float]]:
    """Train in one process: what every split must equal.

    Args:
        batches: (input, target) of each step, each (B, T, D).

    Returns:
        The trained weights, and the mean squared error of each step.
    """
    layers, losses = require_gradients(layers), []
    for x_BTD, target_BTD in batches:
        y_BTD = x_BTD
        for weights in layers:
            y_BTD = block(y_BTD, weights, head_size)
        loss = squared_error(y_BTD, target_BTD) / target_BTD.numel()
        loss.backward()  # type: ignore[no-untyped-call]
        descend(layers, learning_rate)
        losses.append(float(loss.detach()))
    return layers, losses
