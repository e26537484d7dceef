"""Initial weights, and how learning rates follow the width (muP).

    matrix of a block    deviation 1/sqrt(fan in), less by sqrt(2 L) where 2 L of them add up
    embedding, output    deviation 1/sqrt(D); under muP 1/sqrt(base width), whatever the width

Under muP (Adam) features and their changes per step keep their size at any width: a block's
matrices learn at rate * base/D, embeddings, output and gains at the rate itself, and logits are
multiplied by base/D (ModelConfig.logit_factor). At the base width muP is the standard
parametrisation. It does not cover weight decay, which AdamW multiplies by the scaled rate.

Source: Yang et al., Tensor Programs V (2022), table 8; for depth Radford et al.,
    GPT-2 (2019), 2.3.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import nn

from lmpipe.model.config import ModelConfig

RESIDUAL_WRITERS = ("o_proj.weight", "down_proj.weight")
TABLES = ("embed_tokens.weight", "embed_positions.weight", "lm_head.weight")


def deviation(name: str, fan_in: int, config: ModelConfig) -> float:
    """Return the standard deviation that a matrix starts with."""
    if config.mup_base_width and name.endswith(TABLES):
        return 1 / math.sqrt(config.mup_base_width)
    scale = 1 / math.sqrt(fan_in)
    if config.initialisation == "depth_scaled" and name.endswith(RESIDUAL_WRITERS):
        scale /= math.sqrt(2 * config.num_layers)
    return scale


def learning_rate_scale(config: ModelConfig) -> Callable[[str], float] | None:
    """Return a parameter's learning-rate factor by its name, or None where all are 1."""
    if not config.mup_base_width:
        return None
    ratio = config.width_ratio
    return lambda name: 1 / ratio if name.endswith("_proj.weight") else 1.0


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Draw all weights from `seed`: the same on every device and for every world size.

    Each parameter has a generator of its own, seeded by its name, on the CPU in fp32. Matrices are
    normal, cut at three deviations; gains of norms start at 1.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
            continue
        scale = deviation(name, parameter.shape[1], config)
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
        drawn = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        nn.init.trunc_normal_(drawn, std=scale, a=-3 * scale, b=3 * scale, generator=generator)
        parameter.copy_(drawn)
