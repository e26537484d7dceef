"""`lmpipe bench dedup_scale`: banding and clustering of synthetic signatures, time and memory.

Each size runs in a process of its own. Signatures are made batch by batch, as the sketching pass
makes them, and banded; the keys lie on disk, as sketches do. A tenth of the documents are near
copies. The clock runs for banding and clustering, not for making the signatures.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.curation.dedup.clusters import Clusters, join_keys
from lmpipe.curation.dedup.minhash import band_keys

BATCH = 200_000


class Options(BaseModel):
    """How many signatures, and with what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sizes: list[int] = Field([1_000_000], min_length=1, description="Signatures of each run.")
    bands: int = Field(14, ge=1, description="Bands.")
    rows: int = Field(8, ge=1, description="Rows.")
    memory_mb: int = Field(512, ge=16, description="As runtime.sort_memory_mb.")
    threads: int = Field(2, ge=1, description="Threads of the joins.")
    scratch: str = Field("", description="Folder for keys and spills.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return seconds, peak memory and disk of each size."""
    settings = Options.model_validate(options)
    rows = []
    for size in settings.sizes:
        request = settings.model_copy(update={"sizes": [size]}).model_dump_json()
        command = [sys.executable, "-m", "lmpipe.bench.dedup_scale", request]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        case = f"{size / 1e6:g} M, {settings.bands}x{settings.rows}, {settings.threads} threads"
        units = {
            "peak": "MB",
            "keys on disk": "MB",
            "spilled at a time": "MB",
            "joined": "documents",
        }
        rows += [
            row("dedup_scale", "lmpipe", case, metric, value, units.get(metric, "s"))
            for metric, value in found.items()
        ]
    return rows


def measure(settings: Options) -> dict[str, float]:
    """Band and cluster one size in this process."""
    (size,) = settings.sizes
    rng = np.random.default_rng(0)
    seconds = {"banding": 0.0, "clustering": 0.0}
    with tempfile.TemporaryDirectory(dir=settings.scratch or None) as folder:
        paths = [Path(folder) / f"keys-{band}" for band in range(settings.bands)]
        files = [path.open("wb") for path in paths]
        for start in range(0, size, BATCH):
            count = min(BATCH, size - start)
            minima = rng.integers(0, 2**32, (count, settings.bands * settings.rows), np.uint32)
            copies = np.arange(count // 10)
            minima[count - 1 - copies] = minima[copies]
            minima[count - 1 - copies, ::10] ^= 1  # a tenth of the minima differ
            begun = time.perf_counter()
            for file, keys in zip(files, band_keys(minima, settings.bands), strict=True):
                file.write(keys.tobytes())
            seconds["banding"] += time.perf_counter() - begun
        for file in files:
            file.close()
        begun = time.perf_counter()
        clusters, spilled = Clusters(size), 0
        for path in paths:
            batches = (
                (np.fromfile(path, np.uint64, BATCH, offset=8 * at),
                 np.arange(at, min(at + BATCH, size)))
                for at in range(0, size, BATCH)
            )  # fmt: skip
            spilled = join_keys(
                clusters, batches, size, Path(folder), settings.memory_mb << 20, settings.threads
            )
        members, _ = clusters.members()
        seconds["clustering"] = time.perf_counter() - begun
    return {
        **seconds,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "keys on disk": 8e-6 * size * settings.bands,
        "spilled at a time": spilled / 1e6,
        "joined": float(len(members)),
    }


if __name__ == "__main__":
    print(json.dumps(measure(Options.model_validate_json(sys.argv[1]))))
