"""Which GPUs there are, without torch, whose import takes seconds.

One answer for all: a stage on the GPU, the slots it takes, the pool its run goes to. A machine that
has GPUs and a torch without CUDA fails aloud, where asking torch would go on in silence on the CPU.
"""

import os
from pathlib import Path
from typing import Literal

from lmpipe.runtime import Runtime

DEVICES = Path("/dev")
DRIVER = Path("/proc/driver/nvidia/gpus")


def resolve_device(runtime: Runtime) -> Literal["cuda", "cpu"]:
    """Return where tensors of a stage live."""
    if runtime.device != "auto":
        return runtime.device
    return "cuda" if num_gpus() > 0 else "cpu"


def num_gpus(devices: Path = DEVICES) -> int:
    """Count the NVIDIA GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(list(devices.glob("nvidia[0-9]*")))


def gpu_names(driver: Path = DRIVER) -> list[str]:
    """Return the NVIDIA GPUs that this process may use, such as `cuda:0 NVIDIA H200`.

    The driver lists them by bus; CUDA_VISIBLE_DEVICES picks by number, as CUDA does under
    CUDA_DEVICE_ORDER=PCI_BUS_ID. Where GPUs of one machine differ and that order is not set, a
    name may belong to its neighbour.
    """
    models = []
    for path in sorted(driver.glob("*/information")):
        lines = dict(line.partition(":")[::2] for line in path.read_text().splitlines())
        models.append(lines.get("Model", "").strip())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        numbers = [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
        picked = [int(name) if name.isdigit() else index for index, name in enumerate(numbers)]
        models = [models[number] for number in picked if number < len(models)]
    return [f"cuda:{number} {model}".strip() for number, model in enumerate(models)]
