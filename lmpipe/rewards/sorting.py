"""Sort a few numbers: the smallest task on which reinforcement learning visibly works.

    "Sort: 3 1 2"  ->  "1 2 3"

A list that is already sorted is never asked, so that echoing the prompt is never right.

    reward = 0                                      unless the completion is numbers, spaces between
    reward = 0.1 + 0.3 inclusion + 0.6 placement    else

with n numbers asked, m answered, inclusion = |asked ∩ answered as multisets| / max(n, m) and
placement = positions that agree with the sorted list / max(n, m). Dividing by the longer of the two
takes the gain from answers that append or omit. Placement 1 means the exact answer, hence
reward 1 only for it. The alternative, exact match alone, gives a weak policy almost no groups with
two different rewards, and those are the only ones that teach (`partial_credit=False` is that).

Source: CS336 (2025), lectures 16-17, where three numbers are sorted with partial credit.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from lmpipe.rewards.problem import MAX_ATTEMPTS, Problem, Split, draws, split_of

FORMAT_WEIGHT = 0.1
INCLUSION_WEIGHT = 0.3
PLACEMENT_WEIGHT = 0.6

_NUMBERS = re.compile(r"[0-9]+(?: [0-9]+)*")  # no nested repetition over one class: linear time


@dataclass(frozen=True)
class Sorting:
    """Lists of `min_numbers` to `max_numbers` distinct numbers from 0 to `max_value`."""

    min_numbers: int = 3
    max_numbers: int = 5
    max_value: int = 19
    partial_credit: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.min_numbers <= self.max_numbers <= self.max_value + 1:
            raise ValueError(
                "sorting needs 2 <= min_numbers <= max_numbers <= max_value + 1, got "
                f"{self.min_numbers}, {self.max_numbers}, {self.max_value}"
            )
        self.problem(0, 0, "heldout")  # a task with an empty side is refused here, not mid-run
        self.problem(0, 0, "train")

    def problem(self, seed: int, index: int, split: Split) -> Problem:
        """Return problem `index`; the split goes by the sorted list, so no answer is in both."""
        stream = draws("sorting", seed, split, index)
        for _ in range(MAX_ATTEMPTS):
            spread = self.max_numbers - self.min_numbers + 1
            count = self.min_numbers + next(stream) % spread
            numbers: list[int] = []
            while len(numbers) < count:
                number = next(stream) % (self.max_value + 1)
                if number not in numbers:
                    numbers.append(number)
            answer = _join(sorted(numbers))
            if numbers != sorted(numbers) and split_of(answer) == split:
                return Problem(f"Sort: {_join(numbers)}", answer)
        raise ValueError(f"{self} has too few lists for a {split} split; raise max_value")

    def reward(self, problem: Problem, completion: str) -> float:
        """Score a completion by the formula above; surrounding white space is free."""
        text = completion.strip()
        if not self.partial_credit:
            return float(text == problem.answer)
        if not _NUMBERS.fullmatch(text):
            return 0.0
        wanted = problem.answer.split(" ")
        given = text.split(" ")
        longer = max(len(wanted), len(given))
        inclusion = (Counter(wanted) & Counter(given)).total() / longer
        placement = sum(a == b for a, b in zip(wanted, given, strict=False)) / longer
        if placement == 1.0:
            return 1.0
        return FORMAT_WEIGHT + INCLUSION_WEIGHT * inclusion + PLACEMENT_WEIGHT * placement


def _join(numbers: list[int]) -> str:
    return " ".join(str(number) for number in numbers)
