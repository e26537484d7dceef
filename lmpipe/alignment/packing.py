"""Put conversations into rows of one length, and account for every token.

Best fit, longest first: each conversation goes into the fullest row that still takes it. Rows carry
a document number per position, which attention never crosses, and positions that start again with
each document, so that the loss of a packed row is the sum of the losses of its conversations. The
alternative, one conversation a row, needs no document numbers and wastes most of each row on
padding: sorting conversations take about 25 of 256 positions.

What happens to a conversation that is longer than a row is a choice, never an accident: `error`,
`truncate` (keep its beginning), or `drop`. Splitting it in two is not offered, as the second part
would be an answer without its question. The report says how many tokens went where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from lmpipe.alignment.chat import Rendered
from lmpipe.errors import InputError

Overflow = Literal["error", "truncate", "drop"]


@dataclass(frozen=True)
class PackedRows:
    """Rows ready for the model.

    Shape: all arrays are (rows, length). `document` numbers the conversations of a row from 0 and
    is one more than the last of them on padding; `position` starts at 0 with each.
    """

    tokens: np.ndarray
    targets: np.ndarray
    document: np.ndarray
    position: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class PackingReport:
    """Where each token went; `total = packed + truncated + dropped` always holds."""

    conversations: int
    rows: int
    total_tokens: int
    packed_tokens: int
    truncated_tokens: int
    dropped_tokens: int
    padding_tokens: int
    supervised_tokens: int
    truncated_conversations: int
    dropped_conversations: int

    def __post_init__(self) -> None:
        assert self.total_tokens == self.packed_tokens + self.truncated_tokens + self.dropped_tokens

    def as_dict(self) -> dict[str, int]:
        """Return the counts as a manifest metric."""
        return asdict(self)


def pack(
    conversations: Sequence[Rendered], length: int, *, overflow: Overflow, padding: int
) -> tuple[PackedRows, PackingReport]:
    """Pack conversations into rows of `length` tokens.

    Raises:
        InputError: a conversation is longer than a row under `error`, or no target is left at all.
    """
    fitted = [_fit(c, length, overflow, index) for index, c in enumerate(conversations)]
    kept = [c for c in fitted if c is not None]
    rows = _best_fit([len(c.tokens) for c in kept], length)
    packed = _fill(kept, rows, length, padding)
    sizes = [
        (len(c.tokens), len(f.tokens) if f else 0)
        for c, f in zip(conversations, fitted, strict=True)
    ]
    report = PackingReport(
        conversations=len(conversations),
        rows=len(rows),
        total_tokens=sum(whole for whole, _ in sizes),
        packed_tokens=sum(part for _, part in sizes),
        truncated_tokens=sum(whole - part for whole, part in sizes if part),
        dropped_tokens=sum(whole for whole, part in sizes if not part),
        padding_tokens=len(rows) * length - sum(part for _, part in sizes),
        supervised_tokens=int(packed.targets.sum()),
        truncated_conversations=sum(0 < part < whole for whole, part in sizes),
        dropped_conversations=sum(not part for _, part in sizes),
    )
    if report.supervised_tokens == 0:
        raise InputError(
            f"none of {report.conversations} conversations has a token to learn from "
            f"({report.dropped_conversations} dropped, {report.truncated_conversations} cut at "
            f"{length}); raise sequence_length or look at the assistant turns"
        )
    return packed, report


def _fit(conversation: Rendered, length: int, overflow: Overflow, index: int) -> Rendered | None:
    """Return the part of a conversation that enters a row; None drops it whole."""
    if len(conversation.tokens) <= length:
        return conversation if conversation.num_targets else None
    if overflow == "error":
        raise InputError(
            f"conversation {index} has {len(conversation.tokens)} tokens and a row takes {length}; "
            "raise sequence_length, or set overflow to truncate or drop"
        )
    if overflow == "drop":
        return None
    cut = Rendered(conversation.tokens[:length], conversation.mask[:length])
    return cut if cut.num_targets else None


def _best_fit(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Return which conversations share each row, the longest first in each."""
    from lmpipe.token_data.best_fit import best_fit

    row_of = best_fit(np.array(sizes, np.int64), length)
    rows: list[list[int]] = [[] for _ in range(int(row_of.max(initial=-1)) + 1)]
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        rows[row_of[index]].append(index)
    return rows


def _fill(
    conversations: Sequence[Rendered], rows: Sequence[Sequence[int]], length: int, padding: int
) -> PackedRows:
    shape = (len(rows), length)
    tokens = np.full(shape, padding, dtype=np.int64)
    targets = np.zeros(shape, dtype=bool)
    document = np.zeros(shape, dtype=np.int64)
    position = np.zeros(shape, dtype=np.int64)
    for row, members in enumerate(rows):
        start = 0
        for number, member in enumerate(members):
            conversation = conversations[member]
            assert not conversation.mask[0], "the first token of a document has no context"
            end = start + len(conversation.tokens)
            tokens[row, start:end] = conversation.tokens
            targets[row, start:end] = conversation.mask
            document[row, start:end] = number
            position[row, start:end] = np.arange(end - start)
            start = end
        document[row, start:] = len(members)
        position[row, start:] = np.arange(length - start)
    return PackedRows(tokens, targets, document, position)
