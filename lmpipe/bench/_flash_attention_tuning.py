"""`lmpipe bench flash_attention --tune`: the fastest tile by kernel, head size, mask and length.

Every candidate of TILES is compiled beforehand, by many processes, and then timed alone; this
device's part of lmpipe/kernels/flash_attention_settings.json is rewritten. A direction is timed
with the tiles that the table holds for the others: backward always runs both of its kernels.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lmpipe.bench import Row, row
from lmpipe.bench._flash_attention_timing import BENCH, Shape, compile_beforehand, prepare, seconds
from lmpipe.kernels import flash_attention_settings as settings
from lmpipe.kernels.flash_attention_launch import HOPPER_KERNELS

Numbers = tuple[int, int, int, int, int | None]
Candidate = tuple[settings.Kernel, Numbers]

_BACKWARD: list[Numbers] = [
    *((64, 64, 4, stages, registers) for stages in (2, 3) for registers in (None, 168)),
    (32, 64, 4, 2, None),
    (64, 32, 4, 2, None),
]
# Candidates: queries, keys, warps, stages, registers. What does not fit the device is passed over.
TILES: dict[settings.Kernel, dict[settings.Direction, list[Numbers]]] = {
    "triton": {
        "forward": [
            *((64, 64, 4, stages, registers) for stages in (2, 3) for registers in (None, 168)),
            *((64, 128, 4, 2, registers) for registers in (None, 168)),
        ],
        "grad_key_value": _BACKWARD,
        "grad_query": _BACKWARD,
    },
    "hopper": {
        "forward": [(128, s, 4, n, 240) for s, n in ((128, 2), (64, 3), (64, 4))],
        "grad_key_value": [(t, 128, 4, n, 240) for t, n in ((64, 2), (64, 3), (32, 3), (32, 4))],
        "grad_query": [(128, s, 4, n, 240) for s, n in ((128, 2), (128, 3), (64, 3), (64, 4))],
    },
    "hopper_small": {
        "forward": [
            *((64, 64, 4, n, registers) for n in (1, 2) for registers in (128, 168, 240)),
            *((64, 128, 4, n, registers) for n in (1, 2) for registers in (168, 240)),
        ],
        "grad_key_value": [],
        "grad_query": [],
    },
}
KERNELS: tuple[settings.Kernel, ...] = ("triton", *HOPPER_KERNELS)
KINDS: dict[settings.Mask, str] = {"dense": "causal", "window": "window", "packed": "packed"}
# The longest length of an entry, and the length that stands for it.
LENGTHS: list[tuple[int | None, int]] = [(1024, 1024), (4096, 2048), (None, 8192)]


def tune(head_sizes: list[int], num_compilers: int) -> list[Row]:
    """Time every candidate, write the best down and return them."""
    table = settings.table()
    measured = table.setdefault(_device(), _unmeasured())
    cases = list(itertools.product(settings.DEFAULTS, head_sizes))
    jobs = [
        (direction, Shape(LENGTHS[0][1], size, kind), candidate)
        for direction, size in cases
        for kind, candidate in itertools.product(KINDS.values(), candidates(direction))
    ]
    compile_beforehand(run_once, jobs, num_compilers)
    rows: list[Row] = []
    for direction, size in cases:
        entries: list[settings.Entry] = []
        for (mask, kind), (longest, length) in itertools.product(KINDS.items(), LENGTHS):
            shape = Shape(length, size, kind)
            timed = [(_time(direction, shape, one), *one) for one in candidates(direction)]
            timed.sort(key=lambda one: one[0])
            # Where the fastest takes some inputs only, the fastest that takes all stands behind it.
            for_all = next(one for one in timed if one[1] == "triton")
            for time, kernel, numbers in dict.fromkeys((timed[0], for_all)):
                entries.append((mask, longest, kernel, numbers))
                case = f"{direction} {shape}, {kernel} {numbers}"
                rows.append(row(BENCH, "lmpipe", case, "time", time * 1e3, "ms"))
        measured[direction][str(size)] = entries
        settings.write(table)  # what is found stays found
    return rows


def candidates(direction: settings.Direction) -> list[Candidate]:
    """Return the tiles of a direction, of the kernels that this Triton has."""
    return [(kernel, numbers) for kernel in KERNELS for numbers in TILES[kernel][direction]]


def run_once(direction: settings.Direction, shape: Shape, candidate: Candidate) -> None:
    """Run forward and backward with a tile that the table does not have."""
    with _first(direction, shape.head_size, candidate):
        prepare("lmpipe", shape)


def _time(direction: settings.Direction, shape: Shape, candidate: Candidate) -> float:
    """Return the seconds of a call; infinity where the candidate does not run."""
    with _first(direction, shape.head_size, candidate):
        try:
            forward, backward = prepare("lmpipe", shape)
            return seconds(forward if direction == "forward" else backward, repeats=10)
        except Exception as error:  # out of registers or shared memory; errors vary by version
            print(f"{direction} {shape} {candidate}: {type(error).__name__}")
            return float("inf")


@contextmanager
def _first(direction: settings.Direction, head_size: int, candidate: Candidate) -> Iterator[None]:
    """Put a candidate before the table's own entries for a while."""
    tiles = settings.table().setdefault(_device(), _unmeasured())[direction]
    before = tiles[str(head_size)]
    tiles[str(head_size)] = [(None, None, *candidate), *before]
    try:
        yield
    finally:
        tiles[str(head_size)] = before


def _device() -> str:
    return "{}.{}".format(*torch.cuda.get_device_capability())


def _unmeasured() -> dict[settings.Direction, settings.Rows]:
    return {
        direction: {str(size): [(None, None, "triton", tile[:5])] for size, tile in tiles.items()}
        for direction, tiles in settings.DEFAULTS.items()
    }
