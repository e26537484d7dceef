"""A base model to a chat model: supervised fine-tuning, then preferences, then reinforcement."""

from typing import NamedTuple

from flows.pretrain import pretrain
from flows.recipe import PipelineConfig
from lmpipe.artifacts.types import Checkpoint
from tasks.training import dpo, grpo, sft


class Aligned(NamedTuple):
    """The three stages of alignment."""

    sft: Checkpoint
    dpo: Checkpoint
    grpo: Checkpoint


def align(recipe: PipelineConfig, base: Checkpoint | None = None) -> Aligned:
    """Align the base model; alone, it pretrains first."""
    tuned = sft(recipe.sft, base or pretrain(recipe))
    preferred = dpo(recipe.dpo, tuned)
    return Aligned(tuned, preferred, grpo(recipe.grpo, preferred))
