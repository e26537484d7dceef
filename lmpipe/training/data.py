"""Batches for training: which rank reads which sequence at which step.

Step s trains on the run's sequences s·B … s·B+B-1, whatever the number of ranks; the n-th sequence
is a function of (seed, n) alone. So a run may be resumed on another number of ranks and sees the
same data, and the sequences of any step can be named afterwards without a log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lmpipe.token_data.order import SequenceOrder

IGNORED = -100


class Sequences(Protocol):
    """Numbered sequences of T+1 tokens; lmpipe.token_data.dataset.TokenReader is one."""

    @property
    def num_sequences(self) -> int:
        """How many there are; their numbers begin at 0."""

    def sequences(self, numbers: Sequence[int]) -> list[NDArray[np.int64]]:
        """Return the T+1 tokens of each of several sequences."""

    def document_numbers(self, number: int) -> NDArray[np.int64]:
        """Return the document number of each of the T+1 tokens."""

    def is_target(self, number: int) -> NDArray[np.bool_]:
        """Return which of the T+1 tokens are learnt; the first is not."""


class Order(Protocol):
    """Which sequence a run reads n-th; SequenceOrder and MixtureOrder are such."""

    def numbers(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the sequences at positions first … first+count-1 of the run."""


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass reads.

    Attributes:
        target_BT: the next token of each position; IGNORED where there is nothing to learn.
        document_BT: document number of each position, or None: attention may cross documents.
        num_targets: how many targets are not IGNORED.
    """

    token_BT: torch.Tensor
    target_BT: torch.Tensor
    document_BT: torch.Tensor | None
    num_targets: int


class GlobalBatches:
    """The batches of a run, cut for one rank.

    Args:
        batch_sequences: B, sequences per step over all ranks.
        document_masking: give document numbers, so that attention stays within documents.
        order: of a mixture; else all sequences are shuffled alike, by the seed.
    """

    def __init__(
        self,
        sequences: Sequences,
        seed: int,
        batch_sequences: int,
        *,
        document_masking: bool,
        order: Order | None = None,
    ) -> None:
        self.sequences = sequences
        self.batch_sequences = batch_sequences
        self.document_masking = document_masking
        self.order: Order = order or SequenceOrder(sequences.num_sequences, seed)

    def numbers(self, step: int) -> list[int]:
        """Return the numbers of the sequences of a step's global batch, in order."""
        first = step * self.batch_sequences
        return [int(number) for number in self.order.numbers(first, self.batch_sequences)]

    def micro_batches(
        self, step: int, rank: int, world_size: int, micro_batch_size: int, device: torch.device
    ) -> list[MicroBatch]:
        """Return a rank's part of a step: as many micro-batches on every rank."""
        return cut(
            self.sequences,
            self.numbers(step),
            (rank, world_size, micro_batch_size),
            device,
            document_masking=self.document_masking,
        )


def cut(
    sequences: Sequences,
    numbers: list[int],
    share: tuple[int, int, int],
    device: torch.device,
    *,
    document_masking: bool,
) -> list[MicroBatch]:
    """Deal sequences to ranks one by one and cut this rank's into micro-batches.

    Where they do not come out even, rows without targets fill up: every rank then makes the same
    number of forward passes of the same shape, which ZeRO's collectives need.

    Args:
        share: (rank, world size, rows per micro-batch).
    """
    rank, world_size, rows = share
    mine = numbers[rank::world_size]
    most = -(-len(numbers) // world_size)
    return [
        _micro_batch(
            sequences,
            mine[start : start + rows],
            min(rows, most - start),
            device,
            document_masking,
        )
        for start in range(0, most, rows)
    ]


def _micro_batch(
    sequences: Sequences, numbers: list[int], rows: int, device: torch.device, masking: bool
) -> MicroBatch:
    # a filler must be some real sequence, so that no kernel meets a case of its own
    token_rows = sequences.sequences(numbers or [0])
    documents = [sequences.document_numbers(number) for number in numbers or [0]] if masking else []
    tokens = _stack(token_rows, rows, device)
    target_BT = tokens[:, 1:].clone()
    learnt = np.zeros((rows, target_BT.shape[1]), np.bool_)  # of a filler nothing is
    for row, number in enumerate(numbers):
        learnt[row] = sequences.is_target(number)[1:]
    if not learnt.all():
        target_BT.masked_fill_(torch.from_numpy(~learnt).to(device), IGNORED)
    document_BT = _stack(documents, rows, device)[:, :-1].contiguous() if masking else None
    num_targets = int(learnt.sum())
    return MicroBatch(tokens[:, :-1].contiguous(), target_BT, document_BT, num_targets)


def _stack(rows: list[NDArray[Any]], count: int, device: torch.device) -> torch.Tensor:
    padded = rows[:count] + [rows[-1]] * (count - len(rows))
    tensor = torch.from_numpy(np.stack(padded).astype(np.int64))
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
