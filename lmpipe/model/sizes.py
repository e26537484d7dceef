"""Named sizes from 1M to 70B, so that a model can be priced or built by one word.

The name rounds the number of all parameters. Below 1B the shapes are ours: heads of 32 to 64
features, a width of 32 to 64 per layer, a vocabulary that leaves most parameters to the blocks.
From 7B on they are published models, so that every figure can be looked up.
"""

from __future__ import annotations

from typing import Any

from lmpipe.errors import ConfigError
from lmpipe.model.config import ModelConfig


def _size(
    layers: int, d_model: int, heads: tuple[int, int], vocab: int, length: int, **more: Any
) -> ModelConfig:
    return ModelConfig(
        num_layers=layers,
        d_model=d_model,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        vocab_size=vocab,
        max_seq_len=length,
        **more,
    )


_UNTIED: dict[str, Any] = {"tied_embeddings": False}

SIZES: dict[str, ModelConfig] = {
    "1M": _size(4, 128, (4, 2), 2048, 256),
    "3M": _size(6, 192, (6, 2), 4096, 512),
    "10M": _size(6, 320, (5, 5), 8192, 1024),
    "30M": _size(9, 448, (7, 7), 16_384, 1024),
    "100M": _size(12, 768, (12, 4), 32_768, 2048),
    "300M": _size(24, 1024, (16, 8), 32_768, 2048),
    "1B": _size(18, 2048, (16, 16), 32_768, 2048),
    "3B": _size(28, 3072, (24, 8), 32_000, 4096, d_ff=8192),
    "7B": _size(32, 4096, (32, 32), 32_000, 4096, d_ff=11_008, **_UNTIED),  # Llama 2
    "8B": _size(
        32, 4096, (32, 8), 128_256, 8192, d_ff=14_336, rope_base=500_000.0, **_UNTIED
    ),  # Llama 3
    "13B": _size(40, 5120, (40, 40), 32_000, 4096, d_ff=13_824, **_UNTIED),  # Llama 2
    "34B": _size(
        48, 8192, (64, 8), 32_000, 16_384, d_ff=22_016, rope_base=1e6, **_UNTIED
    ),  # Code Llama
    "70B": _size(
        80, 8192, (64, 8), 128_256, 8192, d_ff=28_672, rope_base=500_000.0, **_UNTIED
    ),  # Llama 3
}


def size_named(name: str) -> ModelConfig:
    """Return the shape of a named size, such as 7B, in any case.

    Raises:
        ConfigError: no such size; the known ones are named.
    """
    config = SIZES.get(name.upper())
    if config is None:
        raise ConfigError(f"no size {name!r}; known are {', '.join(SIZES)}")
    return config
