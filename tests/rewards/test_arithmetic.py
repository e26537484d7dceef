import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.rewards.arithmetic import Arithmetic
from lmpipe.rewards.problem import Problem

PROBLEM = Problem("Compute: 17 + 25", "42")


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("42", 1.0), (" 42\n", 1.0), ("43", 0.1 + 0.45), ("7", 0.1), ("2", 0.55), ("x", 0.0), ("", 0)],
)
def test_credit_goes_to_digits_in_their_place(completion: str, reward: float) -> None:
    assert Arithmetic().reward(PROBLEM, completion) == pytest.approx(reward)


def test_answers_are_right() -> None:
    for index in range(50):
        problem = Arithmetic().problem(0, index, "train")
        first, sign, second = problem.prompt.removeprefix("Compute: ").split(" ")
        value = int(first) + int(second) if sign == "+" else int(first) - int(second)
        assert problem.answer == str(value)


def test_swapped_operands_never_cross_the_split() -> None:
    def keys(split: str) -> set[tuple[str, ...]]:
        prompts = [Arithmetic(9).problem(s, n, split).prompt for s in range(3) for n in range(200)]
        return {(p.split(" ")[2], *sorted((p.split(" ")[1], p.split(" ")[3]))) for p in prompts}

    assert keys("train") and keys("heldout")
    assert not keys("train") & keys("heldout")


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(-300, 300))
def test_reward_is_one_for_the_right_integer_only(index: int, value: int) -> None:
    problem = Arithmetic().problem(1, index, "train")
    reward = Arithmetic().reward(problem, str(value))
    assert 0.0 <= reward <= 1.0
    assert (reward == 1.0) == (str(value) == problem.answer)


def test_exact_match_alone_is_an_option() -> None:
    assert Arithmetic(partial_credit=False).reward(PROBLEM, "43") == 0.0
