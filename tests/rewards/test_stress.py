import pytest

from lmpipe.rewards.arithmetic import Arithmetic
from lmpipe.rewards.problem import Problem, Task
from lmpipe.rewards.sorting import Sorting
from lmpipe.rewards.stress import stress


@pytest.mark.parametrize(
    "task",
    [Sorting(), Sorting(partial_credit=False), Arithmetic(), Arithmetic(partial_credit=False)],
    ids=str,
)
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_attack_is_paid_less_than_the_right_answer(task: Task, split: str) -> None:
    attacks = stress(task, [task.problem(11, n, split) for n in range(60)])
    assert len(attacks) > 15
    assert [attack for attack in attacks if not attack.sound] == []


def test_a_reward_that_looks_for_the_answer_anywhere_is_found_out() -> None:
    class Anywhere(Sorting):
        def reward(self, problem: Problem, completion: str) -> float:
            return float(problem.answer in completion)

    unsound = {
        a.name for a in stress(Anywhere(), [Sorting().problem(0, 0, "train")]) if not a.sound
    }
    assert {"extra words before", "answer twice", "guesses in turn"} <= unsound
