"""Tiny stages that the tests of the core build, in this process and in children."""

import errno
import os
import signal
import sys
from functools import partial

from pydantic import Field

from lmpipe.artifacts.events import PipeSink
from lmpipe.artifacts.output import Output, ShardOutput
from lmpipe.artifacts.shards import run_shards
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Checkpoint, Documents
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime


class CountConfig(StageConfig):
    """How many lines, and what goes wrong."""

    lines: int = Field(3, ge=0, description="Lines per shard.")
    num_shards: int = Field(2, ge=1, description="Shards.")
    die_at: str = Field("", description="Key of the shard that kills its process.")


def _write(shard: ShardOutput, key: str, *, lines: int, die_at: str) -> None:
    if key == die_at and "SURVIVE" not in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    name = f"kept/{key}.txt"
    shard.write_bytes(name, b"".join(b"%d\n" % i for i in range(lines)))
    shard.set_rows(name, lines)
    shard.count("lines", lines)


@stage(version=1, kind="exact")
def count(out: Output[Documents], config: CountConfig, *, runtime: Runtime) -> Documents:
    """Write numbered lines."""
    keys = [f"{i:05d}" for i in range(config.num_shards)]
    work = partial(_write, lines=config.lines, die_at=config.die_at)
    records = run_shards(out, keys, work, runtime)
    out.metric("lines", sum(record.counts["lines"] for record in records))
    return out.commit()


class CopyConfig(StageConfig):
    """What a copy adds."""

    suffix: str = Field("", description="Appended to each object.")


@stage(version=1, kind="exact")
def copy(
    out: Output[Documents], config: CopyConfig, documents: Documents, *, runtime: Runtime
) -> Documents:
    """Copy objects."""
    for name in documents.names():
        out.write_bytes(name, documents.read_bytes(name) + config.suffix.encode())
    out.log("copied")
    return out.commit()


class TrainConfig(StageConfig):
    """A pretended training."""

    steps: int = Field(3, description="Steps.")
    mode: str = Field("", description="print, input_error, full, hang, half_a_line, die or none.")


@stage(version=1, kind="statistical")
def train(
    out: Output[Checkpoint], config: TrainConfig, documents: Documents, *, runtime: Runtime
) -> Checkpoint:
    """Count steps, with checkpoints."""
    with out.previous_checkpoint(runtime) as previous:
        start = int((previous / "step").read_text()) if previous else 0
        out.metric("resumed_in", str(previous.parent) if previous else "")
    out.metric("started_at", start)
    for step in range(start, config.steps):
        out.progress(step + 1, config.steps, unit="steps")
        with out.scratch(runtime) as folder:
            (folder / "step").write_text(str(step + 1))
            out.save_checkpoint(step + 1, folder)
        if config.mode == "die" and step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    if config.mode == "print":
        os.system("echo native line")
        print("python line", file=sys.stderr)
    if config.mode == "input_error":
        raise InputError("crawl.warc.gz: record 7 is broken; remove it")
    if config.mode == "half_a_line":
        assert isinstance(out._sink, PipeSink)
        os.write(out._sink._descriptor, b'{"type": "prog')
        os.kill(os.getpid(), signal.SIGKILL)
    if config.mode == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/scratch/part")
    if config.mode == "hang":
        os.system("sleep 600")
    out.write_json("meta.json", {"steps": config.steps})
    return out.commit()


class FollowConfig(StageConfig):
    """Nothing to choose."""


@stage(version=1, kind="exact")
def follow(
    out: Output[Documents], config: FollowConfig, model: Checkpoint, *, runtime: Runtime
) -> Documents:
    """Read what a training left."""
    out.write_bytes("kept/meta.json", model.read_bytes("meta.json"))
    return out.commit()
