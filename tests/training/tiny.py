"""A model of 1,500 parameters and data for it, so that engine tests cost their rank starts only."""

from dataclasses import dataclass

import torch
from torch import nn

VOCAB = 17
SEQUENCES_PER_STEP = 6


class TinyModel(nn.Module):
    """Two tokens of context through an MLP; odd sizes, so that ZeRO's partitions cut parameters."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCAB, 13)
        self.norm = nn.LayerNorm(26)
        self.up = nn.Linear(26, 31)
        self.down = nn.Linear(31, VOCAB, bias=False)
        self.register_buffer("shift", torch.tensor(1 / 3), persistent=False)

    def forward(self, token_BT: torch.Tensor) -> torch.Tensor:
        embedded_BTD = self.embedding(token_BT)
        pair_BTD = torch.cat([embedded_BTD, embedded_BTD.roll(1, dims=1)], dim=-1)
        hidden = torch.nn.functional.gelu(self.up(self.norm(pair_BTD)) + self.shift)
        return self.down(hidden)


@dataclass(frozen=True)
class Batch:
    token_BT: torch.Tensor
    target_BT: torch.Tensor  # -100 where nothing is learnt

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.token_BT.to(device), self.target_BT.to(device))


def sequences(step: int, numbers: list[int]) -> Batch:
    """Sequences of a step's global batch, of unequal numbers of targets."""
    tokens, targets = [], []
    for number in numbers:
        generator = torch.Generator().manual_seed(1000 * step + number)
        row = torch.randint(VOCAB, (9,), generator=generator)
        target = row[1:].clone()
        target[: (5 * number + step) % 8] = -100
        tokens.append(row[:-1])
        targets.append(target)
    return Batch(torch.stack(tokens), torch.stack(targets))


def loss_sum(logits_BTV: torch.Tensor, target_BT: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(
        logits_BTV.float().flatten(0, 1), target_BT.flatten(), reduction="sum", ignore_index=-100
    )
