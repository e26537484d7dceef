"""Which problems post-training works on, as configuration."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Literal

from pydantic import Field, model_validator

from lmpipe.artifacts.stage import StageConfig
from lmpipe.errors import ConfigError
from lmpipe.rewards import arithmetic, problem, sorting
from lmpipe.rewards.arithmetic import Arithmetic
from lmpipe.rewards.problem import Problem, Split, Task
from lmpipe.rewards.sorting import Sorting

MODULES: dict[str, ModuleType] = {"arithmetic": arithmetic, "sorting": sorting}


class TaskConfig(StageConfig):
    """A verifiable task and its difficulty."""

    name: Literal["sorting", "arithmetic"] = Field("sorting", description="Family of problems.")
    min_numbers: int = Field(3, ge=2, le=100, description="Shortest list to sort.")
    max_numbers: int = Field(5, ge=2, le=100, description="Longest list to sort.")
    max_value: int = Field(19, ge=3, le=10**9, description="Largest number in a problem.")
    partial_credit: bool = Field(
        True, description="Pay for part of an answer; off, only the exact answer is paid, 1."
    )

    @model_validator(mode="after")
    def _solvable(self) -> TaskConfig:
        try:
            self.build()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return self

    def identity_files(self) -> tuple[Path, ...]:
        """Return the code that makes the problems and pays for the answers."""
        return tuple(Path(inspect.getfile(module)) for module in (problem, MODULES[self.name]))

    def build(self) -> Task:
        """Return the task itself."""
        if self.name == "arithmetic":
            return Arithmetic(self.max_value, self.partial_credit)
        return Sorting(self.min_numbers, self.max_numbers, self.max_value, self.partial_credit)


def problems(task: Task, seed: int, split: Split, start: int, count: int) -> list[Problem]:
    """Return `count` problems of a split from number `start` on; held-out ones are all different.

    Training may meet a problem again. A measurement that asks one twice counts it double and takes
    its error too small.

    Raises:
        ConfigError: the task has fewer held-out problems.
    """
    if split == "train":
        return [task.problem(seed, index, split) for index in range(start, start + count)]
    found: dict[str, Problem] = {}
    index = newest = 0
    # of n equally likely problems, one more is missed by 20 n draws with a probability of e^-20
    while len(found) < start + count and index - newest <= 20 * (len(found) + 1):
        problem = task.problem(seed, index, split)
        index += 1
        if found.setdefault(problem.prompt, problem) is problem:
            newest = index
    if len(found) < start + count:
        raise ConfigError(
            f"{task} has {len(found)} different held-out problems, {start + count} are asked for; "
            f"set heldout_problems to {len(found)} or less (and heldout_samples higher), or make "
            "the task larger by max_value or max_numbers"
        )
    return list(found.values())[start:]
