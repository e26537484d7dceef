"""Stages of the tests of automations: one that raises every alarm, and a job that resumes."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Checkpoint, Documents
from lmpipe.curation.decontamination.decontaminate import warn_of_contamination
from lmpipe.runtime import Runtime
from lmpipe.training.launch import run_ranks
from lmpipe.training.loss_watch import LossWatch
from lmpipe.training.rank import RankContext


class AlarmingConfig(StageConfig):
    """No settings."""


@stage(version=1, kind="exact")
def alarming(out: Output[Documents], config: AlarmingConfig, *, runtime: Runtime) -> Documents:
    """Raise every alarm there is, through the rules that stages use."""
    from lmpipe.documents.retention import check_retention

    LossWatch(runtime, out, [2.0] * runtime.alarm_loss_steps).see(70, 9.0)
    check_retention(out, "select", 1000, 3, runtime)
    warn_of_contamination(out, 100, 30, runtime)
    out.write_bytes("kept/done.txt", b"done")
    return out.commit()


class StepsConfig(StageConfig):
    """A job of a few steps."""

    folder: str = Field(description="Where each rank notes its pids, and waits for `go`.")
    steps: int = Field(4, ge=1, description="Steps; before the last one it waits for `go`.")


@stage(version=1, kind="statistical")
def stepping(out: Output[Checkpoint], config: StepsConfig, *, runtime: Runtime) -> Checkpoint:
    """Take steps on two ranks and store a checkpoint after each, as training does."""
    with out.previous_checkpoint() as previous:
        resume = str(previous / "state.json") if previous else ""
        job = config.identity() | {"resume": resume}
        out.write_json("meta.json", run_ranks(step_in_rank, job, out, runtime))
    return out.commit()


def step_in_rank(job: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """Note pids, take the steps that are left, and say which ones those were."""
    folder = Path(job["folder"])
    start = json.loads(Path(job["resume"]).read_text())["step"] if job["resume"] else 0
    (folder / f"rank-{context.rank}-from-{start}").write_text(f"{os.getppid()} {os.getpid()}")
    for step in range(start, job["steps"]):
        while step == job["steps"] - 1 and not (folder / "go").exists():
            time.sleep(0.1)
        if context.rank == 0:
            saved = Path(tempfile.mkdtemp(dir=folder))
            (saved / "state.json").write_text(json.dumps({"step": step + 1}))
            context.save_checkpoint(step + 1, saved)
    return {"first_step": start, "steps": job["steps"]}
