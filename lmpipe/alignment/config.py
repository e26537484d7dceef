"""What sft, dpo and grpo have in common: the task, the optimiser, and how progress is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from lmpipe.alignment.task import TaskConfig, problems
from lmpipe.artifacts.stage import StageConfig


class AlignmentConfig(StageConfig):
    """Fields that every post-training stage has."""

    task: TaskConfig = Field(
        default_factory=TaskConfig, description="The verifiable task that is taught and measured."
    )
    num_steps: int = Field(60, ge=1, le=10_000_000, description="Optimizer steps.")
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Peak learning rate of AdamW.")
    schedule: Literal["warmup_stable_decay", "cosine", "linear", "constant"] = Field(
        "linear", description="Course of the learning rate after the warm-up."
    )
    warmup_steps: int = Field(3, ge=0, le=1_000_000, description="Steps of linear warm-up.")
    final_fraction: float = Field(
        0.1, ge=0, le=1, description="Share of the peak learning rate left at the last step."
    )
    weight_decay: float = Field(0.0, ge=0, le=1, description="Decoupled decay of the matrices.")
    gradient_clipping: float = Field(
        1.0, ge=0, le=1e6, description="Largest global gradient norm; 0 leaves gradients alone."
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
