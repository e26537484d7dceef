"""What a scaling sweep does: its sizes and budgets, and how its runs are trained."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from lmpipe.artifacts.stage import StageConfig
from lmpipe.errors import ConfigError
from lmpipe.model.config import ModelConfig
from lmpipe.training.optimizer import LearningRate, OptimizerConfig
from lmpipe.training.schedule import FinalFraction, ScheduleConfig, WarmupFraction, WarmupSteps


class ScaleOptimizer(OptimizerConfig):
    """AdamW for small models, which bear a higher rate."""

    learning_rate: LearningRate = 4e-3


class ScaleSchedule(ScheduleConfig):
    """One rise and one constant rate for all budgets of a width, and a fall to 0 for each."""

    name: Literal["warmup_stable_decay"] = Field(
        "warmup_stable_decay", description="The one shape whose stable part serves all budgets."
    )
    warmup_steps: WarmupSteps = 16
    warmup_fraction: WarmupFraction = 0.0
    final_fraction: FinalFraction = 0.0

    @model_validator(mode="after")
    def _serves_all_budgets(self) -> ScaleSchedule:
        if self.warmup_fraction:
            raise ConfigError(
                f"warmup_fraction={self.warmup_fraction} must be 0: one run serves budgets of "
                "several lengths, and rises once; set warmup_steps"
            )
        if not self.decay_fraction:
            raise ConfigError("decay_fraction=0 must be above 0: each budget ends in a decay")
        return self


class ScaleConfig(StageConfig):
    """The sweep, and how its runs are trained."""

    model: ModelConfig = Field(
        ModelConfig(num_layers=2, d_model=64, num_heads=2, num_kv_heads=1, max_seq_len=128),
        description="Shape that every width is scaled from: same head size and aspect ratio.",
    )
    widths: tuple[int, ...] = Field(
        (32, 64, 128), min_length=1, max_length=32, description="d_model of the fitted runs."
    )
    token_budgets: tuple[int, ...] = Field(
        (262_144, 524_288, 1_048_576),
        min_length=1,
        max_length=32,
        description="Training tokens of the fitted runs, for each width.",
    )
    held_out_width: int = Field(192, ge=16, le=32_768, description="d_model of the predicted run.")
    held_out_tokens: int = Field(
        2_097_152, ge=1, le=10**14, description="Training tokens of the predicted run."
    )
    batch_tokens: int = Field(2048, ge=1, le=2**26, description="Tokens of an optimizer step.")
    optimizer: ScaleOptimizer = Field(
        ScaleOptimizer(), description="AdamW's settings; its rate is that of the width of `model`."
    )
    width_exponent: float = Field(
        0.5, ge=0, le=2, description="The rate falls with the width to this power."
    )
    schedule: ScaleSchedule = Field(
        ScaleSchedule(), description="The course of the learning rate over each budget."
    )
    validation_tokens: int = Field(
        32_768, ge=1, le=10**10, description="Validation tokens, from the first."
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Of the weights and the data order.")
    num_resamples: int = Field(200, ge=10, le=100_000, description="Bootstrap refits.")
    interval_level: float = Field(
        0.8, gt=0, lt=1, description="Share of the refits inside an interval."
    )

    @model_validator(mode="after")
    def _can_be_fitted(self) -> ScaleConfig:
        for width in (*self.widths, self.held_out_width):
            if width % self.model.head_size:
                raise ConfigError(
                    f"width {width} must be a multiple of the head size {self.model.head_size};"
                    f" try {max(1, round(width / self.model.head_size)) * self.model.head_size}"
                )
        if self.model.mup_base_width and self.width_exponent:
            raise ConfigError(
                f"model.mup_base_width={self.model.mup_base_width} and width_exponent="
                f"{self.width_exponent} both scale the rate with the width; use width_exponent=0"
            )
        if len({w * t for w in self.widths for t in self.token_budgets}) < 2:
            raise ConfigError("a law needs at least two runs of different compute")
        shortest = min(*self.token_budgets, self.held_out_tokens)
        if shortest < self.batch_tokens * (self.schedule.warmup_steps + 2):
            raise ConfigError(
                f"a budget of {shortest} tokens has no step after schedule.warmup_steps="
                f"{self.schedule.warmup_steps} of {self.batch_tokens} tokens; lower "
                "schedule.warmup_steps or batch_tokens"
            )
        return self

    def shape(self, width: int) -> ModelConfig:
        """Scale the model to a width: heads and layers grow with it."""
        base = self.model
        heads = width // base.head_size
        group = max(1, base.num_heads // base.num_kv_heads)
        return base.model_copy(
            update={
                "d_model": width,
                "num_heads": heads,
                "num_kv_heads": heads // group if heads % group == 0 else heads,
                "num_layers": max(1, round(base.num_layers * width / base.d_model)),
            }
        )

    def rate(self, width: int) -> float:
        """Peak learning rate of a width."""
        peak = self.optimizer.learning_rate
        return peak * math.pow(self.model.d_model / width, self.width_exponent)
