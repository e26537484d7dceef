"""`lmpipe bench collectives`: effective bandwidth of collectives, on gloo and on NCCL.

Counted as nccl-tests does: a size is the larger of what a rank gives and gets in all; algorithm
bandwidth is size / time; bus bandwidth multiplies by what a perfect ring moves per byte, so that it
can be compared with the links' speed whatever the operation and the number of ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.model.communication import Collective, bus_bandwidth

if TYPE_CHECKING:
    from torch import Tensor

BENCH = "collectives"


class Options(BaseModel):
    """What to measure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ranks: int = Field(2, ge=2, le=1024, description="Ranks on this machine; NCCL: one per GPU.")
    sizes: list[int] = Field(
        [2**10, 2**16, 2**20, 2**24, 2**26], description="Sizes in bytes.", min_length=1
    )
    repeats: int = Field(10, ge=1, description="Timed calls of each; their mean counts.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return time and bandwidths of each collective, size and backend."""
    import torch

    from lmpipe.parallelism.ranks import on_ranks

    settings = Options.model_validate(options)
    backends = ["gloo"] + (["nccl"] if torch.cuda.device_count() >= settings.ranks else [])
    rows: list[Row] = []
    for backend in backends:
        times = on_ranks(measure, settings.ranks, backend, settings, backend=backend)
        for (name, size), seconds in times[0].items():
            case = f"{name} {size} B, {settings.ranks} ranks"
            bus = bus_bandwidth(name, size, seconds, settings.ranks)
            device = torch.cuda.get_device_name() if backend == "nccl" else "cpu"
            made = [
                row(BENCH, backend, case, "time", seconds * 1e6, "us"),
                row(BENCH, backend, case, "algorithm bandwidth", size / seconds / 1e9, "GB/s"),
                row(BENCH, backend, case, "bus bandwidth", bus / 1e9, "GB/s"),
            ]
            rows += [one | {"device": device} for one in made]
    return rows


def measure(backend: str, settings: Options) -> dict[tuple[Collective, int], float]:
    """Return the mean seconds of each collective and size; runs on every rank.

    Sizes are rounded up so that every rank has the same number of fp32 elements.
    """
    import torch
    import torch.distributed as dist

    world = dist.get_world_size()
    device = torch.device("cuda" if backend == "nccl" else "cpu")
    found: dict[tuple[Collective, int], float] = {}
    for size in settings.sizes:
        share = -(-size // (4 * world))
        whole, part = (torch.ones(n, device=device) for n in (share * world, share))
        for name, call in _calls(whole, part, world).items():
            found[name, whole.nbytes] = _seconds(call, settings.repeats, device)
            whole.fill_(1.0)  # sums of sums would overflow
    return found


def _calls(whole: Tensor, part: Tensor, world: int) -> dict[Collective, Callable[[], Any]]:
    import torch
    import torch.distributed as dist

    other = torch.empty_like(whole)
    shares = list(whole.chunk(world))  # views: what is gathered lands in `whole`
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather(shares, part),
        "reduce_scatter": lambda: dist.reduce_scatter(part, shares),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }


def _seconds(call: Callable[[], Any], repeats: int, device: Any) -> float:
    import torch
    import torch.distributed as dist

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(2):
        call()
    wait()
    dist.barrier()
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    return (time.perf_counter() - started) / repeats
