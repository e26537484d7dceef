"""DPO's arithmetic.

    loss = −log σ(β [(log π(right) − log π_ref(right)) − (log π(wrong) − log π_ref(wrong))])

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
    right_reward_B: Float[Tensor, " B"]
    wrong_reward_B: Float[Tensor, " B"]


@checked_shapes
def dpo_loss(
    right_B: Float[Tensor, " B"],
    wrong_B: Float[Tensor, " B"],
    reference_right_B: Float[Tensor, " B"],
    reference_wrong_B: Float[Tensor, " B"],
    beta: float,
) -> PreferenceLoss:
    """Return the DPO loss of each pair from summed log-probabilities."""
    right_reward_B = beta * (right_B - reference_right_B.detach())
    wrong_reward_B = beta * (wrong_B - reference_wrong_B.detach())
    loss_B = -logsigmoid(right_reward_B - wrong_reward_B)
    return PreferenceLoss(loss_B, right_reward_B.detach(), wrong_reward_B.detach())
