"""Which GPUs there are, without torch, whose import takes seconds."""

import os
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")


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
