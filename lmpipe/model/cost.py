"""What a model costs before it exists: parameters, FLOPs, bytes and seconds, in plain arithmetic.

Counting by hand is chosen over tracing the model: `lmpipe plan` prices a 70B run in microseconds
without torch, and every term can be checked on paper. The price: a change of the decoder must be
made here too, which tests/model/test_cost.py enforces by counting the real modules.

Conventions: a multiply-add is 2 FLOPs; backward costs twice forward; GB are 1e9 bytes; norms,
softmax, RoPE and the embedding look-up count as free (under 1% above a width of 512).
"""

from __future__ import annotations

from dataclasses import dataclass

from lmpipe.errors import ConfigError
from lmpipe.model.config import ModelConfig

SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class Accelerator:
    """A device's dense bf16 matrix rate and its memory.

    Source: NVIDIA's datasheets of the SXM parts.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    memory_bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte below which a computation waits for memory: 295 on an H100."""
        return self.flops_per_second / self.bytes_per_second


A100 = Accelerator("A100", 312e12, 2.04e12, 80e9)
H100 = Accelerator("H100", 989e12, 3.35e12, 80e9)
H200 = Accelerator("H200", 989e12, 4.8e12, 141e9)


# --- parameters ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by group. `unembedding` is 0 with tied embeddings: those are counted once."""

    embedding: int
    attention: int
    feed_forward: int
    norm: int
    unembedding: int
    tied: bool

    @property
    def total(self) -> int:
        """Parameters in the checkpoint."""
        return self.embedding + self.attention + self.feed_forward + self.norm + self.unembedding

    @property
    def non_embedding(self) -> int:
        """N of Kaplan et al. (2020): everything but the embedding and output matrices."""
        return self.attention + self.feed_forward + self.norm

    @property
    def matmul(self) -> int:
        """Parameters that every token is multiplied by: the matrices of blocks and output layer."""
        output = self.embedding if self.tied else self.unembedding
        return self.attention + self.feed_forward + output


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Count the parameters of `config`'s decoder by group.

    Raises:
        ConfigError: vocab_size is still 0, so the count would leave out the embeddings.
    """
    if not config.vocab_size:
        raise ConfigError("vocab_size=0 has no count yet; use config.with_vocab(tokenizer's size)")
    d_model, layers = config.d_model, config.num_layers
    kv_width = config.num_kv_heads * config.head_size
    table = config.vocab_size * d_model
    return ParameterCount(
        embedding=table,
        attention=layers * (2 * d_model * d_model + 2 * d_model * kv_width),  # Q and O; K and V
        feed_forward=layers * 3 * d_model * config.feed_forward_size,  # gate, up, down
        norm=(2 * layers + 1) * d_model,
        unembedding=0 if config.tied_embeddings else table,
        tied=config.tied_embeddings,
    )


# --- FLOPs --------------------------------------------------------------------------------------


def matmul_flops(m: int, n: int, p: int) -> int:
    """FLOPs of an (m x n)(n x p) product: 2 m n p."""
    return 2 * m * n * p


def training_flops(parameters: float, tokens: float) -> float:
    """Return 6 N D: 2 forward and 4 backward a parameter and token, attention scores left out."""
    return 6 * parameters * tokens


def forward_flops_per_token(
    config: ModelConfig, seq_len: int | None = None, *, causal: bool = True
) -> float:
    """FLOPs of one token's forward pass, as the mean over a sequence.

    Args:
        seq_len: `config.max_seq_len` if left out.
        causal: count the half of the score matrix that is used. False counts all S x S of it, the
            convention of PaLM (2022, appendix B) in which most MFU figures are published; ours for
            comparisons.
    """
    length = config.max_seq_len if seq_len is None else seq_len
    visible = (length + 1) / 2 if causal else length
    scores_and_mix = 2 * 2 * config.num_layers * config.d_model * visible  # Q K^T and P V
    return 2 * count_parameters(config).matmul + scores_and_mix


def training_flops_per_token(
    config: ModelConfig, seq_len: int | None = None, *, causal: bool = True
) -> float:
    """FLOPs of one token's training step: forward once, backward twice as much."""
    return 3 * forward_flops_per_token(config, seq_len, causal=causal)


def model_flops_utilization(
    config: ModelConfig, tokens_per_second: float, device: Accelerator, *, num_devices: int = 1
) -> float:
    """MFU: the fraction of the devices' matrix rate that went into the model (S x S attention)."""
    achieved = training_flops_per_token(config, causal=False) * tokens_per_second
    return achieved / (device.flops_per_second * num_devices)


def training_days(flops: float, device: Accelerator, *, num_devices: int, mfu: float) -> float:
    """Days that `flops` take on `num_devices` at utilisation `mfu` (a fraction in (0, 1])."""
    if not 0 < mfu <= 1:
        raise ConfigError(f"mfu must be a fraction in (0, 1], got {mfu}")
    return flops / (device.flops_per_second * num_devices * mfu) / SECONDS_PER_DAY


# --- memory -------------------------------------------------------------------------------------


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


def kv_cache_bytes(
    config: ModelConfig, seq_len: int, batch: int = 1, bytes_per_element: int = 2
) -> int:
    """Bytes of keys and values of `batch` sequences of `seq_len` tokens: S G K L, twice."""
    per_token = 2 * config.num_kv_heads * config.head_size * config.num_layers
    return batch * seq_len * per_token * bytes_per_element


def decode_seconds(
    config: ModelConfig, device: Accelerator, *, seq_len: int, batch: int = 1
) -> float:
    """Seconds of one bf16 decoding step if reading memory is all that takes time.

    Each step reads every weight once and every sequence's cache once for `batch` tokens: an
    intensity below 1 FLOP per byte in attention at any batch, which is why a larger batch helps the
    weights' share only.
    """
    weight_bytes = 2 * count_parameters(config).total
    cache_bytes = kv_cache_bytes(config, seq_len, batch)
    return (weight_bytes + cache_bytes) / device.bytes_per_second
