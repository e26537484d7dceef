"""Invented accounts of a month: runs of two recipes, on CPUs and GPUs, some of them in vain."""

import random
from datetime import UTC, datetime, timedelta

from lmpipe.artifacts.attempts import Attempt
from lmpipe.artifacts.manifest import Origin

HOSTILE = '<script>alert("x")</script>'
STAGES = {"extract": 300.0, "dedup": 40.0, "tokenizer": 60.0, "pretrain": 9000.0, "evaluate": 400.0}
GPUS = {"pretrain": 8, "evaluate": 1}


def invented(num_runs: int = 30) -> list[Attempt]:
    """Return the attempts of so many runs, the same ones at every call."""
    choice, attempts = random.Random(1), []
    moment = datetime(2026, 3, 1, 2, tzinfo=UTC)
    for run in range(num_runs):
        recipe = "demo" if run % 3 else "cluster-with-a-rather-long-name"
        for stage, usual in STAGES.items():
            origin = Origin(
                flow_run=f"{run:08x}-0000", flow_run_name=f"{recipe}-{run}",
                flow="pipeline", recipe=recipe, step=stage,
            )  # fmt: skip
            lots = choice.random()
            outcome = "failed" if lots < 0.06 else "killed" if lots < 0.1 else "published"
            seconds = usual * choice.uniform(0.5, 1.5)
            gpus = GPUS.get(stage, 0)
            attempts.append(
                Attempt(
                    stage=stage, id=f"{run:024x}", attempt=f"{stage}{run}", outcome=outcome,
                    error=f"TrainingError: {HOSTILE} rank 3 died" if outcome == "failed" else "",
                    started=moment.isoformat(timespec="milliseconds"), seconds=seconds,
                    host="gpu-box-with-a-long-name.cluster.example",
                    devices=tuple(f"cuda:{n} NVIDIA H200" for n in range(gpus)),
                    gpu_hours=gpus * seconds / 3600,
                    cpu_hours=None if outcome == "killed" else seconds * 1.7 / 3600,
                    reason="nightly", origin=origin,
                )
            )  # fmt: skip
            moment += timedelta(seconds=seconds)
        moment += timedelta(hours=20)
    return attempts
