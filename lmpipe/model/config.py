"""The shape of the decoder, as numbers: what decides its parameters, nothing about how it runs.

One architecture with options instead of a registry of architectures. The defaults are what Llama 2
and 3, Mistral and most open models since share (pre-norm RMSNorm, RoPE, grouped-query attention,
SwiGLU, no biases), so a checkpoint opens in other tools unchanged; each option is one design choice
whose effect on loss and cost can then be measured alone. The price: options that only make sense
together have to be checked, which is half of this file. Importable without torch, so that planning
and pricing a run stay instant.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from lmpipe.artifacts.stage import StageConfig
from lmpipe.errors import ConfigError

D_FF_MULTIPLE = 64  # a tensor-core tile; also keeps every rank's slice of the matrix aligned
GATED = ("swiglu", "geglu")


class ModelConfig(StageConfig):
    """Numbers that determine a decoder's parameters, their shapes, and what it computes."""

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
        0,
        ge=0,
        le=2**18,
        description="Feed-forward width; 0 takes 8/3 d_model with a gate, 4 d_model without, "
        "rounded up to 64.",
    )
    max_seq_len: int = Field(256, ge=1, le=2**20, description="Longest sequence in tokens.")
    norm: Literal["rms", "layer"] = Field(
        "rms", description="RMSNorm, or LayerNorm (which also takes the mean off); no bias."
    )
    norm_position: Literal["pre", "post", "both"] = Field(
        "pre",
        description="Norm each sub-layer's input, the sum after it (then without a last norm), or "
        "its input and its output (Gemma 2).",
    )
    norm_eps: float = Field(
        1e-5, ge=1e-8, le=1e-3, description="Added to the mean square (or variance) in norms."
    )
    feed_forward: Literal["swiglu", "geglu", "gelu", "relu2"] = Field(
        "swiglu", description="Three matrices with a gate, or two: GELU (by tanh), or ReLU squared."
    )
    positions: Literal["rope", "learned", "sinusoidal", "none"] = Field(
        "rope", description="Turn queries and keys, or add a vector to each token, or neither."
    )
    rope_base: float = Field(
        10_000.0,
        ge=100.0,
        le=1e9,
        description="RoPE's base: larger turns slower, for longer contexts.",
    )
    rope_scaling: Literal["none", "linear", "ntk", "yarn"] = Field(
        "none", description="How RoPE is stretched from max_seq_len / factor to max_seq_len."
    )
    rope_scaling_factor: float = Field(
        1.0, ge=1.0, le=1024.0, description="By how much; above 1 with rope_scaling."
    )
    nope_every: int = Field(
        0, ge=0, le=256, description="Every n-th layer goes without RoPE; 0: none does."
    )
    qk_norm: bool = Field(False, description="RMSNorm on each head's query and key, before RoPE.")
    attention_softcap: float = Field(
        0.0, ge=0, le=1e4, description="Bend scores to c tanh(score / c); 0 leaves them."
    )
    logit_softcap: float = Field(
        0.0, ge=0, le=1e4, description="Bend logits to c tanh(logit / c); 0 leaves them."
    )
    window_pattern: str = Field(
        "",
        pattern="^[SL]*$",
        max_length=256,
        description="Layers in turn, repeated: S sees `window` keys, L all; such as SSSL.",
    )
    window: int = Field(
        0, ge=0, le=2**20, description="Keys that an S layer sees, a token's own included."
    )
    tied_embeddings: bool = Field(
        True,
        description="Use the embedding matrix as the output layer too: V x D parameters fewer.",
    )
    initialisation: Literal["depth_scaled", "fan_in"] = Field(
        "depth_scaled",
        description="Deviation 1/sqrt(fan in); depth_scaled: less by sqrt(2 num_layers) where a "
        "matrix writes to the residual stream.",
    )
    mup_base_width: int = Field(
        0,
        ge=0,
        le=32_768,
        description="Width at which learning rates were tuned: initial weights, rates and the "
        "output follow muP from there; 0: standard parametrisation.",
    )
    attention_scale: Literal["inverse_root", "inverse"] = Field(
        "inverse_root", description="Scores times 1/sqrt(head size), or 1/head size (muP)."
    )
    attention_multiplier: float = Field(
        1.0, gt=0, le=1e4, description="Times the scores, before the soft-cap."
    )
    embedding_multiplier: float = Field(
        1.0, gt=0, le=1e4, description="Times the tokens' embeddings."
    )
    residual_multiplier: float = Field(
        1.0, gt=0, le=1e4, description="Times what each sub-layer adds to the residual stream."
    )
    output_multiplier: float = Field(
        1.0, gt=0, le=1e4, description="Times the logits, before the soft-cap."
    )

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        fitting_width = _next_multiple(self.d_model, 2 * self.num_heads)
        if self.d_model % self.num_heads:
            raise ConfigError(
                f"d_model={self.d_model} must divide into num_heads={self.num_heads}; "
                f"try d_model={fitting_width}"
            )
        if self.positions == "rope" and self.head_size % 2:
            raise ConfigError(
                f"head size d_model/num_heads={self.head_size} must be even, since RoPE turns "
                f"pairs; try d_model={fitting_width}"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ConfigError(
                f"d_model={self.d_model} must be even with positions='sinusoidal', which fills "
                f"pairs; try d_model={fitting_width}"
            )
        if self.num_heads % self.num_kv_heads:
            fitting = [g for g in range(1, self.num_heads + 1) if self.num_heads % g == 0]
            raise ConfigError(
                f"num_heads={self.num_heads} must divide into num_kv_heads={self.num_kv_heads}; "
                f"use one of {fitting}"
            )
        return self

    @model_validator(mode="after")
    def _positions_fit(self) -> ModelConfig:
        if self.positions != "rope":
            of_rope = ("rope_base", "rope_scaling", "rope_scaling_factor", "nope_every")
            for name in of_rope:
                value, default = getattr(self, name), type(self).model_fields[name].default
                if value != default:
                    raise ConfigError(
                        f"{name}={value!r} has no meaning with positions={self.positions!r}; "
                        f"use positions='rope' or leave {name} at {default!r}"
                    )
        factor = self.rope_scaling_factor
        if (self.rope_scaling == "none") != (factor == 1.0):
            raise ConfigError(
                f"rope_scaling={self.rope_scaling!r} and rope_scaling_factor={factor:g} do not go "
                "together; name a scaling and give a factor above 1, or leave both out"
            )
        if self.rope_scaling != "none" and self.max_seq_len % factor:
            raise ConfigError(
                f"max_seq_len={self.max_seq_len} must be a multiple of "
                f"rope_scaling_factor={factor:g}, the quotient being the length trained before; "
                f"try max_seq_len={math.ceil(self.max_seq_len / factor) * factor:g}"
            )
        if self.rope_scaling == "yarn" and self.max_seq_len / factor < 8:
            raise ConfigError(
                f"rope_scaling='yarn' needs a trained length max_seq_len / rope_scaling_factor of "
                f"at least 8, got {self.max_seq_len / factor:g}; raise max_seq_len"
            )
        if self.rope_scaling == "ntk" and self.head_size < 4:
            raise ConfigError(
                f"rope_scaling='ntk' needs a head size of at least 4, got {self.head_size}; "
                "use fewer heads or rope_scaling='linear'"
            )
        if self.nope_every > self.num_layers:
            raise ConfigError(
                f"nope_every={self.nope_every} reaches no layer of num_layers={self.num_layers}; "
                f"use at most {self.num_layers}, or 0"
            )
        return self

    @model_validator(mode="after")
    def _attention_fits(self) -> ModelConfig:
        if ("S" in self.window_pattern) != bool(self.window):
            raise ConfigError(
                f"window={self.window} and window_pattern={self.window_pattern!r} do not go "
                "together; give both a window of at least 1 and a pattern with an S, or neither"
            )
        if len(self.window_pattern) > self.num_layers:
            raise ConfigError(
                f"window_pattern={self.window_pattern!r} is longer than num_layers="
                f"{self.num_layers}; use at most that many letters"
            )
        if self.mup_base_width and self.attention_scale != "inverse":
            raise ConfigError(
                f"mup_base_width={self.mup_base_width} excludes attention_scale="
                f"{self.attention_scale!r}: trained queries and keys are correlated; use "
                "attention_scale='inverse', with attention_multiplier=sqrt(head size at the base)"
            )
        if self.mup_base_width and self.norm_position == "post":
            raise ConfigError(
                f"mup_base_width={self.mup_base_width} excludes norm_position='post', for which "
                "the output's scale is not derived; use norm_position='pre' or 'both'"
            )
        return self

    @property
    def head_size(self) -> int:
        """K: features per attention head."""
        return self.d_model // self.num_heads

    @property
    def has_gate(self) -> bool:
        """The feed-forward network has three matrices, not two."""
        return self.feed_forward in GATED

    @property
    def feed_forward_size(self) -> int:
        """F: `d_ff`, or the width at which three matrices cost what two of 4 D do.

        Source: Shazeer, GLU Variants Improve Transformer (2020), section 3: 2/3 of 4 D.
        """
        wanted = -(-8 * self.d_model // 3) if self.has_gate else 4 * self.d_model
        return self.d_ff or _next_multiple(wanted, D_FF_MULTIPLE)

    @property
    def width_ratio(self) -> float:
        """How many times wider than muP's base; 1 in standard parametrisation."""
        return self.d_model / self.mup_base_width if self.mup_base_width else 1.0

    @property
    def score_factor(self) -> float:
        """What a query is multiplied by, over the 1/sqrt(head size) that attention applies."""
        scale = 1.0 if self.attention_scale == "inverse_root" else 1 / math.sqrt(self.head_size)
        return self.attention_multiplier * scale

    @property
    def logit_factor(self) -> float:
        """What logits are multiplied by: muP's 1 / width ratio is in it."""
        return self.output_multiplier / self.width_ratio

    def layer_window(self, layer: int) -> int | None:
        """Return how many keys a token of this layer sees, or None for all before it."""
        pattern = self.window_pattern or "L"
        return self.window if pattern[layer % len(pattern)] == "S" else None

    def has_rope(self, layer: int) -> bool:
        """Whether queries and keys of this layer are turned by their positions."""
        skipped = self.nope_every and (layer + 1) % self.nope_every == 0
        return self.positions == "rope" and not skipped

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
