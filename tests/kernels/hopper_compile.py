"""Compile the Gluon kernels for Hopper on a machine without a GPU; run as a program.

Prints a JSON line for each kernel: registers, bytes spilled by a thread, and what ptxas warns of.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from lmpipe.kernels import flash_attention_hopper as forward
from lmpipe.kernels import flash_attention_hopper_backward as backward
from lmpipe.kernels.flash_attention_settings import Tile, table

PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
HEADS, LENGTH = 4, 2048


class Hopper:
    """The little that compiling asks of a driver."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def descriptor(rows: int, head_size: int) -> TensorDescriptor:
    x = torch.empty(2, HEADS, LENGTH, head_size, dtype=torch.bfloat16)
    box = [1, 1, rows, head_size]
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.float16)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), box, layout)


def compiled(direction: str, head_size: int, tile: Tile, mask: str) -> Any:
    """Return a kernel compiled as flash_attention_launch asks for it; causal, lengths even."""
    bounds = counter = torch.empty(4, dtype=torch.int32)
    out, row = torch.empty(8, dtype=torch.bfloat16), torch.empty(8)
    strides = (HEADS * LENGTH * head_size, HEADS * head_size, head_size)
    numbers = (2 * LENGTH, LENGTH, LENGTH, HEADS, 1, 1024, 0.125)
    options = {
        "CAUSAL": True, "WINDOWED": mask == "window", "PACKED": mask == "packed", "RAGGED": False,
        "K": head_size, "KP": head_size, "num_warps": tile.warps, "STAGES": tile.stages,
        "maxnreg" if tile.kernel == "hopper_small" else "REGISTERS": tile.registers,
    }  # fmt: skip
    plan = (64, 16, 4)
    own, keys, queries = (descriptor(n, head_size) for n in (64, tile.keys, tile.queries))
    if direction == "forward":
        arguments = (own, keys, keys, bounds, out, row)
        if tile.kernel == "hopper_small":
            return forward.small_forward_kernel.warmup(
                *arguments, *strides, *numbers, **options, BLOCK_S=tile.keys, grid=(1,)
            )
        return forward.forward_kernel.warmup(
            *arguments, counter, *strides, *plan, *numbers, **options, BLOCK_S=tile.keys, grid=(1,)
        )
    if direction == "grad_key_value":
        return backward.grad_key_value_kernel.warmup(
            queries, own, own, queries, bounds, row, row, out, out, counter, *strides, *plan,
            *numbers, **options, BLOCK=tile.queries, grid=(1,),
        )  # fmt: skip
    return backward.grad_query_kernel.warmup(
        own, keys, keys, own, bounds, row, row, out, counter, *strides, *plan, *numbers, **options,
        BLOCK=tile.keys, grid=(1,),
    )  # fmt: skip


def assembled(ptx: str) -> dict[str, Any]:
    """Return what ptxas says of a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [str(PTXAS), "-v", "-arch=sm_90a", str(path), "-o", f"{path}.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = re.search(r"Used (\d+) registers", said)
    assert found is not None, said
    spills = sum(int(number) for number in re.findall(r"(\d+) bytes spill", said))
    warnings = [line for line in said.splitlines() if "warning" in line.lower() or "C75" in line]
    return {"registers": int(found[1]), "spilled_bytes": spills, "warnings": warnings}


def main() -> None:
    """Compile each kernel once: its largest head size, over packed documents, with its tile."""
    triton.runtime.driver.set_active(Hopper())
    chosen: dict[tuple[str, str], tuple[int, Tile]] = {}
    for direction, by_size in table()["9.0"].items():
        for size, entries in by_size.items():
            for mask, _, kernel, numbers in entries:
                if kernel != "triton" and mask in ("packed", None):
                    chosen[direction, kernel] = int(size), Tile(*numbers, kernel=kernel)
    for (direction, kernel), (size, tile) in chosen.items():
        made = compiled(direction, size, tile, "packed")
        name = f"{direction} {kernel}"
        print(json.dumps({"kernel": name, **assembled(made.asm["ptx"])}), flush=True)


if __name__ == "__main__":
    main()
