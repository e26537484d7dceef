"""What a block of the decoder is made of, for those who count it without building it.

Parameters, FLOPs, memory and the roofline are all computed from these few functions, so that a new
option of the architecture is entered once.
"""

from __future__ import annotations

from typing import NamedTuple

from lmpipe.model.config import ModelConfig


class Matrix(NamedTuple):
    """A weight matrix that every token is multiplied by."""

    name: str
    group: str  # attention or feed_forward
    fan_in: int
    fan_out: int

    @property
    def parameters(self) -> int:
        """Its elements."""
        return self.fan_in * self.fan_out


def block_matrices(config: ModelConfig) -> list[Matrix]:
    """List the matrices of one block, in the order in which a token meets them."""
    d_model, d_ff = config.d_model, config.feed_forward_size
    kv_width = config.num_kv_heads * config.head_size
    return [
        Matrix("query", "attention", d_model, d_model),
        Matrix("key", "attention", d_model, kv_width),
        Matrix("value", "attention", d_model, kv_width),
        Matrix("attention output", "attention", d_model, d_model),
        Matrix("gate", "feed_forward", d_model, d_ff),
        Matrix("up", "feed_forward", d_model, d_ff),
        Matrix("down", "feed_forward", d_ff, d_model),
    ]


def layer_windows(config: ModelConfig) -> tuple[int, ...]:
    """Return how many positions each layer's attention sees; 0: all before it."""
    return (0,) * config.num_layers
