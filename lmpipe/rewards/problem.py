"""What a verifiable task is: problems by number, and a score that needs no model.

Post-training asks two things of a task: an endless, reproducible supply of problems with a held-out
part that training never sees, and a score in [0, 1] that is 1 for the right answer only. Problem n
of a split is a function of (seed, split, n) alone, so that any rank makes any problem without
talking to another, and a resumed run sees the problems that the first one would have seen.

The split is decided by a hash of the problem itself rather than by its number. Two seeds can then
never put one problem on both sides, whichever order they draw in; the price is a short rejection
loop per problem.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Split = Literal["train", "heldout"]

HELDOUT_SHARE = 8  # one key in eight is held out
MAX_ATTEMPTS = 10_000  # rejections before a split counts as empty: (7/8)^10000 is never


@dataclass(frozen=True)
class Problem:
    """One question with its one right answer."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Score:
    """The reward of one completion; `error` names a failed reward call, which scores 0."""

    reward: float
    error: str = ""


class Task(Protocol):
    """A family of problems with a verifiable reward."""

    def problem(self, seed: int, index: int, split: Split) -> Problem:
        """Return problem `index` of the split."""
        ...

    def reward(self, problem: Problem, completion: str) -> float:
        """Score a completion in [0, 1]; 1 exactly when it is right."""
        ...


def split_of(key: str) -> Split:
    """Assign a problem to its split by the hash of what makes it that problem."""
    digest = hashlib.sha256(key.encode()).digest()
    return "heldout" if digest[0] % HELDOUT_SHARE == 0 else "train"


def draws(*parts: object) -> Iterator[int]:
    """Yield endless uniform 64-bit integers that depend on `parts` alone.

    SHA-256 in counter mode instead of `random.Random`: the same numbers in every Python version,
    on every machine and in every language that a later reader may check it with.
    """
    prefix = "/".join(str(part) for part in parts)
    counter = 0
    while True:
        digest = hashlib.sha256(f"{prefix}#{counter}".encode()).digest()
        for start in range(0, len(digest), 8):
            yield int.from_bytes(digest[start : start + 8], "little")
        counter += 1


def score_completions(
    task: Task, problems: Sequence[Problem], completions: Sequence[str], finished: Sequence[bool]
) -> list[Score]:
    """Score each completion, one score each, whatever a single reward call does.

    Args:
        finished: which completions are answers. One that ran into the length limit scores 0: a
            model that never stops would otherwise be paid for the prefix that happens to be right.
            So does one with a control token in it, which spoke for somebody else than itself.
    """
    if not len(problems) == len(completions) == len(finished):
        raise ValueError(
            f"{len(problems)} problems, {len(completions)} completions and {len(finished)} flags "
            "must be as many"
        )
    return [
        _score(task, problem, completion) if done else Score(0.0)
        for problem, completion, done in zip(problems, completions, finished, strict=True)
    ]


def _score(task: Task, problem: Problem, completion: str) -> Score:
    try:
        reward = float(task.reward(problem, completion))
    except Exception as error:  # a process edge: counted and kept with the rollout
        return Score(0.0, f"{type(error).__name__}: {error}")
    if not 0.0 <= reward <= 1.0:  # also catches NaN
        return Score(0.0, f"reward {reward} outside [0, 1]")
    return Score(reward)
