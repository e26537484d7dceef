"""The language model: a Llama-style decoder, top to bottom in one file.

    x = embed(tokens)
    for each layer:  x = x + attention(norm(x));  x = x + feed_forward(norm(x))
    logits = norm(x) @ output.T

Pre-norm keeps the residual path free of norms, so depth trains without tricks; RMSNorm is LayerNorm
without mean and bias (the same loss, less data moved); SwiGLU and no biases as in PaLM and Llama.
Modules and parameters carry the names of Hugging Face's Llama, so a checkpoint is a plain
safetensors file (huggingface.py). Alternative not taken: wrapping LlamaForCausalLM itself, which
saves this file and costs the kernels, the packing mask and every reader a library of forty files.

There are no buffers: RoPE's angles are computed in fp32 at each forward pass (once for all layers),
so nothing is lost when a model is built on the meta device or cast to bf16.
"""

from __future__ import annotations

import hashlib
import math
from typing import Literal, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lmpipe.errors import ConfigError
from lmpipe.kernels.flash_attention import Pattern, document_bounds, flash_attention
from lmpipe.model.config import ModelConfig

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
                numbers a document; attention never crosses documents. Positions need not restart
                with them: RoPE depends on differences only.
            positions_BT: position of each token, 0, 1, 2 ... (after what the cache holds) if left
                out.
            cache: keys and values of the tokens before these; this call adds its own.
        """
        return self.logits(self.model(tokens_BT, document_BT, positions_BT, cache))

    def logits(self, hidden_BTD: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Apply the output layer to the trunk's features, where not all positions are wanted."""
        if self.lm_head is not None:
            logits_BTV: Tensor = self.lm_head(hidden_BTD)
            return logits_BTV
        return functional.linear(hidden_BTD, self.model.embed_tokens.weight)

    @torch.no_grad()
    def initialise(self, seed: int) -> Decoder:
        """Draw all weights from `seed`: the same on every device and for every world size.

        Each parameter has a generator of its own, seeded by its name, on the CPU in fp32. Matrices
        are normal with deviation 1/sqrt(fan in), cut at three deviations, so that activations keep
        their scale at any width; the matrices that write to the residual stream are smaller by
        sqrt(2 L), since 2 L of them add up (GPT-2).
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
                continue
            deviation = 1 / math.sqrt(parameter.shape[1])
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                deviation /= math.sqrt(2 * self.config.num_layers)
            digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
            drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
            nn.init.trunc_normal_(
                drawn, std=deviation, a=-3 * deviation, b=3 * deviation, generator=generator
            )
            parameter.copy_(drawn)
        return self


class Trunk(nn.Module):
    """Embedding, blocks and the last norm: tokens to features."""

    def __init__(self, config: ModelConfig, attention: Attention) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(
            Block(config, layer, attention) for layer in range(config.num_layers)
        )
        self.norm = RMSNorm(config.d_model, config.norm_eps)

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
        if positions_BT is None:
            positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
            if cache is not None:
                positions_BT = positions_BT + cache.length_B[:, None]
        x_BTD = self.embed_tokens(tokens_BT)
        rotation = rope(positions_BT, self.config.head_size, self.config.rope_base, x_BTD.dtype)
        bounds_2BT = None if document_BT is None else document_bounds(document_BT)
        for block in self.layers:
            x_BTD = block(x_BTD, rotation, bounds_2BT, positions_BT, cache)
        features_BTD: Tensor = self.norm(x_BTD)
        return features_BTD


class Block(nn.Module):
    """One layer: attention, then the feed-forward network, each added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int, attention: Attention) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.self_attn = SelfAttention(config, layer, attention)
        self.post_attention_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.mlp = SwiGLU(config.d_model, config.feed_forward_size)

    def forward(
        self,
        x_BTD: Tensor,
        rotation: tuple[Tensor, Tensor],
        bounds_2BT: Tensor | None,
        positions_BT: Tensor,
        cache: Cache | None,
    ) -> Tensor:
        """Return the residual stream after this layer."""
        normed_BTD = self.input_layernorm(x_BTD)
        x_BTD = x_BTD + self.self_attn(normed_BTD, rotation, bounds_2BT, positions_BT, cache)
        fed_BTD: Tensor = self.mlp(self.post_attention_layernorm(x_BTD))
        return x_BTD + fed_BTD


class SelfAttention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig, layer: int, attention: Attention) -> None:
        super().__init__()
        self.layer = layer
        self.attention = attention
        self.head_size = config.head_size
        kv_width = config.num_kv_heads * config.head_size
        self.q_proj = nn.Linear(config.d_model, config.d_model, bias=False)
        self.k_proj = nn.Linear(config.d_model, kv_width, bias=False)
        self.v_proj = nn.Linear(config.d_model, kv_width, bias=False)
        self.o_proj = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(
        self,
        x_BTD: Tensor,
        rotation: tuple[Tensor, Tensor],
        bounds_2BT: Tensor | None,
        positions_BT: Tensor,
        cache: Cache | None,
    ) -> Tensor:
        """Mix values over the positions that each token sees."""
        query_BTHK = rotate(self.q_proj(x_BTD).unflatten(-1, (-1, self.head_size)), rotation)
        key_BTGK = rotate(self.k_proj(x_BTD).unflatten(-1, (-1, self.head_size)), rotation)
        value_BTGK = self.v_proj(x_BTD).unflatten(-1, (-1, self.head_size))
        if cache is not None:
            key_BGSK, value_BGSK = cache.append(self.layer, key_BTGK, value_BTGK, positions_BT)
            out_BTHK = attend_to_cache(query_BTHK, key_BGSK, value_BGSK, positions_BT)
        else:
            backend = self.attention
            if backend == "auto":
                backend = "triton" if x_BTD.is_cuda else "reference"
            out_BTHK = flash_attention(
                query_BTHK, key_BTGK, value_BTGK, Pattern(causal=True), bounds_2BT, backend=backend
            )
        out_BTD: Tensor = self.o_proj(out_BTHK.flatten(-2))
        return out_BTD


class SwiGLU(nn.Module):
    """Feed-forward network with a gate: down(silu(gate(x)) * up(x))."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Transform each position by itself."""
        hidden_BTF = functional.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD)
        out_BTD: Tensor = self.down_proj(hidden_BTF)
        return out_BTD


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the mean square taken in fp32. Source: Zhang and Sennrich (2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Scale each position to unit root mean square."""
        return functional.rms_norm(x_BTD, self.weight.shape, self.weight, self.eps)


def rope(
    positions_BT: Tensor, head_size: int, base: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of RoPE's angles, each (B, T, 1, K/2).

    Pair i of a head turns by position * base^(-2i/K). Angles are taken in fp32: bf16 holds integers
    exactly up to 256 only, so positions beyond would fall together.

    Source: Su et al., RoFormer (2021), section 3.2.2.
    """
    pair = torch.arange(0, head_size, 2, device=positions_BT.device, dtype=torch.float32)
    frequency = base ** (-pair / head_size)
    angle_BT1K = positions_BT[..., None, None].float() * frequency
    return angle_BT1K.cos().to(dtype), angle_BT1K.sin().to(dtype)


def rotate(x_BTHK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (x_i, x_{i + K/2}) of each head, the pairing of Hugging Face's checkpoints."""
    cos_BT1K, sin_BT1K = rotation
    first_BTHK, second_BTHK = x_BTHK.chunk(2, dim=-1)
    return torch.cat(
        (
            first_BTHK * cos_BT1K - second_BTHK * sin_BT1K,
            second_BTHK * cos_BT1K + first_BTHK * sin_BT1K,
        ),
        dim=-1,
    )


def attend_to_cache(
    query_BTHK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, positions_BT: Tensor
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
    visible_B1RS = visible_BTS.repeat(1, group_size, 1)[:, None]
    out_BGRK = functional.scaled_dot_product_attention(
        query_BGRK, key_BGSK, value_BGSK, attn_mask=visible_B1RS
    )
    return (
        out_BGRK.reshape(num_rows, num_groups, group_size, num_tokens, head_size)
        .permute(0, 3, 1, 2, 4)
        .flatten(2, 3)
    )
