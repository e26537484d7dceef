"""Checkpoints to scores with standard errors."""

from flows.align import align
from flows.curate import benchmarks
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
    items = benchmarks(recipe)
    return [
        evaluation.evaluate(recipe.evaluate, checkpoint, items, label=kind)
        for kind, checkpoint in zip(KINDS, checkpoints, strict=True)
    ]
