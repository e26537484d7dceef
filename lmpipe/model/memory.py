"""What a training step holds in memory: parameters, gradients, optimizer, activations.

Counted from what autograd keeps for the backward pass, tensor by tensor, in place of a factor from
a paper: SwiGLU, grouped heads and a large vocabulary move it by half. Korthikanti's published
formula is here as well, to compare. The price: buffers of collectives and the allocator's gaps are
not counted; leave a tenth of the memory for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lmpipe.errors import ConfigError
from lmpipe.model.config import ModelConfig
from lmpipe.model.shapes import block_matrices, layer_windows, norms_of_block

Checkpointing = Literal["none", "selective", "full"]
CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "selective", "full")


# --- parameters, gradients, optimizer -----------------------------------------------------------


def matrix_bytes(rows: int, columns: int, bytes_per_element: int = 4) -> int:
    """Bytes of a dense matrix."""
    return rows * columns * bytes_per_element


@dataclass(frozen=True)
class TrainingState:
    """Bytes per parameter that a training step holds, activations apart."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def bytes_per_parameter(self) -> int:
        """All three together on one device."""
        return self.parameters + self.gradients + self.optimizer

    def bytes_per_parameter_per_rank(self, zero_stage: int, world_size: int) -> float:
        """The share of one of `world_size` ranks under ZeRO.

        Stage 1 splits the optimizer's state, 2 the gradients too, 3 the parameters too.
        Source: Rajbhandari et al., ZeRO (2020), figure 1.
        """
        if zero_stage not in (0, 1, 2, 3):
            raise ConfigError(f"zero_stage must be 0, 1, 2 or 3, got {zero_stage}")
        if world_size < 1:
            raise ConfigError(f"world_size must be 1 or more, got {world_size}")
        optimizer = self.optimizer / (world_size if zero_stage >= 1 else 1)
        gradients = self.gradients / (world_size if zero_stage >= 2 else 1)
        parameters = self.parameters / (world_size if zero_stage >= 3 else 1)
        return parameters + gradients + optimizer

    def largest_model(self, memory_bytes: float, zero_stage: int = 0, world_size: int = 1) -> float:
        """Parameters whose state alone fills `memory_bytes` on each of `world_size` devices."""
        return memory_bytes / self.bytes_per_parameter_per_rank(zero_stage, world_size)


FP32_ADAMW = TrainingState(parameters=4, gradients=4, optimizer=8)  # 16: two fp32 moments
BF16_ADAMW = TrainingState(parameters=2, gradients=2, optimizer=8)  # 12: fp32 moments, no masters
MIXED_ADAMW = TrainingState(parameters=2, gradients=2, optimizer=12)  # 16: fp32 masters as well
# DeepSpeed's bf16 engine, stages 0-2: 20. A bf16 gradient as autograd makes it, and an fp32 one in
# which micro-batches are summed.
DEEPSPEED_ADAMW = TrainingState(parameters=2, gradients=6, optimizer=12)

PRECISIONS = {
    "fp32": FP32_ADAMW,
    "bf16": BF16_ADAMW,
    "mixed": MIXED_ADAMW,
    "deepspeed": DEEPSPEED_ADAMW,
}


def largest_tensor(config: ModelConfig) -> int:
    """Return the elements of the largest parameter: what ZeRO-3 gathers at a time, at least."""
    rows = config.vocab_size
    if config.positions == "learned":
        rows = max(rows, config.max_seq_len)
    return max(rows * config.d_model, *(m.parameters for m in block_matrices(config)))


def state_bytes(
    config: ModelConfig,
    parameters: int,
    state: TrainingState,
    *,
    zero_stage: int = 0,
    world_size: int = 1,
) -> float:
    """Bytes of a model's state on each rank; stage 3 adds the largest tensor and its gradient.

    Source of that term: DeepSpeed's estimator of stage 3.
    """
    share = parameters * state.bytes_per_parameter_per_rank(zero_stage, world_size)
    if zero_stage < 3:
        return share
    return share + 2 * state.parameters * largest_tensor(config)


# --- activations --------------------------------------------------------------------------------


def block_activation_bytes(
    config: ModelConfig,
    seq_len: int,
    *,
    window: int = 0,
    checkpointing: Checkpointing = "selective",
    bytes_per_element: int = 2,
) -> float:
    """Bytes per token that one block keeps for its backward pass.

    Args:
        checkpointing: "none" keeps the probabilities of attention, H S of them; "selective" makes
            them again, which FlashAttention always does; "full" keeps the block's input alone and
            runs the block again.
    """
    if checkpointing not in CHECKPOINTING:
        raise ConfigError(f"checkpointing must be none, selective or full, got {checkpointing!r}")
    width, kv_width = (n * config.head_size for n in (config.num_heads, config.num_kv_heads))
    if checkpointing == "full":
        return bytes_per_element * config.d_model
    norms = norms_of_block(config) * config.d_model  # the input of each
    inputs = 2 * config.d_model  # of the matrices: what is normed
    heads = width + 2 * kv_width + width  # queries, keys, values; the mix of values
    if config.qk_norm:
        heads += width + kv_width  # before the norm
    # a gated network keeps gate, silu(gate), up and their product; a plain one before and after
    hidden = (4 if config.has_gate else 2) * config.feed_forward_size
    kept = bytes_per_element * (norms + inputs + heads + hidden)
    if checkpointing == "selective":
        return kept + 4 * config.num_heads  # a log-sum-exp in fp32 each head
    return kept + bytes_per_element * config.num_heads * min(window or seq_len, seq_len)


def head_activation_bytes(config: ModelConfig, bytes_per_element: int = 2) -> float:
    """Bytes per token of the last norm, the logits, and the loss in the middle of its backward.

    The loss holds three fp32 numbers per entry of the vocabulary then: the log-probabilities, their
    gradient, and the gradient of the fp32 logits that is made of both.
    """
    logits = 2 if config.logit_softcap else 1  # before and after
    elements = 2 * config.d_model + logits * config.vocab_size
    return bytes_per_element * elements + 12 * config.vocab_size


def activation_bytes(
    config: ModelConfig,
    micro_batch: int,
    seq_len: int,
    *,
    checkpointing: Checkpointing = "selective",
    bytes_per_element: int = 2,
) -> float:
    """Bytes of the activations of one micro-batch when they are most.

    That is in the backward of the loss, or, with full checkpointing, when a block has been made
    again, if it takes more than the loss.
    """
    blocks = [
        block_activation_bytes(
            config,
            seq_len,
            window=window,
            checkpointing=checkpointing,
            bytes_per_element=bytes_per_element,
        )
        for window in layer_windows(config)
    ]
    last = head_activation_bytes(config, bytes_per_element)
    if checkpointing == "full":
        again = block_activation_bytes(config, seq_len, bytes_per_element=bytes_per_element)
        last = max(last, again)
    return micro_batch * seq_len * (sum(blocks) + last)


def gpt_activation_bytes(
    seq_len: int,
    batch: int,
    d_model: int,
    num_heads: int,
    *,
    checkpointing: Checkpointing = "none",
    tensor_ranks: int = 1,
    sequence_parallel: bool = False,
) -> float:
    """Bytes of a GPT block as Korthikanti et al. count them: s b h (34 + 5 a s / h).

    Tensor parallelism leaves norms, dropout and residuals whole (10 of the 34), sequence
    parallelism divides them too; selective recomputation drops 5 a s / h, full keeps 2 s b h.

    Source: Korthikanti et al., Reducing Activation Recomputation (2022), table 2.
    """
    unit = seq_len * batch * d_model
    if checkpointing == "full":
        return 2 * unit
    whole = 10 / (tensor_ranks if sequence_parallel else 1)
    scores = 5 * num_heads * seq_len / d_model if checkpointing == "none" else 0.0
    return unit * (whole + (24 + scores) / tensor_ranks)
