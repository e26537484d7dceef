"""`lmpipe bench flash_attention`: forward and backward beside torch's flash, cuDNN, FlexAttention.

TFLOP/s on random bf16 data, each the median of 20 calls timed by events. Only visible pairs of
query and key count as work, 4 K FLOPs forward and 10 K backward each, so a window or packed
documents that cost more than their area show as a lower rate. torch's flash and cuDNN take neither.

Kernels are compiled beforehand, by many processes that share the device; then nothing else runs.
`--tune` measures tiles instead: see _flash_attention_tuning.
"""

import itertools
import os
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.bench._flash_attention_timing import (
    BENCH,
    IMPLEMENTATIONS,
    Shape,
    compile_beforehand,
    is_able,
    measure,
    prepare,
)
from lmpipe.bench._flash_attention_tuning import tune
from lmpipe.errors import ConfigError


class Options(BaseModel):
    """What to measure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lengths: list[int] = Field([512, 1024, 2048, 4096, 8192, 16_384], description="Positions.")
    head_sizes: list[int] = Field([64, 128], description="Features of a head.")
    kinds: list[str] = Field(
        ["causal", "full", "gqa", "window", "packed"],
        description="causal and full; causal with 4 query heads a key head, window, documents.",
    )
    impls: list[str] = Field(list(IMPLEMENTATIONS), description="Whom to measure.")
    compilers: int = Field(
        max(1, (os.cpu_count() or 2) - 2), ge=1, description="Processes that compile beforehand."
    )
    tune: bool = Field(False, description="Find the best tiles and write them down.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return TFLOP/s by implementation and shape, or the tiles chosen."""
    chosen = Options.model_validate(options)
    if not torch.cuda.is_available():
        raise ConfigError("flash_attention is measured on a CUDA device; there is none here")
    if chosen.tune:
        return tune(chosen.head_sizes, chosen.compilers)
    shapes = [
        Shape(length, size, kind)
        for kind, size, length in itertools.product(chosen.kinds, chosen.head_sizes, chosen.lengths)
    ]
    pairs = [(impl, shape) for shape in shapes for impl in chosen.impls if is_able(impl, shape)]
    # cuDNN and flash come compiled. A shape's own first call, with what it stores, is no work.
    compile_beforehand(
        prepare, [pair for pair in pairs if pair[0] in ("lmpipe", "flex")], chosen.compilers
    )
    return [row for pair in pairs for row in rows_of(*pair, *measure(*pair))]


def rows_of(impl: str, shape: Shape, forward: float, backward: float) -> list[Row]:
    """Return the two rows of a measurement."""
    device = torch.cuda.get_device_name()
    return [
        row(BENCH, impl, str(shape), direction, rate, "TFLOP/s") | {"device": device}
        for direction, rate in (("forward", forward), ("backward", backward))
    ]
