"""Learning-rate schedules as plain functions of the step, in fractions of the peak.

`warmup_stable_decay` is the default: its stable part is the same for every length of run, so one
run serves several budgets by branching before the decay. Cosine needs the length in advance.

Source: Hu et al., MiniCPM, 2024, section 4 (warm-up, stable, decay); Loshchilov and Hutter, SGDR,
2017 (cosine).
"""

import math
from dataclasses import dataclass
from typing import Literal

from lmpipe.errors import ConfigError

ScheduleName = Literal["warmup_stable_decay", "cosine", "linear", "constant"]


def warmup(step: int, warmup_steps: int) -> float:
    """Rise linearly over the first steps; the very first step is above 0, so that it does work."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def warmup_stable_decay(step: int, total_steps: int, decay_steps: int, final: float) -> float:
    """Stay at 1, then fall linearly over the last `decay_steps` to `final` at the last step."""
    left = total_steps - 1 - step
    if decay_steps == 0 or left >= decay_steps:
        return 1.0
    return final + (1 - final) * max(0, left) / decay_steps


def cosine(step: int, total_steps: int, final: float) -> float:
    """Fall along half a cosine from 1 to `final` at the last step."""
    done = min(1.0, step / max(1, total_steps - 1))
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))


def linear(step: int, total_steps: int, final: float) -> float:
    """Fall along a line from 1 to `final` at the last step."""
    return 1 - (1 - final) * min(1.0, step / max(1, total_steps - 1))


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
        if self.total_steps < 1:
            raise ConfigError(f"total_steps={self.total_steps} must be at least 1")
        if self.warmup_steps + self.decay_steps > self.total_steps:
            raise ConfigError(
                f"warm-up ({self.warmup_steps}) and decay ({self.decay_steps}) together are longer "
                f"than the run ({self.total_steps} steps); lower warmup_fraction or decay_fraction"
            )

    def __call__(self, step: int) -> float:
        """Return the fraction of the peak at a step; the warm-up multiplies the rest."""
        total, final = self.total_steps, self.final_fraction
        match self.name:
            case "warmup_stable_decay":
                shape = warmup_stable_decay(step, total, self.decay_steps, final)
            case "cosine":
                shape = cosine(step, total, final)
            case "linear":
                shape = linear(step, total, final)
            case "constant":
                shape = 1.0
        return warmup(step, self.warmup_steps) * shape
