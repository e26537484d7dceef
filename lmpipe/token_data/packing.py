"""How a split's documents are laid out in sequences of T+1 tokens: T inputs and T targets.

`concatenate`: the split is one stream, cut every T tokens. No padding, every token but the first is
learnt once, and documents are cut wherever an edge falls, so that their rest is learnt without its
beginning. `best_fit`: documents of up to T+1 tokens stay whole and share sequences; only longer
ones are cut. Parts of a document share one token, the last target of one and the first input of the
next, so every token of a document but its first is a target exactly once. What is left over of a
sequence is padding, which is computed and not learnt; nor is the first token of a later part, where
that part stands behind another document.

In both, the first token of a document is learnt behind the end of its neighbour, if it has one.

A layout is a function of the documents' lengths and T alone, so that every rank computes it at its
start instead of reading it. Best fit keeps 12 bytes a piece and 8 a sequence, and takes about 80 a
piece while it is made.
"""

from dataclasses import asdict, dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lmpipe.token_data.index import SplitIndex

PackingName = Literal["concatenate", "best_fit"]


@dataclass(frozen=True)
class PackingReport:
    """What a layout costs; `targets + padding = sequences · T` always holds.

    Attributes:
        padding: places without a target, those in front of a later part among them.
        cut_targets: learnt without the beginning of their document, which is in another sequence.
        cut_documents: documents with such targets.
        unread: tokens behind the last whole sequence.
    """

    sequences: int
    targets: int
    padding: int
    padding_fraction: float
    cut_targets: int
    cut_fraction: float
    cut_documents: int
    unread: int

    def as_dict(self) -> dict[str, float]:
        """Return the figures as a manifest metric."""
        return asdict(self)


class Layout(Protocol):
    """Numbered sequences as spans of the split's stream."""

    @property
    def num_sequences(self) -> int: ...

    def spans(self, number: int) -> list[tuple[int, int]]:
        """Return [start, stop) of the pieces of a sequence, T+1 tokens together or fewer."""

    def report(self) -> PackingReport: ...


def lay_out(index: SplitIndex, sequence_length: int, packing: PackingName) -> Layout:
    """Lay the documents of a split out in sequences."""
    if packing == "concatenate":
        return Concatenation(index, sequence_length)
    return BestFit(index, sequence_length)


class Concatenation:
    """Sequence i is tokens [i·T, i·T + T]; the last incomplete one is left out."""

    def __init__(self, index: SplitIndex, sequence_length: int) -> None:
        self.index, self.sequence_length = index, sequence_length

    @property
    def num_sequences(self) -> int:
        """Whole sequences of the split."""
        return max(0, (self.index.num_tokens - 1) // self.sequence_length)

    def spans(self, number: int) -> list[tuple[int, int]]:
        """Return the one span of a sequence."""
        start = number * self.sequence_length
        return [(start, start + self.sequence_length + 1)]

    def report(self) -> PackingReport:
        """Return how much is cut."""
        length = self.sequence_length
        starts, ends = _documents(self.index)
        begin = np.arange(self.num_sequences) * length
        document = np.searchsorted(starts, begin, side="right") - 1
        cut = np.minimum(ends[document] - 1, begin + length) - begin
        cut[starts[document] == begin] = 0
        covered = self.num_sequences * length + 1 if self.num_sequences else 0
        return _report(
            self.num_sequences,
            length,
            targets=self.num_sequences * length,
            cut_targets=int(cut.sum()),
            cut_documents=np.unique(document[cut > 0]).size,
            unread=self.index.num_tokens - covered,
        )


class BestFit:
    """Pieces of documents, sequence after sequence; within one in the order of the stream."""

    def __init__(self, index: SplitIndex, sequence_length: int) -> None:
        from lmpipe.token_data.best_fit import best_fit  # numba, which concatenation does without

        self.sequence_length = sequence_length
        starts, ends = _documents(index)
        # a document of T+1 tokens is one part: its last token is a target only
        num_parts = np.maximum(1, -(-(ends - starts - 1) // sequence_length))
        document = np.repeat(np.arange(starts.size), num_parts)
        part = np.arange(document.size) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
        begin = starts[document] + part * sequence_length
        size = np.minimum(ends[document] - begin, sequence_length + 1)
        row = best_fit(size, sequence_length + 1)
        order = np.argsort(row, kind="stable")
        self._begin, self._size = begin[order], size[order].astype(np.int32)
        self._edges = np.cumsum(np.concatenate([[0], np.bincount(row)]))
        joined = part[order] > 0
        joined[self._edges[:-1]] = False  # the first of a sequence is no target anyway
        self._num_joined = int(joined.sum())
        self._cut_targets = int((size[part > 0] - 1).sum())
        self._cut_documents = int((num_parts > 1).sum())

    @property
    def num_sequences(self) -> int:
        """Sequences of the split; nothing is left out."""
        return self._edges.size - 1

    def spans(self, number: int) -> list[tuple[int, int]]:
        """Return the pieces of a sequence."""
        pieces = slice(self._edges[number], self._edges[number + 1])
        begin = self._begin[pieces]
        return list(zip(begin.tolist(), (begin + self._size[pieces]).tolist(), strict=True))

    def report(self) -> PackingReport:
        """Return how much is padding and how much is cut."""
        return _report(
            self.num_sequences,
            self.sequence_length,
            targets=int(self._size.sum(dtype=np.int64)) - self.num_sequences - self._num_joined,
            cut_targets=self._cut_targets,
            cut_documents=self._cut_documents,
            unread=0,
        )


def _documents(index: SplitIndex) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return start and end of each document that has tokens."""
    starts = index.document_starts
    ends = np.append(starts[1:], index.num_tokens)
    return starts[ends > starts], ends[ends > starts]


def _report(
    sequences: int,
    sequence_length: int,
    *,
    targets: int,
    cut_targets: int,
    cut_documents: int,
    unread: int,
) -> PackingReport:
    places = sequences * sequence_length
    return PackingReport(
        sequences=sequences,
        targets=targets,
        padding=places - targets,
        padding_fraction=(places - targets) / max(1, places),
        cut_targets=cut_targets,
        cut_fraction=cut_targets / max(1, targets),
        cut_documents=cut_documents,
        unread=unread,
    )
