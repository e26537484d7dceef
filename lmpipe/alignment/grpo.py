"""The stage `grpo`: reinforcement learning from a verifiable reward, without a value model.

Each step samples several completions per problem, scores them, and moves probability from those
below the mean of their own group to those above it. A learned value function, PPO's way to a
baseline, costs a second model and a second loss; a group's own mean is unbiased and free.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from lmpipe.alignment.config import AlignmentConfig, AlignmentOptimizer, AlignmentSchedule
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Checkpoint
from lmpipe.errors import ConfigError
from lmpipe.runtime import Runtime
from lmpipe.training.launch import check_ranks
from lmpipe.training.optimizer import LearningRate
from lmpipe.training.schedule import Name


class GrpoOptimizer(AlignmentOptimizer):
    """AdamW at a rate between those of dpo and sft."""

    learning_rate: LearningRate = 3e-4


class GrpoSchedule(AlignmentSchedule):
    """A constant rate: a reward that still rises has no last step in view."""

    name: Name = "constant"


class GrpoConfig(AlignmentConfig):
    """The batch, the advantage, the clip and the KL term."""

    prompts_per_step: int = Field(16, ge=1, le=1_000_000, description="Problems per step.")
    rollouts_per_prompt: int = Field(
        8, ge=2, le=1024, description="Completions per problem: the group that is compared."
    )
    updates_per_batch: int = Field(
        1,
        ge=1,
        le=64,
        description="Optimizer updates on the same rollouts; above 1 the ratio leaves 1.",
    )
    advantage: Literal["std", "none"] = Field(
        "std",
        description="Divide centred rewards by the group's deviation (GRPO), or not (Dr. GRPO).",
    )
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = Field(
        "token_mean",
        description="Mean over tokens, over completions (GRPO), or by a constant (Dr. GRPO).",
    )
    zero_variance: Literal["keep", "drop"] = Field(
        "keep",
        description="Groups with one reward: keep them for the KL term, or leave them out.",
    )
    clip_low: float = Field(0.2, gt=0, lt=1, description="The ratio is clipped below 1 - this.")
    clip_high: float = Field(0.2, gt=0, le=10, description="The ratio is clipped above 1 + this.")
    kl_coefficient: float = Field(
        0.02, ge=0, le=100, description="Weight of the KL term towards the policy it started from."
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k3", description="Per-token KL estimate; k1 has no gradient towards the reference."
    )
    optimizer: GrpoOptimizer = Field(GrpoOptimizer(), description="AdamW's settings.")
    schedule: GrpoSchedule = Field(GrpoSchedule(), description="The course of the learning rate.")
    num_steps: int = Field(40, ge=1, le=10_000_000, description="Batches of rollouts.")
    evaluate_every: int = Field(
        10, ge=1, le=1_000_000, description="Steps between two measurements on held-out problems."
    )

    @model_validator(mode="after")
    def _kl_pulls(self) -> GrpoConfig:
        if self.kl_estimator == "k1" and self.kl_coefficient > 0:
            raise ConfigError(
                "kl_estimator=k1 in the loss pulls every sampled token down and nothing towards "
                "the reference; use k2 or k3, or kl_coefficient=0 to plot k1 only"
            )
        return self


def check_start(config: GrpoConfig, given: frozenset[str], runtime: Runtime | None) -> None:
    """Refuse ranks that cannot be had, or have no equal shares."""
    rollouts = config.prompts_per_step * config.rollouts_per_prompt
    check_ranks(runtime, **{"grpo.prompts_per_step × rollouts_per_prompt": rollouts})


@stage(version=2, kind="statistical", check=check_start)
def grpo(
    out: Output[Checkpoint], config: GrpoConfig, policy: Checkpoint, *, runtime: Runtime
) -> Checkpoint:
    """Improve the policy on the task's reward, measured on held-out problems."""
    from lmpipe.alignment.launch import run_alignment

    return run_alignment("lmpipe.alignment.grpo_rank:main", config, policy, out, runtime, {})
