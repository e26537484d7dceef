import math

import pytest

from lmpipe.rewards.problem import Problem, draws, score_completions, split_of
from lmpipe.rewards.sorting import Sorting

PROBLEM = Problem("Sort: 3 1 2", "1 2 3")


class Faulty(Sorting):
    def reward(self, problem: Problem, completion: str) -> float:
        return {"nan": math.nan, "big": 4000.0}.get(completion) or float(completion)


def test_one_score_per_completion_even_when_the_reward_call_fails() -> None:
    texts = ["1", "not a number", "nan", "big", "0.5"]
    scores = score_completions(Faulty(), [PROBLEM] * 5, texts, [True] * 5)
    assert [score.reward for score in scores] == [1.0, 0.0, 0.0, 0.0, 0.5]
    assert "ValueError" in scores[1].error
    assert "outside" in scores[2].error and "outside" in scores[3].error
    assert scores[4].error == ""


def test_a_completion_cut_by_the_length_limit_scores_zero() -> None:
    scores = score_completions(Sorting(), [PROBLEM] * 2, ["1 2 3"] * 2, [True, False])
    assert [score.reward for score in scores] == [1.0, 0.0]


def test_unequal_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="as many"):
        score_completions(Sorting(), [PROBLEM], ["1", "2"], [True, True])


def test_about_one_key_in_eight_is_held_out() -> None:
    heldout = sum(split_of(str(n)) == "heldout" for n in range(8000))
    assert 850 < heldout < 1150


def test_draws_depend_on_every_part() -> None:
    first = [x for x, _ in zip(draws("a", 1), range(20), strict=False)]
    assert first == [x for x, _ in zip(draws("a", 1), range(20), strict=False)]
    assert first != [x for x, _ in zip(draws("a", 2), range(20), strict=False)]
    assert len(set(first)) == 20
