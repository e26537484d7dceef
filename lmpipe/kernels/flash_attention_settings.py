"""Tile sizes of the attention kernels, by device, head size, length and mask, from a table.

A table instead of autotuning at run time: the same kernel, and so the same bits, every run and on
every rank, and no search in the first step. flash_attention_settings.json holds what was measured;
`lmpipe bench flash_attention --tune` measures again and rewrites this device's part. A device
without an entry gets DEFAULTS, which fit 99 KB of shared memory (A40, RTX 30 and 40).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import torch

TABLE = Path(__file__).with_name("flash_attention_settings.json")

T = TypeVar("T")

Direction = Literal["forward", "grad_key_value", "grad_query"]
# "triton": any GPU. "hopper": two warpgroups and a copying warp. "hopper_small": one warpgroup.
Kernel = Literal["triton", "hopper", "hopper_small"]
# What a row sees: all of one side ("dense", causal or not), or a narrow band. Short walks want
# small tiles and several blocks an SM, long ones large tiles.
Mask = Literal["dense", "window", "packed"]


class Tile(NamedTuple):
    """Block shape and launch of one kernel."""

    queries: int
    keys: int
    warps: int
    stages: int
    # Most registers a thread may take, None for any. 168 let three blocks of 4 warps share an SM.
    registers: int | None = None
    kernel: Kernel = "triton"


# Padded head size -> tile; the first that is at least as large counts.
DEFAULTS: dict[Direction, dict[int, Tile]] = {
    "forward": {128: Tile(64, 64, 4, 2), 256: Tile(64, 32, 8, 2)},
    "grad_key_value": {64: Tile(64, 64, 4, 2), 128: Tile(64, 64, 4, 1), 256: Tile(32, 32, 8, 1)},
    "grad_query": {64: Tile(64, 64, 4, 2), 128: Tile(64, 64, 4, 1), 256: Tile(32, 32, 8, 1)},
}
# fp32 products run on the scalar units, since tf32 would lose 13 bits. They are unrolled whole:
# 32x32 at K=256 spilled 19 KB a thread and compiled for minutes.
FP32 = {64: Tile(32, 32, 4, 1), 256: Tile(16, 16, 4, 1)}


def tile(
    direction: Direction,
    *,
    padded_head_size: int,
    length: int,
    mask: Mask,
    dtype: torch.dtype,
    capability: tuple[int, int],
    kernels: Collection[Kernel],
) -> Tile:
    """Return the tile of a kernel that walks `length` positions; one of `kernels` is taken."""
    if dtype == torch.float32:
        return _at_least(FP32, padded_head_size)
    measured = table().get("{}.{}".format(*capability))
    if measured is None:
        return _at_least(DEFAULTS[direction], padded_head_size)
    by_size = {int(size): rows for size, rows in measured[direction].items()}
    return next(
        Tile(*numbers, kernel=kernel)
        for masks, longest, kernel, numbers in _at_least(by_size, padded_head_size)
        if masks in (mask, None) and (longest is None or length <= longest) and kernel in kernels
    )


def _at_least(by_size: dict[int, T], size: int) -> T:
    return by_size[min(known for known in by_size if known >= size)]


# Mask and longest length (None: any), kernel, the numbers of a Tile.
Entry = tuple[Mask | None, int | None, Kernel, tuple[int, int, int, int, int | None]]
# Padded head size -> entries; the first that fits counts.
Rows = dict[str, list[Entry]]


@functools.cache
def table() -> dict[str, dict[Direction, Rows]]:
    """Return what was measured, by compute capability."""
    measured: dict[str, dict[Direction, Rows]] = json.loads(TABLE.read_text())
    return measured


def write(measured: dict[str, dict[Direction, Rows]]) -> None:
    """Write the table, an entry a line."""
    text = json.dumps(measured, indent=2)
    # Entries end three lists deep: join what indent put on lines of its own.
    text = re.sub(
        r"\[\s+(null|\"\w+\"),\s+(null|\d+),\s+(\"\w+\"),\s+\[([^\]]+)\]\s+\]", _entry, text
    )
    TABLE.write_text(text + "\n")


def _entry(match: re.Match[str]) -> str:
    numbers = ", ".join(match[4].replace(",", " ").split())
    return f"[{match[1]}, {match[2]}, {match[3]}, [{numbers}]]"
