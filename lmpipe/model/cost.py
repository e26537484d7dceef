"""What a model costs before it exists: parameters, FLOPs and seconds, in plain arithmetic.

Counting by hand is chosen over tracing the model: `lmpipe plan` prices a 70B run in microseconds
without torch, and every term can be checked on paper. The price: a change of the decoder must be
made here too, which tests/model/test_cost.py enforces by counting the real modules.

What a block is made of is said in shapes.py; memory.py, roofline.py and communication.py have the
rest, and cost_estimate.py adds it up.

Conventions: a multiply-add is 2 FLOPs; backward costs twice forward; GB are 1e9 bytes; norms,
softmax, RoPE and the embedding look-up count as free (under 1% above a width of 512).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmpipe.errors import ConfigError
from lmpipe.model.accelerators import Accelerator
from lmpipe.model.config import ModelConfig
from lmpipe.model.shapes import (
    block_matrices,
    layer_windows,
    norm_parameters,
    position_parameters,
)

SECONDS_PER_DAY = 86_400


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
    positions: int = 0

    @property
    def total(self) -> int:
        """Parameters in the checkpoint."""
        tables = self.embedding + self.positions + self.unembedding
        return tables + self.attention + self.feed_forward + self.norm

    @property
    def non_embedding(self) -> int:
        """N of Kaplan et al. (2020): all but the tables of tokens, positions and output."""
        return self.attention + self.feed_forward + self.norm

    @property
    def matmul(self) -> int:
        """Parameters that every token is multiplied by: the matrices of blocks and output layer."""
        output = self.embedding if self.tied else self.unembedding
        return self.attention + self.feed_forward + output

    def conventions(self) -> dict[str, int]:
        """N as papers count it; with a small model they differ by half."""
        return {
            "Kaplan et al. (2020): without embedding and output": self.non_embedding,
            "Hoffmann et al. (2022): all": self.total,
            "here: what each token is multiplied by": self.matmul,
        }


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Count the parameters of `config`'s decoder by group.

    Raises:
        ConfigError: vocab_size is still 0, so the count would leave out the embeddings.
    """
    if not config.vocab_size:
        raise ConfigError("vocab_size=0 has no count yet; use config.with_vocab(tokenizer's size)")
    block, layers = block_matrices(config), config.num_layers
    table = config.vocab_size * config.d_model
    return ParameterCount(
        embedding=table,
        attention=layers * sum(m.parameters for m in block if m.group == "attention"),
        feed_forward=layers * sum(m.parameters for m in block if m.group == "feed_forward"),
        norm=norm_parameters(config),
        unembedding=0 if config.tied_embeddings else table,
        tied=config.tied_embeddings,
        positions=position_parameters(config),
    )


# --- FLOPs --------------------------------------------------------------------------------------


def matmul_flops(m: int, n: int, p: int) -> int:
    """FLOPs of an (m x n)(n x p) product: 2 m n p."""
    return 2 * m * n * p


def training_flops(parameters: float, tokens: float) -> float:
    """Return 6 N D: 2 forward and 4 backward a parameter and token, attention scores left out."""
    return 6 * parameters * tokens


def visible_positions(length: int, window: int = 0, *, causal: bool = True) -> float:
    """Return how many keys a query sees, as the mean over a sequence.

    Args:
        window: keys up to the query itself, it included; 0: all.
        causal: False counts the whole square (or band) of scores, as PaLM's convention does.
    """
    seen = min(window or length, length)
    if not causal:
        return seen
    return seen * (length - (seen - 1) / 2) / length  # the first `seen` queries see 1, 2, ... keys


def forward_flops_per_token(
    config: ModelConfig,
    seq_len: int | None = None,
    *,
    causal: bool = True,
    windows: Sequence[int] | None = None,
) -> float:
    """FLOPs of one token's forward pass, as the mean over a sequence.

    Args:
        seq_len: `config.max_seq_len` if left out.
        causal: count the half of the score matrix that is used. False counts all S x S of it, the
            convention of PaLM (2022, appendix B) in which most MFU figures are published; ours for
            comparisons.
        windows: of each layer, in place of the config's.
    """
    length = config.max_seq_len if seq_len is None else seq_len
    windows = layer_windows(config) if windows is None else windows
    visible = sum(visible_positions(length, window, causal=causal) for window in windows)
    scores_and_mix = 2 * 2 * config.num_heads * config.head_size * visible  # Q K^T and P V
    return 2 * count_parameters(config).matmul + scores_and_mix


def backward_flops_per_token(
    config: ModelConfig, seq_len: int | None = None, *, causal: bool = True
) -> float:
    """FLOPs of one token's backward pass: each product again for its input and its weight."""
    return 2 * forward_flops_per_token(config, seq_len, causal=causal)


def training_flops_per_token(
    config: ModelConfig, seq_len: int | None = None, *, causal: bool = True
) -> float:
    """FLOPs of one token's training step: forward once, backward twice as much."""
    return 3 * forward_flops_per_token(config, seq_len, causal=causal)


def flops_conventions(config: ModelConfig, seq_len: int) -> dict[str, float]:
    """Training FLOPs per token as papers count them.

    Sources: Kaplan et al. (2020), section 2.1; Hoffmann et al. (2022), appendix F; Chowdhery et al.
    (PaLM, 2022), appendix B; DeepSeek LLM (2024), section 3.2.
    """
    count, width = count_parameters(config), config.num_heads * config.head_size
    square = 12 * config.num_layers * width * seq_len  # 3 x (Q K^T and P V) on all S x S scores
    softmax = 3 * 3 * config.num_layers * config.num_heads * seq_len
    look_up = 6 * count.embedding  # as a product with one-hot rows
    return {
        "Kaplan: 6N without embedding and output": 6.0 * count.non_embedding,
        "Hoffmann: all products, softmax, look-up as a product": 6.0 * count.matmul
        + square + softmax + look_up,
        "PaLM: 6N + 12LHKS": 6.0 * count.total + square,
        "DeepSeek: blocks and attention": 6.0 * (count.attention + count.feed_forward) + square,
        "here: products that are used": training_flops_per_token(config, seq_len),
    }  # fmt: skip


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


# --- inference ----------------------------------------------------------------------------------


def kv_cache_bytes(
    config: ModelConfig,
    seq_len: int,
    batch: int = 1,
    bytes_per_element: int = 2,
    *,
    windows: Sequence[int] | None = None,
) -> int:
    """Bytes of keys and values of `batch` sequences of `seq_len` tokens: S G K L, twice.

    A layer with a window needs to hold no more than that.
    """
    windows = layer_windows(config) if windows is None else windows
    positions = sum(min(window or seq_len, seq_len) for window in windows)
    return batch * positions * 2 * config.num_kv_heads * config.head_size * bytes_per_element


def latent_cache_bytes(
    num_layers: int, seq_len: int, *, latent_size: int = 512, rope_size: int = 64
) -> int:
    """Bytes of a bf16 cache of multi-head latent attention: one vector a token and layer.

    Source: DeepSeek-V2 (2024), section 2.1: 512 features that keys and values are made of, and 64
    that carry the position.
    """
    return 2 * num_layers * seq_len * (latent_size + rope_size)


def decode_seconds(
    config: ModelConfig,
    device: Accelerator,
    *,
    seq_len: int,
    batch: int = 1,
    bytes_per_weight: float = 2,
) -> float:
    """Seconds of one decoding step if reading memory is all that takes time.

    Each step reads every weight once and every sequence's bf16 cache once for `batch` tokens: an
    intensity below 1 FLOP per byte in attention at any batch, which is why a larger batch helps the
    weights' share only.

    Args:
        bytes_per_weight: 2 for bf16, 1 for int8, 0.5 for int4.
    """
    weight_bytes = bytes_per_weight * count_parameters(config).total
    cache_bytes = kv_cache_bytes(config, seq_len, batch)
    return (weight_bytes + cache_bytes) / device.bytes_per_second
