import math

import torch

from lmpipe.alignment.preference import dpo_loss


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_loss_and_implied_rewards_by_hand() -> None:
    loss = dpo_loss(tensor(-2.0), tensor(-5.0), tensor(-3.0), tensor(-4.0), beta=0.5)
    # chosen: 0.5 * 1, rejected: 0.5 * -1, difference 1
    torch.testing.assert_close(loss.loss_B, torch.tensor([math.log(1 + math.exp(-1))]).double())
    assert loss.chosen_reward_B.tolist() == [0.5]
    assert loss.rejected_reward_B.tolist() == [-0.5]


def test_a_policy_equal_to_its_reference_loses_ln_2() -> None:
    loss = dpo_loss(tensor(-2.0), tensor(-5.0), tensor(-2.0), tensor(-5.0), beta=0.1)
    torch.testing.assert_close(loss.loss_B, torch.tensor([math.log(2)]).double())


def test_a_step_raises_the_chosen_and_lowers_the_rejected_completion() -> None:
    chosen, rejected, reference = tensor(-2.0), tensor(-2.0), tensor(-2.0)
    dpo_loss(chosen, rejected, reference, reference, beta=0.1).loss_B.sum().backward()
    assert chosen.grad is not None and rejected.grad is not None
    assert chosen.grad.item() == -0.05 and rejected.grad.item() == 0.05  # -beta σ(0)
    assert reference.grad is None


def test_a_huge_difference_stays_finite() -> None:
    loss = dpo_loss(tensor(-1e5), tensor(-1.0), tensor(-1.0), tensor(-1e5), beta=1.0).loss_B
    loss.sum().backward()
    assert loss.isfinite().all()
