"""The shape of the decoder, as numbers: what decides its parameters, nothing about how it runs.

One architecture with a few dials instead of a registry of architectures: pre-norm RMSNorm, RoPE,
grouped-query attention, SwiGLU, no biases. It is what Llama 2 and 3, Mistral and most open models
since share, so a checkpoint opens in other tools unchanged. The price: a model with biases, sliding
windows or experts needs fields of its own. Importable without torch, so that planning and pricing a
run stay instant.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from lmpipe.artifacts.stage import StageConfig
from lmpipe.errors import ConfigError

D_FF_MULTIPLE = 64  # a tensor-core tile; also keeps every rank's slice of the matrix aligned


class ModelConfig(StageConfig):
    """Numbers that determine a Llama-style decoder's parameters and their shapes."""

    vocab_size: int = Field(
        0, ge=0, le=2**20, description="Rows of the embedding matrix; 0 takes the tokenizer's size."
    )
    num_layers: int = Field(6, ge=1, le=256, description="Transformer blocks.")
    d_model: int = Field(192, ge=16, le=32_768, description="Width of the residual stream.")
    num_heads: int = Field(6, ge=1, le=256, description="Query heads; must divide d_model.")
    num_kv_heads: int = Field(
        2,
        ge=1,
        le=256,
        description="Key/value heads; each serves num_heads / num_kv_heads queries.",
    )
    d_ff: int = Field(
        0, ge=0, le=2**18, description="Feed-forward width; 0 takes 8/3 d_model, rounded up to 64."
    )
    max_seq_len: int = Field(256, ge=1, le=2**20, description="Longest sequence in tokens.")
    rope_base: float = Field(
        10_000.0,
        ge=100.0,
        le=1e9,
        description="RoPE's base: larger turns slower, for longer contexts.",
    )
    norm_eps: float = Field(
        1e-5, ge=1e-8, le=1e-3, description="Added to the mean square in RMSNorm."
    )
    tied_embeddings: bool = Field(
        True,
        description="Use the embedding matrix as the output layer too: V x D parameters fewer.",
    )

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        fitting_width = _next_multiple(self.d_model, 2 * self.num_heads)
        if self.d_model % self.num_heads:
            raise ConfigError(
                f"d_model={self.d_model} must divide into num_heads={self.num_heads}; "
                f"try d_model={fitting_width}"
            )
        if self.head_size % 2:
            raise ConfigError(
                f"head size d_model/num_heads={self.head_size} must be even, since RoPE turns "
                f"pairs; try d_model={fitting_width}"
            )
        if self.num_heads % self.num_kv_heads:
            fitting = [g for g in range(1, self.num_heads + 1) if self.num_heads % g == 0]
            raise ConfigError(
                f"num_heads={self.num_heads} must divide into num_kv_heads={self.num_kv_heads}; "
                f"use one of {fitting}"
            )
        return self

    @property
    def head_size(self) -> int:
        """K: features per attention head."""
        return self.d_model // self.num_heads

    @property
    def feed_forward_size(self) -> int:
        """F: `d_ff`, or the width at which SwiGLU's three matrices cost a plain MLP's two at 4 D.

        Source: Shazeer, GLU Variants Improve Transformer (2020), section 3: 2/3 of 4 D.
        """
        return self.d_ff or _next_multiple(-(-8 * self.d_model // 3), D_FF_MULTIPLE)

    def with_vocab(self, vocab_size: int) -> ModelConfig:
        """Return this config for a tokenizer of `vocab_size` tokens.

        Raises:
            ConfigError: the config asks for fewer rows than the tokenizer has tokens.
        """
        if self.vocab_size and self.vocab_size < vocab_size:
            raise ConfigError(
                f"vocab_size={self.vocab_size} is smaller than the tokenizer's {vocab_size} "
                "tokens; use 0 to take the tokenizer's"
            )
        return self.model_copy(update={"vocab_size": self.vocab_size or vocab_size})


def _next_multiple(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
