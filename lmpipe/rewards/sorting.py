"""Sort a few numbers: the smallest task on which reinforcement learning visibly works.

    "Sort: 3 1 2"  ->  "1 2 3"

A list that is already sorted is never asked, so that echoing the prompt is never right.

    points = asked numbers that are in the answer + adjacent pairs of the answer in order
             - 2 for every number more than were asked
    reward = 0                           unless the completion is numbers, one space between
    reward = max(0, points) / (2 n - 1)  else, for n numbers asked

    "Sort: 3 1 2":  "1 2 3" 5/5   "2 3 1" 4/5   "1 2" 3/5   "7 8 9" 2/5   "1 2 3 3" 4/5   "9 8" 0

n numbers present and n - 1 pairs in order are all the points there are, and n numbers that hold the
n asked ones in order are the right answer: reward 1 is for it alone. A number too many takes back
two points, the most that it can bring; without that, counting from 0 to 19 would be paid more than
the answer. Two alternatives are left: paying positions that agree with the sorted list gives "2 3
1", two swaps away, no more than "3 1 2" reversed; and exact match alone gives a weak policy almost
no groups with two different rewards, which are the only ones that teach (`partial_credit=False`).

Source: CS336 (2025), lecture 17: a point for each number of the prompt that is in the response, and
one for each adjacent pair in order. The subtraction is ours; there, lengths are equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from lmpipe.rewards.problem import MAX_ATTEMPTS, Problem, Split, draws, split_of

SURPLUS_POINTS = 2  # what a number too many can bring: one for being asked, one for its order

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
        wanted, given = problem.answer.split(" "), text.split(" ")
        present = len(set(wanted) & set(given))  # numbers asked are distinct
        in_order = sum(_at_most(a, b) for a, b in pairwise(given))
        surplus = max(0, len(given) - len(wanted))
        points = present + in_order - SURPLUS_POINTS * surplus
        return max(0, points) / (2 * len(wanted) - 1)


def _at_most(first: str, second: str) -> bool:
    """Compare decimals of any length; int() refuses more than 4,300 digits."""
    a, b = first.lstrip("0"), second.lstrip("0")
    return (len(a), a) <= (len(b), b)


def _join(numbers: list[int]) -> str:
    return " ".join(str(number) for number in numbers)
