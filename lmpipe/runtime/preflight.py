"""What a Runtime asks of this machine that it cannot give, found before anything runs.

A stage would find each of these itself, after the stages before it have run for hours. A plan for
another machine asks none of this: only the machine that runs a stage can answer.
"""

import importlib.util
import os
import shutil
from pathlib import Path

from lmpipe.errors import ConfigError
from lmpipe.runtime import Runtime
from lmpipe.runtime.devices import num_gpus, resolve_device


def check_machine(runtime: Runtime) -> None:
    """Refuse a scratch folder that cannot be written and an executor that is not installed.

    Raises:
        ConfigError: names the key, what it got and the remedy.
    """
    if runtime.scratch:
        scratch = Path(runtime.scratch).absolute()
        there = next(path for path in (scratch, *scratch.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ConfigError(
                f"runtime.scratch={runtime.scratch}: {there} is no folder that may be written; "
                "name another, or leave it empty for the system's own"
            )
    if runtime.executor == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "runtime.executor=ray, but ray is not installed; install it, or use local"
        )
    if runtime.executor == "slurm":
        if not runtime.scratch or not runtime.slurm_partition:
            raise ConfigError(
                "runtime.executor=slurm needs runtime.slurm_partition, and runtime.scratch on a"
                " file system that the nodes share: the jobs read their work there"
            )
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "runtime.executor=slurm, but there is no command sbatch here; start the run on a "
                "node of the cluster that has it, or use local"
            )


def check_device(runtime: Runtime) -> None:
    """Refuse CUDA without a GPU, and Triton's kernels without CUDA.

    Raises:
        ConfigError: names the key, what it got and the remedy.
    """
    if runtime.device == "cuda" and num_gpus() == 0:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "there is no /dev/nvidia0" if visible is None else f"CUDA_VISIBLE_DEVICES={visible!r}"
        raise ConfigError(
            f"runtime.device=cuda, but this machine has no GPU ({why}); use auto or cpu, or run "
            "where there is one"
        )
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if runtime.attention == "triton" and resolve_device(runtime) == "cpu" and not is_interpreted:
        raise ConfigError(
            "runtime.attention=triton needs a GPU, and the device is the CPU; use auto or reference"
        )
