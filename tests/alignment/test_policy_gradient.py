import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.alignment.logprobs import pad_rows, token_logprobs
from lmpipe.alignment.policy_gradient import (
    Aggregation,
    clipped_policy_loss,
    group_advantages,
    kl_estimate,
    sequence_weights,
    weighted_sum,
)
from lmpipe.errors import ConfigError
from tests.alignment.toy import ToyModel

ALL = torch.tensor([[True]])


def row(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor([values], requires_grad=grad)


# advantages


def test_course_baseline_cuts_the_deviation_of_the_updates_from_5323_to_1155() -> None:
    rewards = torch.tensor([[11.0, 9.0], [0.0, 2.0]])
    assert statistics.stdev(rewards.flatten().tolist()) == pytest.approx(5.323, abs=5e-4)
    centred = group_advantages(rewards, scaling="none").advantages_BR
    assert centred.tolist() == [[1.0, -1.0], [-1.0, 1.0]]
    assert statistics.stdev(centred.flatten().tolist()) == pytest.approx(1.155, abs=5e-4)


def test_advantages_are_normalised_in_each_group_and_not_over_the_batch() -> None:
    advantages = group_advantages(torch.tensor([[0.0, 1.0], [10.0, 30.0]])).advantages_BR
    expected = 0.5 / statistics.stdev([0, 1])
    torch.testing.assert_close(
        advantages, torch.tensor([[-expected, expected], [-expected, expected]])
    )


@pytest.mark.parametrize("value", [0.35, 0.1, 1 / 3, 1e-8, 1e6])
@pytest.mark.parametrize("num_rollouts", [1, 3, 7, 8, 64])
def test_equal_rewards_give_exactly_zero_in_any_precision(value: float, num_rollouts: int) -> None:
    group = group_advantages(torch.full((1, num_rollouts), value, dtype=torch.float32))
    assert group.zero_variance_B.tolist() == [True]
    assert group.advantages_BR.abs().max() == 0


def test_rounding_residue_is_no_advantage_but_a_real_difference_is() -> None:
    residue = torch.tensor([[0.35] * 7 + [0.35 * (1 + 1e-7)]])
    assert group_advantages(residue).zero_variance_B.item()
    real = group_advantages(torch.tensor([[0.35] * 7 + [0.36]]))
    assert not real.zero_variance_B.item()
    assert real.advantages_BR[0, 7].item() == pytest.approx(7 / 8 * math.sqrt(8), rel=1e-4)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=16))
def test_advantages_sum_to_zero_and_are_bounded_by_the_group_size(rewards: list[float]) -> None:
    advantages = group_advantages(torch.tensor([rewards])).advantages_BR
    assert advantages.sum().abs() < 1e-3
    assert advantages.abs().max() <= math.sqrt(len(rewards))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sequence_weights(LENGTHS, "mean", max_length=9), "aggregation='mean'; known are"),
        (lambda: kl_estimate(row(0.0), row(0.0), ALL, "k4"), "estimator='k4'; known are k1, k2"),
        (lambda: group_advantages(row(0.0, 1.0), "sdt"), "scaling='sdt'; did you mean 'std'"),
    ],
)
def test_an_unknown_choice_is_refused_by_name(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        call()


# ratio and clip


def test_clipped_loss_by_hand() -> None:
    new = row(*(math.log(r) for r in (1.0, 1.5, 1.5, 0.5, 0.5)))
    advantages = {1.0: [-1.0, -1.2, -1.2, -0.5, -0.5], -1.0: [1.0, 1.5, 1.5, 0.8, 0.8]}
    clipped = {1.0: [False, True, True, False, False], -1.0: [False, False, False, True, True]}
    for advantage, expected in advantages.items():
        loss = clipped_policy_loss(
            new, row(0, 0, 0, 0, 0), torch.tensor([advantage]), ALL.expand(1, 5)
        )
        torch.testing.assert_close(loss.loss_BT, row(*expected))
        assert loss.clipped_BT.tolist() == [clipped[advantage]]


def test_upper_and_lower_clip_are_separate() -> None:
    loss = clipped_policy_loss(
        row(math.log(1.5)), row(0.0), torch.tensor([1.0]), ALL, clip=(0.2, 0.4)
    )
    assert loss.loss_BT.item() == pytest.approx(-1.4)


def test_old_policy_is_detached_or_nothing_is_learnt() -> None:
    logprobs = row(-1.0, grad=True)
    ratio_with_graph_on_both_sides = (logprobs - logprobs).exp()
    ratio_with_graph_on_both_sides.sum().backward()
    assert logprobs.grad is not None and logprobs.grad.item() == 0
    logprobs.grad = None
    clipped_policy_loss(logprobs, logprobs, torch.tensor([2.0]), ALL).loss_BT.sum().backward()
    assert logprobs.grad.item() == -2.0  # the policy gradient, -A


def test_one_step_raises_a_rewarded_token_and_lowers_a_punished_one() -> None:
    for advantage in (1.0, -1.0):
        model = ToyModel()
        rows = pad_rows([[1, 2]], [[5]], padding=0)
        before = token_logprobs(model, *rows).logprobs_BT
        loss = clipped_policy_loss(
            before, before, torch.tensor([advantage]), rows.targets_BT
        ).loss_BT.sum()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
        after = token_logprobs(model, *rows).logprobs_BT
        assert (after - before).sum().item() * advantage > 0


def test_masked_nan_and_infinity_reach_neither_loss_nor_gradient() -> None:
    logprobs = row(-1.0, math.nan, math.inf, grad=True)
    mask = torch.tensor([[True, False, False]])
    loss = clipped_policy_loss(logprobs, row(-1.0, 0.0, 0.0), torch.tensor([1.0]), mask).loss_BT
    divergence = kl_estimate(logprobs, row(-1.0, 0.0, 0.0), mask)
    weighted_sum(loss + divergence, torch.ones(1), mask).backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-1.0, 0.0, 0.0]]


# KL


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", -math.log(0.5), 1.0),
        ("k2", math.log(0.5) ** 2 / 2, -math.log(0.5)),
        ("k3", 0.5 - math.log(0.5) - 1, 1 - 0.5),
    ],
)
def test_kl_estimators_and_their_gradients_by_hand(
    estimator: str, value: float, gradient: float
) -> None:
    policy = row(math.log(0.6), grad=True)
    estimate = kl_estimate(policy, row(math.log(0.3)), ALL, estimator)  # q/p = 0.5
    estimate.sum().backward()
    assert estimate.item() == pytest.approx(value, rel=1e-5)
    assert policy.grad is not None and policy.grad.item() == pytest.approx(gradient, rel=1e-5)


def test_k3_is_an_unbiased_estimate_of_the_kl_divergence() -> None:
    torch.manual_seed(0)
    p, q = torch.randn(2, 8, dtype=torch.float64).log_softmax(-1)
    exact = (p.exp() * (p - q)).sum()
    k3 = kl_estimate(p[None], q[None], ALL.expand(1, 8), "k3")[0]
    k1 = kl_estimate(p[None], q[None], ALL.expand(1, 8), "k1")[0]
    torch.testing.assert_close((p.exp() * k3).sum(), exact)
    torch.testing.assert_close((p.exp() * k1).sum(), exact)
    variance = [((p.exp() * k.square()).sum() - exact**2).item() for k in (k3, k1)]
    assert variance[0] < variance[1]


@settings(deadline=None)
@given(st.floats(-200, 200))
def test_k3_stays_finite_non_negative_and_pulls_towards_the_reference(difference: float) -> None:
    policy = row(0.0, grad=True)
    estimate = kl_estimate(policy, row(difference), ALL)
    estimate.sum().backward()
    assert policy.grad is not None
    assert math.isfinite(estimate.item()) and estimate.item() >= -1e-6
    assert math.isfinite(policy.grad.item())
    if abs(difference) > 0.01:  # descent moves log p towards log q
        assert -policy.grad.item() * difference > 0


# aggregation

LENGTHS = torch.tensor([1, 3, 0, 4])
LOSSES = torch.tensor([[8.0, 0, 0, 0], [1.0, 2, 3, 0], [0.0] * 4, [1.0, 1, 1, 1]])
MASK = torch.arange(4)[None, :] < LENGTHS[:, None]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", (8 + 6 + 4) / 8),
        ("sequence_mean", (8 + 2 + 1) / 3),
        ("constant", 18 / (3 * 10)),
    ],
)
def test_aggregations_by_hand(aggregation: Aggregation, expected: float) -> None:
    weights = sequence_weights(LENGTHS, aggregation, max_length=10)
    assert weighted_sum(LOSSES, weights, MASK).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("token_mean", 10 / 7), ("sequence_mean", 3 / 2), ("constant", 10 / 20)],
)
def test_completions_left_out_leave_the_denominator_too(
    aggregation: Aggregation, expected: float
) -> None:
    counted = torch.tensor([False, True, True, True])
    weights = sequence_weights(LENGTHS, aggregation, max_length=10, counted_B=counted)
    assert weighted_sum(LOSSES, weights, MASK).item() == pytest.approx(expected)


def test_a_batch_with_nothing_counted_weighs_zero() -> None:
    none = torch.zeros(4, dtype=torch.bool)
    weights = sequence_weights(LENGTHS, "token_mean", max_length=10, counted_B=none)
    assert weights.tolist() == [0.0] * 4


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_gradient_is_the_same_for_1x8_2x4_and_8x1_micro_batches(aggregation: Aggregation) -> None:
    generator = torch.Generator().manual_seed(3)
    prompts = [[1 + n, 2] for n in range(8)]
    completions = [list(range(3, 4 + n % 5)) for n in range(8)]  # ragged
    advantages = torch.randn(8, generator=generator)
    lengths = torch.tensor([len(c) for c in completions])
    weights = sequence_weights(lengths, aggregation, max_length=5)

    def gradient(micro_batch_size: int) -> torch.Tensor:
        model, reference = ToyModel(seed=1), ToyModel(seed=2)
        for start in range(0, 8, micro_batch_size):
            part = slice(start, start + micro_batch_size)
            rows = pad_rows(prompts[part], completions[part], padding=0)
            logprobs = token_logprobs(model, *rows).logprobs_BT
            anchor = token_logprobs(reference, *rows).logprobs_BT
            loss = clipped_policy_loss(logprobs, logprobs, advantages[part], rows.targets_BT)
            divergence = kl_estimate(logprobs, anchor, rows.targets_BT)
            total = loss.loss_BT + 0.1 * divergence
            weighted_sum(total, weights[part], rows.targets_BT).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    whole = gradient(8)
    assert whole.abs().sum() > 0
    for micro_batch_size in (4, 1):
        torch.testing.assert_close(gradient(micro_batch_size), whole, rtol=1e-4, atol=1e-6)


def test_on_policy_without_kl_the_paper_loss_is_zero_and_its_gradient_is_not() -> None:
    advantages = group_advantages(torch.tensor([[0.0, 1.0]])).advantages_BR.flatten()
    logprobs = torch.tensor([[-1.0, -2.0], [-1.0, -3.0]], requires_grad=True)
    mask = torch.ones(2, 2, dtype=torch.bool)
    loss = clipped_policy_loss(logprobs, logprobs, advantages, mask)
    total = weighted_sum(
        loss.loss_BT, sequence_weights(torch.tensor([2, 2]), "sequence_mean", max_length=2), mask
    )
    total.backward()
    assert total.item() == pytest.approx(0.0, abs=1e-7)
    assert logprobs.grad is not None and logprobs.grad.abs().min() > 0
    assert not loss.clipped_BT.any()
