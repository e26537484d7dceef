"""Where a token stands, told to the model: RoPE with its stretched forms, and sinusoids to add.

RoPE turns pair i of a head's query and key by position * base^(-2i/K), so a score depends on the
distance alone. A model trained at length T reads on to s T after

    linear   all frequencies / s: positions squeezed into the trained range
    NTK      base * s^(K/(K-2)): the slowest pair is squeezed by s, the fastest left as it was
    YaRN     pairs that turn often within T left, those that never turn once squeezed, a ramp
             between; scores sharpened by (0.1 ln s + 1)^2

Nothing here is a parameter or a buffer: angles are taken in fp32 at each forward pass, since bf16
holds integers exactly up to 256 only and positions beyond would fall together.

Source: Su et al., RoFormer (2021), 3.2.2; Chen et al., Position Interpolation (2023), 2; Peng et
al., YaRN (2023), 3.1-3.4; Vaswani et al., Attention Is All You Need (2017), 3.5.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmpipe.model.config import ModelConfig

YARN_FAST, YARN_SLOW = 32.0, 1.0  # turns within the trained length: more is left, fewer is squeezed


def rope(positions_BT: Tensor, config: ModelConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin of RoPE's angles, each (B, T, 1, K/2)."""
    frequency = rope_frequencies(config, positions_BT.device)
    angle_BT1K = positions_BT[..., None, None].float() * frequency
    cos_BT1K, sin_BT1K = angle_BT1K.cos(), angle_BT1K.sin()
    if config.rope_scaling == "yarn":
        amplitude = 0.1 * math.log(config.rope_scaling_factor) + 1
        cos_BT1K, sin_BT1K = cos_BT1K * amplitude, sin_BT1K * amplitude
    return cos_BT1K.to(dtype), sin_BT1K.to(dtype)


def rope_frequencies(config: ModelConfig, device: torch.device | str = "cpu") -> Tensor:
    """Return by how much each of a head's K/2 pairs turns per position, in fp32."""
    size, factor = config.head_size, config.rope_scaling_factor
    pair = torch.arange(0, size, 2, device=device, dtype=torch.float32)
    frequency: Tensor = config.rope_base ** (-pair / size)
    match config.rope_scaling:
        case "linear":
            return frequency / factor
        case "ntk":
            return ntk_base(config) ** (-pair / size)
        case "yarn":
            squeezed = yarn_ramp(config, device)
            return frequency * (1 - squeezed) + frequency / factor * squeezed
    return frequency


def ntk_base(config: ModelConfig) -> float:
    """Return the base with which plain RoPE is NTK-aware RoPE."""
    size = config.head_size
    return float(config.rope_base * config.rope_scaling_factor ** (size / (size - 2)))


def yarn_ramp(config: ModelConfig, device: torch.device | str = "cpu") -> Tensor:
    """Return how much of each pair's frequency is squeezed, from 0 (fast pairs) to 1 (slow)."""
    size, trained = config.head_size, config.max_seq_len / config.rope_scaling_factor

    def pair_that_turns(times: float) -> float:
        return size * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(config.rope_base))

    low = max(math.floor(pair_that_turns(YARN_FAST)), 0)
    high = min(math.ceil(pair_that_turns(YARN_SLOW)), size - 1)
    pair = torch.arange(size // 2, device=device, dtype=torch.float32)
    return ((pair - low) / max(high - low, 0.001)).clamp(0, 1)


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


def sinusoids(positions_BT: Tensor, config: ModelConfig, dtype: torch.dtype) -> Tensor:
    """Return (B, T, D): sines, then cosines, of geometric frequencies, as long as a token's row.

    Vaswani et al. multiply the embedding by sqrt(D) instead; the ratio of the two is the same.
    """
    pair = torch.arange(0, config.d_model, 2, device=positions_BT.device, dtype=torch.float32)
    angle_BTD = positions_BT[..., None].float() * 10_000.0 ** (-pair / config.d_model)
    length = math.sqrt(2 / (config.mup_base_width or config.d_model))
    return (torch.cat((angle_BTD.sin(), angle_BTD.cos()), dim=-1) * length).to(dtype)
