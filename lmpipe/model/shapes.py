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
    gate = [Matrix("gate", "feed_forward", d_model, d_ff)] if config.has_gate else []
    return [
        Matrix("query", "attention", d_model, d_model),
        Matrix("key", "attention", d_model, kv_width),
        Matrix("value", "attention", d_model, kv_width),
        Matrix("attention output", "attention", d_model, d_model),
        *gate,
        Matrix("up", "feed_forward", d_model, d_ff),
        Matrix("down", "feed_forward", d_ff, d_model),
    ]


def layer_windows(config: ModelConfig) -> tuple[int, ...]:
    """Return how many positions each layer's attention sees; 0: all before it."""
    return tuple(config.layer_window(layer) or 0 for layer in range(config.num_layers))


def norms_of_block(config: ModelConfig) -> int:
    """Return how many norms of the residual stream's width a block has."""
    return 4 if config.norm_position == "both" else 2


def norm_parameters(config: ModelConfig) -> int:
    """Return the gains of all norms: of sub-layers, of queries and keys, and of the last one."""
    of_block = norms_of_block(config) * config.d_model
    of_heads = 2 * config.head_size if config.qk_norm else 0
    last = 0 if config.norm_position == "post" else config.d_model
    return config.num_layers * (of_block + of_heads) + last


def position_parameters(config: ModelConfig) -> int:
    """Return the elements of the table of learned positions."""
    return config.max_seq_len * config.d_model if config.positions == "learned" else 0
