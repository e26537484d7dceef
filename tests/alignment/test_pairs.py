import pytest

from lmpipe.alignment.pairs import make_pairs
from lmpipe.alignment.rollouts import Rollout
from lmpipe.errors import InputError


def rollout(group: int, token: int, reward: float) -> Rollout:
    return Rollout(group, "p", "a", str(token), [1], [token], [-1.0], True, reward)


def test_chosen_is_paired_with_rejected_of_the_same_prompt() -> None:
    rollouts = [
        rollout(0, 10, 1.0),
        rollout(0, 11, 0.4),
        rollout(1, 20, 0.0),
        rollout(1, 21, 1.0),
        rollout(2, 30, 1.0),
        rollout(3, 40, 0.9),
    ]
    pairs, report = make_pairs(rollouts, max_per_prompt=2)
    assert [(p.chosen.tokens, p.rejected.tokens) for p in pairs] == [([10], [11]), ([21], [20])]
    assert report.as_dict() == {
        "prompts": 4,
        "prompts_with_pairs": 2,
        "prompts_without_rejected": 1,
        "prompts_without_chosen": 1,
        "pairs": 2,
    }


def test_a_completion_sampled_twice_makes_one_pair() -> None:
    rollouts = [rollout(0, 10, 1.0), rollout(0, 10, 1.0), rollout(0, 11, 0.1), rollout(0, 12, 0.0)]
    pairs, _ = make_pairs(rollouts, max_per_prompt=4)
    assert [(p.chosen.tokens, p.rejected.tokens) for p in pairs] == [([10], [11])]


def test_pairs_of_one_prompt_are_limited() -> None:
    rollouts = [rollout(0, n, float(n % 2)) for n in range(12)]
    assert len(make_pairs(rollouts, max_per_prompt=2)[0]) == 2


def test_no_pair_at_all_is_an_error_that_says_why() -> None:
    rollouts = [rollout(0, 1, 1.0), rollout(0, 2, 1.0), rollout(1, 3, 0.0)]
    with pytest.raises(InputError, match="2 prompts 1 had no completion to reject and 1 none"):
        make_pairs(rollouts, max_per_prompt=1)
