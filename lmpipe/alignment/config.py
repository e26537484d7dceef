"""What sft, dpo and grpo do: what they have in common, and what each has of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from lmpipe.alignment.packing import Overflow
from lmpipe.alignment.task import TaskConfig, problems
from lmpipe.artifacts.stage import StageConfig
from lmpipe.errors import ConfigError
from lmpipe.eval_items.contamination_record import ACCEPT_DESCRIPTION, LIMIT_DESCRIPTION
from lmpipe.training.optimizer import LearningRate, OptimizerConfig, WeightDecay
from lmpipe.training.schedule import (
    FinalFraction,
    Name,
    ScheduleConfig,
    WarmupFraction,
    WarmupSteps,
)


class AlignmentOptimizer(OptimizerConfig):
    """AdamW for a short run from trained weights: a lower rate, and no decay of what they are."""

    learning_rate: LearningRate = 1e-4
    weight_decay: WeightDecay = 0.0


class AlignmentSchedule(ScheduleConfig):
    """A few steps of warm-up, then a line: runs are short, and none is branched off."""

    name: Name = "linear"
    warmup_steps: WarmupSteps = 3
    warmup_fraction: WarmupFraction = 0.0
    final_fraction: FinalFraction = 0.1


class AlignmentConfig(StageConfig):
    """Fields that every post-training stage has."""

    task: TaskConfig = Field(
        default_factory=TaskConfig, description="The verifiable task that is taught and measured."
    )
    num_steps: int = Field(60, ge=1, le=10_000_000, description="Optimizer steps.")
    optimizer: AlignmentOptimizer = Field(AlignmentOptimizer(), description="AdamW's settings.")
    schedule: AlignmentSchedule = Field(
        AlignmentSchedule(), description="The course of the learning rate."
    )
    max_new_tokens: int = Field(
        24, ge=1, le=32_768, description="Longest completion; one that is cut there scores 0."
    )
    temperature: float = Field(
        1.0, gt=0, le=10, description="Sampling temperature; log-probabilities are taken at it too."
    )
    heldout_problems: int = Field(
        64,  # arithmetic with numbers up to 19 has 87
        ge=1,
        le=1_000_000,
        description="Held-out problems that progress is measured on, all different.",
    )
    heldout_samples: int = Field(4, ge=1, le=1024, description="Completions per held-out problem.")
    evaluate_every: int = Field(
        20, ge=1, le=1_000_000, description="Steps between two measurements on held-out problems."
    )
    num_stored_samples: int = Field(
        64, ge=1, le=100_000, description="Held-out completions that samples.json keeps."
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Problems, data order and sampling follow it.")

    @model_validator(mode="after")
    def _has_enough_heldout_problems(self) -> AlignmentConfig:
        problems(self.task.build(), self.seed, "heldout", 0, self.heldout_problems)
        return self

    def identity_files(self) -> tuple[Path, ...]:
        """Return the code of the task: it makes the problems and pays for the answers."""
        return self.task.identity_files()


class SftOptimizer(AlignmentOptimizer):
    """AdamW at a rate that teaches a format in tens of steps."""

    learning_rate: LearningRate = 1e-3


class SftConfig(AlignmentConfig):
    """What is taught, how rows are packed, and how long."""

    num_examples: int = Field(
        8192, ge=0, le=100_000_000, description="Conversations made from the task; 0 for none."
    )
    sequence_length: int = Field(
        0, ge=0, le=1_048_576, description="Tokens of a packed row; 0 takes the model's longest."
    )
    rows_per_step: int = Field(16, ge=1, le=1_000_000, description="Packed rows per step.")
    overflow: Overflow = Field(
        "error", description="What happens to a conversation longer than a row."
    )
    optimizer: SftOptimizer = Field(SftOptimizer(), description="AdamW's settings.")
    max_contaminated_fraction: float = Field(0.0, ge=0, le=1, description=LIMIT_DESCRIPTION)
    accept_contamination: tuple[str, ...] = Field((), description=ACCEPT_DESCRIPTION)


class DpoConfig(AlignmentConfig):
    """How many rollouts are sampled, how they are paired, and how hard pairs pull."""

    num_prompts: int = Field(512, ge=1, le=10_000_000, description="Problems that are sampled.")
    rollouts_per_prompt: int = Field(4, ge=2, le=1024, description="Completions per problem.")
    max_pairs_per_prompt: int = Field(2, ge=1, le=1024, description="Pairs from one problem.")
    pairs_per_step: int = Field(32, ge=1, le=1_000_000, description="Pairs per optimizer step.")
    beta: float = Field(
        0.1, gt=0, le=100, description="Strength of the pull back to the frozen policy."
    )
    likelihood_weight: float = Field(
        0.2,
        ge=0,
        le=100,
        description="Weight of -log p per token of the chosen completion; 0 is DPO as published.",
    )
    num_steps: int = Field(40, ge=1, le=10_000_000, description="Optimizer steps.")


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
