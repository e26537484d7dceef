"""GRPO's arithmetic: advantages, clipped ratio, KL, and how token losses are added up.

Everything here is a function of tensors, so that a hand can check it. Two decisions run through.

Weights, not means. How much a token counts is decided once per global batch (`sequence_weights`),
from all completion lengths of the batch; a micro-batch then adds weight × loss and nothing else.
Any split into micro-batches or ranks gives the same gradient by construction, where a mean per
micro-batch gives short micro-batches too much say.

Masks select, they do not multiply. NaN × 0 is NaN, so what is masked is replaced before the
exponential is taken and again after.

Sources: Shao et al. 2024 (GRPO), eq. 3 and 4; Liu et al. 2025 (Dr. GRPO), section 3; Schulman 2020
(k1, k2, k3); Yu et al. 2025 (token mean, clip-higher).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmpipe.errors import ConfigError, did_you_mean
from lmpipe.model.named_shapes import checked_shapes

Aggregation = Literal["token_mean", "sequence_mean", "constant"]
Scaling = Literal["std", "none"]
Estimator = Literal["k1", "k2", "k3"]

RATIO_LIMIT = 20.0  # e^20 is far outside any clip range and far inside fp32
KL_LIMIT = 10.0  # beyond it k3 goes on as its tangent: finite, and with the gradient's sign kept
RELATIVE_SPREAD = 1e-6  # a group closer together than this has one reward, in any precision


def _check_choice(name: str, value: str, choices: Any) -> None:
    """Refuse a string that a Literal does not hold; no type checker watches a notebook."""
    if value not in get_args(choices):
        raise ConfigError(f"{name}={value!r}; {did_you_mean(value, get_args(choices))}")


class Advantages(NamedTuple):
    """Advantages per rollout, and which prompts had one reward only."""

    advantages_BR: Float[Tensor, "B R"]
    zero_variance_B: Bool[Tensor, " B"]


@checked_shapes
def group_advantages(rewards_BR: Float[Tensor, "B R"], scaling: Scaling = "std") -> Advantages:
    """Centre each prompt's rewards on their mean; `std` divides by their deviation (n−1).

    Dividing by the deviation is GRPO; leaving it out is Dr. GRPO, which so gives up a bias towards
    prompts that are almost always or almost never solved.

    A group counts as constant when its spread is below a millionth of its size: rewards of 0.35 in
    fp32 differ from their own mean by a rounding residue, and dividing by a deviation of 1e-8
    would make an advantage of thousands of it.
    """
    _check_choice("scaling", scaling, Scaling)
    rewards = rewards_BR.double()
    spread_B = rewards.amax(1) - rewards.amin(1)
    zero_variance_B = spread_B <= RELATIVE_SPREAD * rewards.abs().amax(1)
    centred = rewards - rewards.mean(1, keepdim=True)
    if scaling == "std":
        deviation = rewards.std(1, keepdim=True, unbiased=True) if rewards.shape[1] > 1 else 1.0
        centred = centred / torch.where(zero_variance_B[:, None], 1.0, deviation)
    centred = torch.where(zero_variance_B[:, None], 0.0, centred)
    return Advantages(centred.float(), zero_variance_B)


class PolicyLoss(NamedTuple):
    """Loss per token, and where the clip took the gradient away."""

    loss_BT: Float[Tensor, "B T"]
    clipped_BT: Bool[Tensor, "B T"]


@checked_shapes
def clipped_policy_loss(
    logprobs_BT: Float[Tensor, "B T"],
    old_logprobs_BT: Float[Tensor, "B T"],
    advantages_B: Float[Tensor, " B"],
    mask_BT: Bool[Tensor, "B T"],
    clip: tuple[float, float] = (0.2, 0.2),
) -> PolicyLoss:
    """Return −min(r A, clip(r, 1−low, 1+high) A) per token, 0 where masked.

    `old_logprobs_BT` is detached here: with the same graph on both sides of the ratio it is 1 with
    gradient 0, and nothing would be learnt. On the first update after sampling the ratio is 1 by
    construction and the loss's value is −mean(A), about 0; its gradient is the policy gradient.
    """
    difference = torch.where(mask_BT, logprobs_BT - old_logprobs_BT.detach(), 0.0)
    ratio = difference.clamp(-RATIO_LIMIT, RATIO_LIMIT).exp()
    low, high = clip
    advantages = advantages_B[:, None]
    unclipped = ratio * advantages
    bounded = ratio.clamp(1 - low, 1 + high) * advantages
    loss = -torch.minimum(unclipped, bounded)
    return PolicyLoss(torch.where(mask_BT, loss, 0.0), mask_BT & (bounded < unclipped))


@checked_shapes
def kl_estimate(
    logprobs_BT: Float[Tensor, "B T"],
    reference_logprobs_BT: Float[Tensor, "B T"],
    mask_BT: Bool[Tensor, "B T"],
    estimator: Estimator = "k3",
) -> Float[Tensor, "B T"]:
    """Estimate KL(policy ‖ reference) per token from samples of the policy, 0 where masked.

    With d = log q − log p (q the reference): k1 = −d, k2 = d²/2, k3 = e^d − d − 1. k3 is unbiased
    in value, never negative and of low variance. As a loss, k1's gradient says nothing about the
    reference (it is that of log p); k2's is unbiased; k3's is 1 − e^d, whose sign is right.

    e^d overflows on a token that the reference likes by 100 nats more, so k3 continues above
    d = 10 as its tangent.
    """
    _check_choice("estimator", estimator, Estimator)
    d = torch.where(mask_BT, reference_logprobs_BT.detach() - logprobs_BT, 0.0)
    match estimator:
        case "k1":
            value = -d
        case "k2":
            value = d.square() / 2
        case "k3":
            near = d.clamp(max=KL_LIMIT)
            value = near.exp() * (1 + d - near) - d - 1
    return torch.where(mask_BT, value, 0.0)


@checked_shapes
def sequence_weights(
    lengths_B: Int[Tensor, " B"],
    aggregation: Aggregation,
    *,
    max_length: int,
    counted_B: Bool[Tensor, " B"] | None = None,
) -> Float[Tensor, " B"]:
    """Return what each completion's tokens weigh in the loss of the *global* batch.

    token_mean: 1 / all tokens. Every token counts alike, long completions more.
    sequence_mean: 1 / (completions × own length). Every completion counts alike (GRPO's paper); a
        wrong answer is punished less per token the longer it is.
    constant: 1 / (completions × max_length). No length in it at all (Dr. GRPO).

    Args:
        counted_B: completions that take part; the others weigh 0 and leave the denominators too.
    """
    _check_choice("aggregation", aggregation, Aggregation)
    counted = torch.ones_like(lengths_B, dtype=torch.bool) if counted_B is None else counted_B
    counted = counted & (lengths_B > 0)
    lengths = lengths_B.double()
    num_sequences = counted.sum().clamp(min=1).double()
    match aggregation:
        case "token_mean":
            weights = torch.ones_like(lengths) / lengths[counted].sum().clamp(min=1)
        case "sequence_mean":
            weights = 1 / (num_sequences * lengths.clamp(min=1))
        case "constant":
            weights = torch.ones_like(lengths) / (num_sequences * max_length)
    return torch.where(counted, weights, 0.0).float()


@checked_shapes
def weighted_sum(
    loss_BT: Float[Tensor, "B T"], weights_B: Float[Tensor, " B"], mask_BT: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Add up weight × loss over the unmasked tokens; micro-batches of one batch simply add."""
    return (torch.where(mask_BT, loss_BT, 0.0).sum(1) * weights_B).sum()
