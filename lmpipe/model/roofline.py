"""The operations of training, prefill and decoding, and whether arithmetic or memory bounds each.

An operation takes at least FLOPs / (the device's rate) and at least bytes / (its bandwidth): the
larger is its time on the roofline. Each operation is taken as one kernel that reads its inputs and
writes its outputs once; FlashAttention is one, so its scores never reach memory. Real kernels read
tiles more than once and take microseconds to start: figures here are bounds.

Source: Williams, Waterman and Patterson, Roofline (2009).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lmpipe.errors import ConfigError
from lmpipe.model.accelerators import Accelerator
from lmpipe.model.config import ModelConfig
from lmpipe.model.cost import count_parameters, visible_positions
from lmpipe.model.memory import Checkpointing
from lmpipe.model.shapes import block_matrices, layer_windows, norms_of_block

Kind = Literal["projections", "attention", "feed-forward", "output layer", "element-wise", "AdamW"]
KINDS: tuple[Kind, ...] = (
    "projections", "attention", "feed-forward", "output layer", "element-wise", "AdamW",
)  # fmt: skip

NORM_FLOPS, ADD_FLOPS, ROPE_FLOPS, GATE_FLOPS = 4, 1, 3, 5  # an element; silu counts as 4
LOSS_FLOPS = 5  # a logit: shift, exponential, sum, and the gradient
ADAMW_FLOPS = 14  # a parameter: decay, two moments, their corrections, square root, division, step
ADAMW_BYTES = 30  # reads fp32 gradient, master and moments (16), writes the last three and bf16


@dataclass(frozen=True)
class Operation:
    """Work of one kind: its arithmetic, and the bytes that it reads and writes."""

    name: str
    kind: Kind
    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    def seconds(self, device: Accelerator) -> float:
        """Return the least time on a device."""
        return max(self.flops / device.flops_per_second, self.bytes / device.bytes_per_second)

    def flops_per_second(self, device: Accelerator) -> float:
        """Return the arithmetic rate that the roof allows."""
        return min(device.flops_per_second, self.intensity * device.bytes_per_second)

    def is_memory_bound(self, device: Accelerator) -> bool:
        """Return whether the device waits for memory rather than for arithmetic."""
        return self.intensity < device.intensity

    def scaled(self, flops: float, moved: float) -> Operation:
        """Return the operation with its arithmetic and its bytes multiplied."""
        return Operation(self.name, self.kind, flops * self.flops, moved * self.bytes)


def total_seconds(operations: Iterable[Operation], device: Accelerator) -> float:
    """Return the least time of all, one after the other."""
    return sum(operation.seconds(device) for operation in operations)


def matmul(
    name: str, kind: Kind, tokens: float, fan_in: int, fan_out: int, bytes_per_element: float = 2
) -> Operation:
    """Return the product of `tokens` rows with a weight matrix."""
    elements = fan_in * fan_out + tokens * (fan_in + fan_out)
    return Operation(name, kind, 2 * tokens * fan_in * fan_out, bytes_per_element * elements)


def attention(
    config: ModelConfig, batch: int, queries: int, keys: int, bytes_per_element: float = 2
) -> Operation:
    """Return attention of all layers, as one kernel a layer: `queries` new positions of `keys`."""
    width, kv_width = (n * config.head_size for n in (config.num_heads, config.num_kv_heads))
    flops = elements = 0.0
    for window in layer_windows(config):
        if queries == keys:
            seen, read = visible_positions(keys, window), keys
        elif queries == 1:
            seen = read = min(window or keys, keys)
        else:
            raise ConfigError(f"queries must be 1 or keys={keys}, got {queries}")
        flops += 2 * 2 * batch * queries * seen * width
        elements += batch * (2 * queries * width + 2 * read * kv_width)
    return Operation("scores and mix", "attention", flops, bytes_per_element * elements)


def attention_intensity(queries: int, keys: int) -> float:
    """FLOPs per byte of bf16 attention without a mask: S T / (S + T).

    S / 2 at prefill (S = T), below 1 at decoding (T = 1), whatever the batch: each sequence brings
    its own cache.
    """
    return queries * keys / (queries + keys)


def forward_operations(
    config: ModelConfig,
    batch: int,
    queries: int,
    keys: int,
    *,
    logits: int | None = None,
    bytes_per_element: float = 2,
) -> list[Operation]:
    """List a forward pass over `queries` new positions of `batch` sequences of `keys`.

    Args:
        logits: positions that go through the output layer; all if left out.
    """
    tokens, layers = batch * queries, config.num_layers
    result = []
    for m in block_matrices(config):
        kind: Kind = "projections" if m.group == "attention" else "feed-forward"
        one = matmul(m.name, kind, tokens, m.fan_in, m.fan_out, bytes_per_element)
        result.append(one.scaled(layers, layers))
    result.append(attention(config, batch, queries, keys, bytes_per_element))
    rows = tokens if logits is None else logits
    result.append(
        matmul("logits", "output layer", rows, config.d_model, config.vocab_size, bytes_per_element)
    )
    result.append(_element_wise(config, tokens, bytes_per_element))
    return result


def _element_wise(config: ModelConfig, tokens: int, bytes_per_element: float) -> Operation:
    d_model, layers = config.d_model, config.num_layers
    hidden = config.feed_forward_size
    heads = (config.num_heads + config.num_kv_heads) * config.head_size
    normed = norms_of_block(config) * d_model + heads * config.qk_norm
    turned = heads * sum(config.has_rope(layer) for layer in range(layers)) / layers
    # norms (in, out), two additions (two in, one out), RoPE, the gate (two in, one out)
    moved = 2 * normed + 2 * 3 * d_model + 2 * turned + (3 if config.has_gate else 2) * hidden
    work = NORM_FLOPS * normed + 2 * ADD_FLOPS * d_model + ROPE_FLOPS * turned + GATE_FLOPS * hidden
    ends = 2 * 2 * d_model  # embedding look-up and last norm
    return Operation(
        "norms, RoPE, gate, residual",
        "element-wise",
        tokens * (layers * work + NORM_FLOPS * d_model),
        bytes_per_element * tokens * (layers * moved + ends),
    )


def prefill_operations(
    config: ModelConfig, batch: int, seq_len: int, *, bytes_per_element: float = 2
) -> list[Operation]:
    """List the reading of `batch` prompts; the last position alone needs logits."""
    return forward_operations(
        config, batch, seq_len, seq_len, logits=batch, bytes_per_element=bytes_per_element
    )


def decode_operations(
    config: ModelConfig, batch: int, seq_len: int, *, bytes_per_element: float = 2
) -> list[Operation]:
    """List one step of decoding: a new token of each sequence of `seq_len`."""
    return forward_operations(config, batch, 1, seq_len, bytes_per_element=bytes_per_element)


def training_operations(
    config: ModelConfig,
    batch: int,
    seq_len: int,
    *,
    checkpointing: Checkpointing = "selective",
    optimizer_share: float = 1.0,
    bytes_per_element: float = 2,
) -> list[Operation]:
    """List forward and backward pass of a micro-batch, and its share of the optimizer's step.

    Attention's backward pass makes the scores again: five products against two. Full checkpointing
    runs every block forward twice.

    Args:
        optimizer_share: 1 / (micro-batches a step), and under ZeRO 1 / (ranks) of that.
    """
    again = 1 if checkpointing == "full" else 0
    result = []
    for one in forward_operations(
        config, batch, seq_len, seq_len, bytes_per_element=bytes_per_element
    ):
        repeats = 0 if one.kind == "output layer" else again
        backward_flops = 2.5 if one.kind == "attention" else 2.0
        result.append(one.scaled(1 + repeats + backward_flops, 3 + repeats))
    logits = batch * seq_len * config.vocab_size
    # logits in, their gradient out, and an fp32 copy written and read between
    loss = Operation(
        "loss", "element-wise", LOSS_FLOPS * logits, (2 * bytes_per_element + 8) * logits
    )
    share = optimizer_share * count_parameters(config).total
    step = Operation("AdamW", "AdamW", ADAMW_FLOPS * share, ADAMW_BYTES * share)
    return [*result, loss, step]
