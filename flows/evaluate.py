"""Checkpoints to scores with standard errors."""

from functools import partial

from flows.align import align
from flows.checks import task_files
from flows.curate import benchmarks
from flows.pins import pin_source
from flows.pretrain import pretrain
from flows.recipe import PipelineConfig
from lmpipe.artifacts.types import Checkpoint, Scores
from tasks import evaluation

KINDS = ("base", "sft", "dpo", "grpo")


def evaluate(recipe: PipelineConfig, checkpoints: list[Checkpoint] | None = None) -> list[Scores]:
    """Score the base model and the aligned ones; alone, it makes them first."""
    if checkpoints is None:
        base = pretrain(recipe)
        checkpoints = [base, *align(recipe, base)]
    tasks, spec = recipe.evaluate.tasks, recipe.sources.benchmarks
    files = [file.name for file in pin_source(recipe, "benchmarks", spec).config.files]
    items, check = benchmarks(recipe), partial(task_files, tasks, files)
    return [
        evaluation.evaluate(recipe.evaluate, checkpoint, items, label=kind, check=check)
        for kind, checkpoint in zip(KINDS, checkpoints, strict=True)
    ]
