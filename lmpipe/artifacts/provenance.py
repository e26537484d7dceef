"""Who made an artifact, with what: gathered in well under a second, never part of identity."""

import hashlib
import platform
import resource
import socket
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lmpipe.artifacts.manifest import Origin, Provenance

PACKAGES = (
    "lmpipe", "torch", "triton", "deepspeed", "datatrove", "fasttext-community", "kenlm",
    "trafilatura", "resiliparse", "fastwarc", "pyarrow", "lm-eval", "tokenizers", "tiktoken",
    "numpy", "prefect",
)  # fmt: skip


def now() -> str:
    """Return the time in ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def cpu_seconds() -> float:
    """Return the CPU time of this process, and of its children that have ended, and of theirs."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def gpu_hours(devices: list[str], seconds: float) -> float:
    """Return what the CUDA devices among `devices` (`cuda:0 NVIDIA H200`) were held for."""
    return sum(1 for device in devices if device.startswith("cuda")) * seconds / 3600


def provenance(
    started: str,
    seconds: float,
    *,
    devices: list[str],
    bytes_read: int,
    reason: str,
    origin: Origin | None = None,
    cpu: float | None = None,
) -> Provenance:
    """Describe the finished attempt; `cpu` is its CPU time in seconds."""
    commit, dirty = _git_state()
    return Provenance(
        started=started,
        finished=now(),
        seconds=round(seconds, 3),
        host=socket.gethostname(),
        command=sys.argv,
        git_commit=commit,
        git_dirty=dirty,
        python=platform.python_version(),
        packages=_packages(),
        devices=devices,
        gpu_hours=gpu_hours(devices, seconds),
        cpu_hours=None if cpu is None else round(cpu / 3600, 6),
        bytes_read=bytes_read,
        reason=reason,
        origin=origin or Origin(),
    )


@cache
def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@cache
def _git_state() -> tuple[str, str]:
    """Return the commit of lmpipe's own checkout and a hash of its uncommitted changes."""
    folder = Path(__file__).parent
    try:
        run = subprocess.run
        commit = run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, check=True)
        diff = run(["git", "diff", "HEAD"], cwd=folder, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "", ""
    dirty = hashlib.sha256(diff.stdout).hexdigest()[:12] if diff.stdout else ""
    return commit.stdout.decode().strip(), dirty
