"""Add or subtract two numbers, with credit for digits in the right place.

    "Compute: 17 + 25"  ->  "42"

    reward = 0                      unless the completion is one integer
    reward = 0.1 + 0.9 agreement    else

where agreement is the share of characters that match, compared from the last one (units under
units), over the longer of the two. Reward 1 means the exact integer, written without leading zeros.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lmpipe.rewards.problem import MAX_ATTEMPTS, Problem, Split, draws, split_of

FORMAT_WEIGHT = 0.1

_INTEGER = re.compile(r"-?[0-9]+")


@dataclass(frozen=True)
class Arithmetic:
    """Sums and differences of two numbers from 0 to `max_value`."""

    max_value: int = 99
    partial_credit: bool = True

    def __post_init__(self) -> None:
        if self.max_value < 3:
            raise ValueError(f"arithmetic needs max_value >= 3, got {self.max_value}")
        self.problem(0, 0, "heldout")  # a task with an empty side is refused here, not mid-run
        self.problem(0, 0, "train")

    def problem(self, seed: int, index: int, split: Split) -> Problem:
        """Return problem `index`; a sum and its operands swapped are in the same split."""
        stream = draws("arithmetic", seed, split, index)
        for _ in range(MAX_ATTEMPTS):
            first = next(stream) % (self.max_value + 1)
            second = next(stream) % (self.max_value + 1)
            sign = "+-"[next(stream) % 2]
            low, high = sorted((first, second))
            if split_of(f"{low} {sign} {high}") == split:
                value = first + second if sign == "+" else first - second
                return Problem(f"Compute: {first} {sign} {second}", str(value))
        raise ValueError(f"{self} has too few sums for a {split} split; raise max_value")

    def reward(self, problem: Problem, completion: str) -> float:
        """Score a completion by the formula above; surrounding white space is free."""
        text = completion.strip()
        if text == problem.answer:
            return 1.0
        if not self.partial_credit or not _INTEGER.fullmatch(text):
            return 0.0
        longer = max(len(text), len(problem.answer))
        pairs = zip(reversed(text), reversed(problem.answer), strict=False)
        return FORMAT_WEIGHT + (1 - FORMAT_WEIGHT) * sum(a == b for a, b in pairs) / longer
