from typing import Any

import pytest
from pydantic import ValidationError

from lmpipe.alignment.config import AlignmentConfig
from lmpipe.alignment.task import TaskConfig, problems
from lmpipe.rewards.arithmetic import Arithmetic

SMALL = {"name": "arithmetic", "max_value": 9}


@pytest.mark.parametrize(
    ("task", "count"),
    [({"name": "arithmetic"}, 87), ({"name": "sorting"}, 400), (SMALL, 18)],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_held_out_problems_are_all_different(task: dict[str, Any], count: int, seed: int) -> None:
    asked = problems(TaskConfig(**task).build(), seed, "heldout", 0, count)
    assert len({problem.prompt for problem in asked}) == len(asked) == count


def test_more_held_out_problems_go_on_from_the_same_ones() -> None:
    few, many = (problems(Arithmetic(99), 3, "heldout", 0, count) for count in (50, 200))
    assert many[:50] == few
    assert problems(Arithmetic(99), 3, "heldout", 50, 150) == many[50:]


@pytest.mark.parametrize("name", ["sorting", "arithmetic"])
def test_either_task_has_as_many_as_the_defaults_ask_for(name: str) -> None:
    assert AlignmentConfig(task={"name": name}).task.name == name


def test_training_problems_are_an_endless_supply() -> None:
    assert len(problems(Arithmetic(9), 0, "train", 10_000, 500)) == 500


def test_a_task_with_too_few_held_out_problems_is_refused_with_their_number() -> None:
    assert AlignmentConfig(task=SMALL, heldout_problems=18).heldout_problems == 18
    says = r"Arithmetic\(max_value=9.* has 18 different held-out problems, 19 are asked for"
    with pytest.raises(ValidationError, match=says):
        AlignmentConfig(task=SMALL, heldout_problems=19)
