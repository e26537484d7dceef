"""Stages that the stack tests build: slow ones, loud ones, and one with ranks."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from lmpipe.artifacts.output import Output, ShardOutput
from lmpipe.artifacts.shards import run_shards
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Checkpoint, Documents
from lmpipe.runtime import Runtime
from lmpipe.training.launch import run_ranks
from lmpipe.training.rank import RankContext


class SlowConfig(StageConfig):
    """Shards that take their time."""

    num_shards: int = Field(8, ge=1, description="Shards.")
    seconds: float = Field(1.0, ge=0, description="Per shard.")


def _write_slowly(shard: ShardOutput, key: str, *, seconds: float) -> None:
    time.sleep(seconds)
    shard.write_bytes(f"kept/{key}.txt", key.encode() * 1000)
    shard.count("shards")


@stage(version=1, kind="exact")
def slow(out: Output[Documents], config: SlowConfig, *, runtime: Runtime) -> Documents:
    """Write shards slowly."""
    keys = [f"{i:05d}" for i in range(config.num_shards)]
    run_shards(out, keys, partial(_write_slowly, seconds=config.seconds), runtime)
    return out.commit()


class LoudConfig(StageConfig):
    """How many lines."""

    lines: int = Field(ge=0, description="Lines on stdout, written by a child of the stage.")


@stage(version=1, kind="exact")
def loud(out: Output[Documents], config: LoudConfig, *, runtime: Runtime) -> Documents:
    """Let a process that is not Python's logging write many lines."""
    script = f"for number in range({config.lines}): print('line', number, 'of native output')"
    subprocess.run([sys.executable, "-c", script], check=True)
    out.write_bytes("kept/done.txt", b"done")
    return out.commit()


class RanksConfig(StageConfig):
    """What the ranks do."""

    folder: str = Field(description="Where each rank notes its pids, and waits for `go`.")
    children: bool = Field(False, description="Whether each rank starts a child of its own.")


@stage(version=1, kind="statistical")
def ranked(out: Output[Checkpoint], config: RanksConfig, *, runtime: Runtime) -> Checkpoint:
    """Run ranks that wait for a file."""
    job = config.identity()
    out.write_json("meta.json", run_ranks(wait_in_rank, job, out, runtime))
    return out.commit()


def wait_in_rank(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Note pids (stage's process, rank, its child) and wait for `go`, as a rank in a step would."""
    folder = Path(job["folder"])
    pids = [os.getppid(), os.getpid()]
    if job["children"] and not (folder / "go").exists():
        pids.append(subprocess.Popen(["sleep", "600"]).pid)
    partial = folder / f".{context.rank}"
    partial.write_text(" ".join(map(str, pids)))
    partial.rename(folder / f"rank-{context.rank}")
    while not (folder / "go").exists():
        time.sleep(0.1)
    return {"rank": context.rank}
