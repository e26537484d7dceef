"""Ranks on one machine for the references and the bench of collectives.

Stages start their ranks by lmpipe/training/launch.py, which streams logs and ends them in order;
here a function runs on every rank and its results come back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def on_ranks(
    function: Callable[..., Any], world_size: int, *arguments: Any, backend: str = "gloo"
) -> list[Any]:
    """Call a function of a module on every rank of a new process group; return the results.

    Raises:
        torch.multiprocessing.ProcessRaisedException: a rank failed; the others are ended.
    """
    with tempfile.TemporaryDirectory(prefix="lmpipe-ranks-") as folder:
        spawn(  # type: ignore[no-untyped-call]
            _rank, (world_size, folder, backend, function, arguments), nprocs=world_size
        )
        return [torch.load(Path(folder) / f"result-{rank}") for rank in range(world_size)]


def _rank(
    rank: int,
    world_size: int,
    folder: str,
    backend: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world_size)
    try:
        torch.save(function(*arguments), Path(folder) / f"result-{rank}")
    finally:
        dist.destroy_process_group()
