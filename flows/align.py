"""A base model to a chat model: supervised fine-tuning, then preferences, then reinforcement."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from flows.checks import check_alignment
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

    def checked(key: str) -> Callable[[], None]:
        return partial(check_alignment, key, getattr(recipe, key), recipe)

    tuned = sft(recipe.sft, base or pretrain(recipe), check=checked("sft"))
    preferred = dpo(recipe.dpo, tuned, check=checked("dpo"))
    return Aligned(tuned, preferred, grpo(recipe.grpo, preferred, check=checked("grpo")))
