"""Log-probabilities of given tokens: the one place where targets are shifted.

Everywhere in alignment, index t of a mask, a log-probability or a loss belongs to token t itself,
which the model predicts from tokens before t. `token_logprobs` is where logits of position t−1 meet
token t; no other function moves anything by one.

Rows are right-padded, so a causal model's view of a token is the same in any batch, and positions
need no correction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lmpipe.model.named_shapes import checked_shapes

Logits = Callable[..., Tensor]


class TokenLogprobs(NamedTuple):
    """Per token: log p(token | before) and the entropy it was drawn from; 0 where not a target."""

    logprobs_BT: Float[Tensor, "B T"]
    entropy_BT: Float[Tensor, "B T"]


class Padded(NamedTuple):
    """Right-padded rows and the mask of their targets."""

    tokens_BT: Int[Tensor, "B T"]
    targets_BT: Bool[Tensor, "B T"]


def pad_rows(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    padding: int,
    device: torch.device | str = "cpu",
) -> Padded:
    """Lay prompt + completion into right-padded rows; the completion's tokens are the targets.

    The ids are taken as they were sampled. Decoding and encoding them again is not the identity.
    """
    width = max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True))
    tokens = torch.full((len(prompts), width), padding, dtype=torch.long)
    targets = torch.zeros((len(prompts), width), dtype=torch.bool)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        end = len(prompt) + len(completion)
        tokens[row, :end] = torch.tensor([*prompt, *completion], dtype=torch.long)
        targets[row, len(prompt) : end] = True
    return Padded(tokens.to(device), targets.to(device))


@checked_shapes
def token_logprobs(
    model: Logits,
    tokens_BT: Int[Tensor, "B T"],
    targets_BT: Bool[Tensor, "B T"],
    *,
    temperature: float = 1.0,
    document_BT: Int[Tensor, "B T"] | None = None,
    positions_BT: Int[Tensor, "B T"] | None = None,
) -> TokenLogprobs:
    """Score the target tokens of each row under the model at a temperature.

    Rollouts sampled at temperature τ are scored at τ too: the policy that is improved is the one
    that acted. Only the logits of targets enter the softmax, a V-wide row each: completions are a
    third of the rows here, and V is the widest thing in a small model.
    """
    logits_BTV = model(tokens_BT, document_BT=document_BT, positions_BT=positions_BT)
    predicts_BT = torch.zeros_like(targets_BT)
    predicts_BT[:, :-1] = targets_BT[:, 1:]
    # float32 whatever the model's dtype: bf16 has 8 bits for a difference of log-probabilities
    logp_NV = (logits_BTV[predicts_BT].float() / temperature).log_softmax(-1)
    target_N = tokens_BT[:, 1:][targets_BT[:, 1:]]
    chosen_N = logp_NV.gather(-1, target_N[:, None]).squeeze(-1)
    entropy_N = -(logp_NV.detach().exp() * logp_NV.detach()).sum(-1)
    zeros = torch.zeros(tokens_BT.shape, dtype=torch.float32, device=tokens_BT.device)
    where = (torch.cat([torch.zeros_like(targets_BT[:, :1]), targets_BT[:, 1:]], dim=1),)
    return TokenLogprobs(zeros.index_put(where, chosen_N), zeros.index_put(where, entropy_N))
