import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.rewards.problem import Problem
from lmpipe.rewards.sorting import Sorting

PROBLEM = Problem("Sort: 3 1 2", "1 2 3")


def test_problem_is_a_function_of_seed_split_and_index() -> None:
    task = Sorting()
    assert task.problem(1, 5, "train") == task.problem(1, 5, "train")
    assert len({task.problem(1, n, "train") for n in range(200)}) > 190
    assert task.problem(1, 5, "train") != task.problem(2, 5, "train")


def test_problems_stay_the_same_from_version_to_version() -> None:
    prompts = [Sorting().problem(7, n, "train").prompt for n in range(3)]
    assert prompts == GOLDEN_PROMPTS


def test_train_and_heldout_share_no_answer_whatever_the_seed() -> None:
    task = Sorting(max_value=9)
    train = {task.problem(seed, n, "train").answer for seed in range(4) for n in range(300)}
    heldout = {task.problem(seed, n, "heldout").answer for seed in range(4) for n in range(300)}
    assert len(train) > 200 and len(heldout) > 30
    assert not train & heldout


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("1 2 3", 1.0),
        (" 1 2 3\n", 1.0),
        ("3 1 2", 4 / 5),  # all three numbers, one pair of two in order
        ("2 3 1", 4 / 5),
        ("3 2 1", 3 / 5),
        ("1 2", 3 / 5),  # two numbers and their pair
        ("2", 1 / 5),
        ("1 1 1", 3 / 5),  # one number, two pairs
        ("7 8 9", 2 / 5),
        ("9 8 7", 0.0),
        ("9 10 11", 2 / 5),  # by value, not by letters
        ("01 2 3", 4 / 5),  # the answer is spelled without zeros in front
        ("1 2 3 3", (3 + 3 - 2) / 5),
        ("3 1 2 9", (3 + 2 - 2) / 5),
        ("0 1 2 3 4 5 6 7 8 9", 0.0),
        ("", 0.0),
        ("Sort: 3 1 2", 0.0),
        ("1  2 3", 0.0),
        ("1, 2, 3", 0.0),
    ],
)
def test_partial_credit_follows_the_documented_formula(completion: str, reward: float) -> None:
    assert Sorting().reward(PROBLEM, completion) == pytest.approx(reward)


@settings(deadline=None)
@given(st.integers(0, 500), st.lists(st.integers(0, 25), max_size=7))
def test_reward_is_one_for_the_right_answer_only(index: int, numbers: list[int]) -> None:
    task = Sorting()
    problem = task.problem(3, index, "train")
    text = " ".join(map(str, numbers))
    reward = task.reward(problem, text)
    assert 0.0 <= reward <= 1.0
    assert (reward == 1.0) == (text == problem.answer)


@settings(deadline=None)
@given(st.integers(0, 500), st.lists(st.integers(0, 25), min_size=5, max_size=9))
def test_a_number_more_than_were_asked_is_never_worth_saying(index: int, said: list[int]) -> None:
    task = Sorting()
    problem = task.problem(3, index, "train")
    texts = [" ".join(map(str, said[:end])) for end in range(5, len(said) + 1)]
    rewards = [task.reward(problem, text) for text in texts]
    assert rewards == sorted(rewards, reverse=True)


def test_exact_match_pays_nothing_for_a_near_miss() -> None:
    task = Sorting(partial_credit=False)
    assert task.reward(PROBLEM, "1 2 3") == 1.0
    assert task.reward(PROBLEM, "1 3 2") == 0.0


@settings(max_examples=20, deadline=None)
@given(st.text(max_size=50))
def test_any_text_is_scored_without_raising(text: str) -> None:
    assert 0.0 <= Sorting().reward(PROBLEM, text) <= 1.0


def test_a_pathological_completion_in_a_thread_is_scored_at_once() -> None:
    rewards: list[float] = []
    long = "1 " * 1_000_000 + "9" * 5_000
    thread = threading.Thread(target=lambda: rewards.append(Sorting().reward(PROBLEM, long)))
    started = time.monotonic()
    thread.start()
    thread.join(timeout=20)
    assert rewards == [0.0]
    assert time.monotonic() - started < 10


def test_impossible_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="max_numbers <= max_value"):
        Sorting(max_numbers=8, max_value=5)


def test_a_task_with_an_empty_split_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="too few lists"):
        Sorting(min_numbers=3, max_numbers=3, max_value=2)


GOLDEN_PROMPTS = ["Sort: 17 11 8 3 16", "Sort: 5 15 8", "Sort: 9 14 12 5 17"]
