"""The language model: a decoder with the options of ModelConfig, top to bottom in one file.

    x = embed(tokens)
    for each layer:  x = x + attention(norm(x));  x = x + feed_forward(norm(x))
    logits = norm(x) @ output.T

Pre-norm keeps the residual path free of norms, so depth trains without tricks; RMSNorm is LayerNorm
without mean and bias (the same loss, less data moved); SwiGLU and no biases as in PaLM and Llama.
Those are the defaults; an option changes one line of what follows. Positions are told in
positions.py, the first weights drawn in initialisation.py.

Modules and parameters carry the names of Hugging Face's Llama, so a checkpoint is a plain
safetensors file (huggingface.py). Alternative not taken: wrapping LlamaForCausalLM itself, which
saves this file and costs the kernels, the packing mask and every reader a library of forty files.

There are no buffers: RoPE's angles are computed in fp32 at each forward pass (once for all layers),
so nothing is lost when a model is built on the meta device or cast to bf16.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lmpipe.errors import ConfigError
from lmpipe.kernels.flash_attention import Pattern, document_bounds, flash_attention
from lmpipe.model.config import ModelConfig
from lmpipe.model.initialisation import initialise
from lmpipe.model.positions import rope, rotate, sinusoids

Rotation = tuple[Tensor, Tensor]
Attention = Literal["auto", "triton", "reference"]


class Cache(Protocol):
    """What the decoder asks of a KV cache; lmpipe.inference.kv_cache.KVCache is one."""

    length_B: Tensor

    def append(
        self, layer: int, key_BTGK: Tensor, value_BTGK: Tensor, positions_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values at their positions; return all so far, as (B, G, S, K)."""


class Decoder(nn.Module):
    """A causal language model.

    Args:
        config: the model's shape, vocab_size resolved.
        attention: "triton", "reference" (torch's own), or "auto": triton for CUDA tensors, else the
            reference.
    """

    def __init__(self, config: ModelConfig, attention: Attention = "auto") -> None:
        super().__init__()
        if not config.vocab_size:
            raise ConfigError(
                "vocab_size=0 builds nothing; use config.with_vocab(tokenizer's size)"
            )
        if attention not in ("auto", "triton", "reference"):
            raise ConfigError(f"attention must be auto, triton or reference, got {attention!r}")
        self.config = config
        self.model = Trunk(config, attention)
        # A tied output layer has no module: a parameter held by two modules parts in two in
        # to_empty and ZeRO-3.
        self.lm_head = (
            None
            if config.tied_embeddings
            else nn.Linear(config.d_model, config.vocab_size, bias=False)
        )

    def forward(
        self,
        tokens_BT: Int[Tensor, "B T"],
        *,
        document_BT: Int[Tensor, "B T"] | None = None,
        positions_BT: Int[Tensor, "B T"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Return the logits of each position's next token.

        Args:
            document_BT: number of the document at each position of a packed row, one run of equal
                numbers a document; attention never crosses documents. Positions restart with them
                where they are added to tokens; RoPE depends on differences only.
            positions_BT: position of each token, 0, 1, 2 ... (after what the cache holds) if left
                out.
            cache: keys and values of the tokens before these; this call adds its own.
        """
        return self.logits(self.model(tokens_BT, document_BT, positions_BT, cache))

    def logits(self, hidden_BTD: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Apply the output layer to the trunk's features, where not all positions are wanted."""
        if self.lm_head is None:
            logits_BTV = functional.linear(hidden_BTD, self.model.embed_tokens.weight)
        else:
            logits_BTV = self.lm_head(hidden_BTD)
        if self.config.logit_factor != 1:
            logits_BTV = logits_BTV * self.config.logit_factor
        if self.config.logit_softcap:
            logits_BTV = softcap(logits_BTV, self.config.logit_softcap)
        return logits_BTV

    def initialise(self, seed: int) -> Decoder:
        """Draw all weights from `seed`: the same on every device and for every world size."""
        initialise(self, self.config, seed)
        return self


class Trunk(nn.Module):
    """Embedding, blocks and the last norm: tokens to features."""

    def __init__(self, config: ModelConfig, attention: Attention) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.max_seq_len, config.d_model)
        self.layers = nn.ModuleList(
            Block(config, layer, attention) for layer in range(config.num_layers)
        )
        # With post-norm the last block has normed its output.
        self.norm = make_norm(config, used=config.norm_position != "post")

    def forward(
        self,
        tokens_BT: Tensor,
        document_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return features (B, T, D), normed and ready for the output layer."""
        if cache is not None and document_BT is not None:
            raise ConfigError("packed documents cannot be read into a cache; give each a row")
        config = self.config
        bounds_2BT = None if document_BT is None else document_bounds(document_BT)
        if positions_BT is None:
            positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
            if cache is not None:
                positions_BT = positions_BT + cache.length_B[:, None]
            if bounds_2BT is not None and config.positions in ("learned", "sinusoidal"):
                positions_BT = positions_BT - bounds_2BT[0]
        x_BTD = self.embed_tokens(tokens_BT)
        if config.embedding_multiplier != 1:
            x_BTD = x_BTD * config.embedding_multiplier
        if config.positions == "learned":
            x_BTD = x_BTD + self.embed_positions(positions_BT)
        elif config.positions == "sinusoidal":
            x_BTD = x_BTD + sinusoids(positions_BT, config, x_BTD.dtype)
        rotation = rope(positions_BT, config, x_BTD.dtype) if config.positions == "rope" else None
        for block in self.layers:
            x_BTD = block(x_BTD, rotation, bounds_2BT, positions_BT, cache)
        features_BTD: Tensor = self.norm(x_BTD)
        return features_BTD


class Block(nn.Module):
    """One layer: attention, then the feed-forward network, each added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int, attention: Attention) -> None:
        super().__init__()
        before, after = config.norm_position != "post", config.norm_position != "pre"
        self.is_post_norm = config.norm_position == "post"
        self.residual_multiplier = config.residual_multiplier
        self.input_layernorm = make_norm(config, used=before)
        self.self_attn = SelfAttention(config, layer, attention)
        self.attention_output_layernorm = make_norm(config, used=after)
        self.post_attention_layernorm = make_norm(config, used=before)  # Llama's name
        self.mlp = FeedForward(config)
        self.mlp_output_layernorm = make_norm(config, used=after)

    def forward(
        self,
        x_BTD: Tensor,
        rotation: Rotation | None,
        bounds_2BT: Tensor | None,
        positions_BT: Tensor,
        cache: Cache | None,
    ) -> Tensor:
        """Return the residual stream after this layer."""
        normed_BTD = self.input_layernorm(x_BTD)
        mixed_BTD = self.self_attn(normed_BTD, rotation, bounds_2BT, positions_BT, cache)
        x_BTD = self._add(x_BTD, mixed_BTD, self.attention_output_layernorm)
        fed_BTD = self.mlp(self.post_attention_layernorm(x_BTD))
        return self._add(x_BTD, fed_BTD, self.mlp_output_layernorm)

    def _add(self, x_BTD: Tensor, branch_BTD: Tensor, norm: nn.Module) -> Tensor:
        """Add a sub-layer's output: normed itself, or the sum normed (post-norm), or neither."""
        if not self.is_post_norm:
            branch_BTD = norm(branch_BTD)
        if self.residual_multiplier != 1:
            branch_BTD = branch_BTD * self.residual_multiplier
        sum_BTD = x_BTD + branch_BTD
        return norm(sum_BTD) if self.is_post_norm else sum_BTD


class SelfAttention(nn.Module):
    """Grouped-query attention: one key head serves all query heads (MQA), some (GQA) or one."""

    def __init__(self, config: ModelConfig, layer: int, attention: Attention) -> None:
        super().__init__()
        self.layer = layer
        self.attention = attention
        self.head_size = config.head_size
        self.has_rope = config.has_rope(layer)
        self.score_factor = config.score_factor
        self.pattern = Pattern(
            window=config.layer_window(layer), softcap=config.attention_softcap or None
        )
        kv_width = config.num_kv_heads * config.head_size
        self.q_proj = nn.Linear(config.d_model, config.d_model, bias=False)
        self.k_proj = nn.Linear(config.d_model, kv_width, bias=False)
        self.v_proj = nn.Linear(config.d_model, kv_width, bias=False)
        self.o_proj = nn.Linear(config.d_model, config.d_model, bias=False)
        self.q_norm = RMSNorm(config.head_size, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_size, config.norm_eps) if config.qk_norm else None

    def forward(
        self,
        x_BTD: Tensor,
        rotation: Rotation | None,
        bounds_2BT: Tensor | None,
        positions_BT: Tensor,
        cache: Cache | None,
    ) -> Tensor:
        """Mix values over the positions that each token sees."""
        query_BTHK = self.q_proj(x_BTD).unflatten(-1, (-1, self.head_size))
        key_BTGK = self.k_proj(x_BTD).unflatten(-1, (-1, self.head_size))
        value_BTGK = self.v_proj(x_BTD).unflatten(-1, (-1, self.head_size))
        if self.q_norm is not None and self.k_norm is not None:
            query_BTHK, key_BTGK = self.q_norm(query_BTHK), self.k_norm(key_BTGK)
        if rotation is not None and self.has_rope:
            query_BTHK, key_BTGK = rotate(query_BTHK, rotation), rotate(key_BTGK, rotation)
        if self.score_factor != 1:
            query_BTHK = query_BTHK * self.score_factor
        if cache is not None:
            key_BGSK, value_BGSK = cache.append(self.layer, key_BTGK, value_BTGK, positions_BT)
            out_BTHK = attend_to_cache(query_BTHK, key_BGSK, value_BGSK, positions_BT, self.pattern)
        else:
            backend = self.attention
            if backend == "auto":
                backend = "triton" if x_BTD.is_cuda else "reference"
            out_BTHK = flash_attention(
                query_BTHK, key_BTGK, value_BTGK, self.pattern, bounds_2BT, backend=backend
            )
        out_BTD: Tensor = self.o_proj(out_BTHK.flatten(-2))
        return out_BTD


class FeedForward(nn.Module):
    """down(act(gate(x)) * up(x)), or without a gate down(act(up(x)))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.feed_forward
        width, hidden = config.d_model, config.feed_forward_size
        self.gate_proj = nn.Linear(width, hidden, bias=False) if config.has_gate else None
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Transform each position by itself."""
        if self.gate_proj is None:
            hidden_BTF = self._activate(self.up_proj(x_BTD))
        else:
            hidden_BTF = self._activate(self.gate_proj(x_BTD)) * self.up_proj(x_BTD)
        out_BTD: Tensor = self.down_proj(hidden_BTF)
        return out_BTD

    def _activate(self, x_BTF: Tensor) -> Tensor:
        if self.kind == "swiglu":
            return functional.silu(x_BTF)
        if self.kind == "relu2":
            return functional.relu(x_BTF).square()
        return functional.gelu(x_BTF, approximate="tanh")


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the mean square taken in fp32. Source: Zhang and Sennrich (2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Scale each position to unit root mean square."""
        return functional.rms_norm(x_BTD, self.weight.shape, self.weight, self.eps)


class LayerNorm(RMSNorm):
    """(x - mean(x)) / deviation(x) * weight, without a bias. Source: Ba et al. (2016)."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Centre each position and scale it to unit variance."""
        return functional.layer_norm(x_BTD, self.weight.shape, self.weight, None, self.eps)


def make_norm(config: ModelConfig, *, used: bool) -> nn.Module:
    """Return the norm that the config asks for, or nothing where it is not used."""
    if not used:
        return nn.Identity()
    return (RMSNorm if config.norm == "rms" else LayerNorm)(config.d_model, config.norm_eps)


def softcap(x: Tensor, cap: float) -> Tensor:
    """Bend to within (-cap, cap), leaving what is small as it is. Source: Gemma 2 (2024), 2."""
    return cap * torch.tanh(x / cap)


def attend_to_cache(
    query_BTHK: Tensor,
    key_BGSK: Tensor,
    value_BGSK: Tensor,
    positions_BT: Tensor,
    pattern: Pattern,
) -> Tensor:
    """Attend to a cache whose slot s holds position s: a query sees slots up to its position.

    The query heads that share a key head become rows of one product, so the cache, which is what
    decoding waits for, is read once per key head and never expanded.
    """
    num_rows, num_tokens, _, head_size = query_BTHK.shape
    num_groups, num_slots = key_BGSK.shape[1:3]
    group_size = query_BTHK.shape[2] // num_groups
    query_BGRK = (
        query_BTHK.reshape(num_rows, num_tokens, num_groups, group_size, head_size)
        .permute(0, 2, 3, 1, 4)
        .flatten(2, 3)
    )
    slot_S = torch.arange(num_slots, device=query_BTHK.device)
    visible_BTS = slot_S <= positions_BT[..., None]
    if pattern.window is not None:
        visible_BTS = visible_BTS & (slot_S > positions_BT[..., None] - pattern.window)
    visible_B1RS = visible_BTS.repeat(1, group_size, 1)[:, None]
    if pattern.softcap is None:
        out_BGRK = functional.scaled_dot_product_attention(
            query_BGRK, key_BGSK, value_BGSK, attn_mask=visible_B1RS
        )
    else:  # torch's own has none
        score_BGRS = query_BGRK @ key_BGSK.mT / math.sqrt(head_size)
        score_BGRS = softcap(score_BGRS, pattern.softcap).masked_fill(~visible_B1RS, -math.inf)
        out_BGRK = score_BGRS.softmax(dim=-1) @ value_BGSK
    return (
        out_BGRK.reshape(num_rows, num_groups, group_size, num_tokens, head_size)
        .permute(0, 3, 1, 2, 4)
        .flatten(2, 3)
    )
