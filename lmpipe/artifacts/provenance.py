"""Who made an artifact, with what: gathered in well under a second, never part of identity."""

import hashlib
import platform
import socket
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lmpipe.artifacts.manifest import Provenance

PACKAGES = (
    "lmpipe", "torch", "triton", "deepspeed", "datatrove", "fasttext-community", "kenlm",
    "trafilatura", "resiliparse", "fastwarc", "pyarrow", "lm-eval", "tokenizers", "tiktoken",
    "numpy", "prefect",
)  # fmt: skip


def now() -> str:
    """Return the time in ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def provenance(
    started: str, seconds: float, *, devices: list[str], bytes_read: int, reason: str
) -> Provenance:
    """Describe the finished attempt. GPU-hours count every CUDA device named in `devices`."""
    commit, dirty = _git_state()
    num_gpus = sum(1 for device in devices if device.startswith("cuda"))
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
        gpu_hours=num_gpus * seconds / 3600,
        bytes_read=bytes_read,
        reason=reason,
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
