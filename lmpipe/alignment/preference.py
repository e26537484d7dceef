"""DPO's arithmetic.

    loss = −log σ(chosen reward − rejected reward),   reward = β (log π − log π_ref)

Log-probabilities of a completion are *summed* over its tokens: the implied reward
β log(π/π_ref) belongs to the whole completion. Averaging them divides β by the length, which
differs from pair to pair (IPO does average; with DPO it is the usual cause of a run that learns
nothing).

Source: Rafailov et al. 2023, eq. 7.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from lmpipe.model.named_shapes import checked_shapes


class PreferenceLoss(NamedTuple):
    """Loss per pair, and the implied rewards of its two sides (detached)."""

    loss_B: Float[Tensor, " B"]
    chosen_reward_B: Float[Tensor, " B"]
    rejected_reward_B: Float[Tensor, " B"]


@checked_shapes
def dpo_loss(
    chosen_B: Float[Tensor, " B"],
    rejected_B: Float[Tensor, " B"],
    reference_chosen_B: Float[Tensor, " B"],
    reference_rejected_B: Float[Tensor, " B"],
    beta: float,
) -> PreferenceLoss:
    """Return the DPO loss of each pair from summed log-probabilities."""
    chosen_reward_B = beta * (chosen_B - reference_chosen_B.detach())
    rejected_reward_B = beta * (rejected_B - reference_rejected_B.detach())
    loss_B = -logsigmoid(chosen_reward_B - rejected_reward_B)
    return PreferenceLoss(loss_B, chosen_reward_B.detach(), rejected_reward_B.detach())
