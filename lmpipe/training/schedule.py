"""Learning-rate schedules as plain functions of the step, in fractions of the peak.

`warmup_stable_decay` is the default: its stable part is the same for every length of run, so one
run serves several budgets by branching before the decay. Cosine needs the length in advance.

Every decay begins where the warm-up ends, at its last step: the peak is reached, whatever the
shape. Multiplying the two from step 0 on, the alternative, leaves a run with 10% of warm-up at 0.98
of its peak by cosine and 0.90 by a line.

Source: Hu et al., MiniCPM, 2024, section 4 (warm-up, stable, decay); Loshchilov and Hutter, SGDR,
2017 (cosine).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from lmpipe.artifacts.stage import StageConfig
from lmpipe.errors import ConfigError, did_you_mean

ScheduleName = Literal["warmup_stable_decay", "cosine", "linear", "constant"]
NAMES: tuple[str, ...] = get_args(ScheduleName)


def warmup(step: int, warmup_steps: int) -> float:
    """Rise linearly over the first steps; the very first step is above 0, so that it does work."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def warmup_stable_decay(step: int, total_steps: int, decay_steps: int, final: float) -> float:
    """Stay at 1, then fall linearly over the last `decay_steps` to `final` at the last step."""
    left = total_steps - 1 - step
    if decay_steps == 0 or left >= decay_steps:
        return 1.0
    return final + (1 - final) * max(0, left) / decay_steps


def cosine(step: int, total_steps: int, final: float, start: int = 0) -> float:
    """Fall along half a cosine from 1 at step `start` to `final` at the last step."""
    done = _done(step, total_steps, start)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))


def linear(step: int, total_steps: int, final: float, start: int = 0) -> float:
    """Fall along a line from 1 at step `start` to `final` at the last step."""
    return 1 - (1 - final) * _done(step, total_steps, start)


def _done(step: int, total_steps: int, start: int) -> float:
    """Return how much of the decay from `start` to the last step lies behind a step, 0 to 1."""
    if step <= start:
        return 0.0
    return min(1.0, (step - start) / max(1, total_steps - 1 - start))


@dataclass(frozen=True)
class Schedule:
    """A schedule with its lengths filled in; `schedule(step)` is the fraction of the peak.

    Attributes:
        final_fraction: what is left of the peak at the last step.
    """

    name: ScheduleName
    total_steps: int
    warmup_steps: int = 0
    decay_steps: int = 0
    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ConfigError(f"schedule {self.name!r}; {did_you_mean(self.name, NAMES)}")
        if self.total_steps < 1:
            raise ConfigError(f"total_steps={self.total_steps} must be at least 1")
        if self.warmup_steps + self.decay_steps > self.total_steps:
            raise ConfigError(
                f"warm-up ({self.warmup_steps}) and decay ({self.decay_steps}) together are longer "
                f"than the run ({self.total_steps} steps); lower warmup_fraction or decay_fraction"
            )

    def __call__(self, step: int) -> float:
        """Return the fraction of the peak at a step."""
        total, final = self.total_steps, self.final_fraction
        start = max(0, self.warmup_steps - 1)  # the step at which the warm-up reaches the peak
        match self.name:
            case "warmup_stable_decay":
                shape = warmup_stable_decay(step, total, self.decay_steps, final)
            case "cosine":
                shape = cosine(step, total, final, start)
            case "linear":
                shape = linear(step, total, final, start)
            case "constant":
                shape = 1.0
        return warmup(step, self.warmup_steps) * shape


# stages differ in these defaults, and in nothing else of the section
Name = Annotated[ScheduleName, Field(description="How the learning rate moves after the warm-up.")]
WarmupSteps = Annotated[
    int,
    Field(ge=0, le=10**6, description="Steps in which the rate rises; see warmup_fraction."),
]
WarmupFraction = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Part of the steps in which the rate rises; the longer of it and warmup_steps.",
    ),
]
FinalFraction = Annotated[
    float, Field(ge=0, le=1, description="What is left of the peak rate at the last step.")
]


class ScheduleConfig(StageConfig):
    """The course of the learning rate, for a run of any length."""

    name: Name = "warmup_stable_decay"
    warmup_steps: WarmupSteps = 0
    warmup_fraction: WarmupFraction = 0.02
    decay_fraction: float = Field(
        0.2, ge=0, le=1, description="Part of the steps in which warmup_stable_decay falls."
    )
    final_fraction: FinalFraction = 0.05

    @model_validator(mode="after")
    def _adds_up(self) -> "ScheduleConfig":
        if self.name == "warmup_stable_decay" and self.warmup_fraction + self.decay_fraction > 1:
            raise ConfigError(
                f"warmup_fraction={self.warmup_fraction} and decay_fraction={self.decay_fraction} "
                "add up to more than 1"
            )
        return self

    def over(self, total_steps: int) -> Schedule:
        """Return the schedule of a run of so many steps; what is too long for it is cut."""
        rising = max(self.warmup_steps, round(self.warmup_fraction * total_steps))
        rising = min(total_steps, rising)
        falling = 0
        if self.name == "warmup_stable_decay":
            falling = min(total_steps - rising, round(self.decay_fraction * total_steps))
        return Schedule(self.name, total_steps, rising, falling, self.final_fraction)
