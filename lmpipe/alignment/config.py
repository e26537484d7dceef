"""What sft, dpo and grpo have in common: the task, the optimizer, and how progress is measured."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from lmpipe.alignment.task import TaskConfig, problems
from lmpipe.artifacts.stage import StageConfig
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
