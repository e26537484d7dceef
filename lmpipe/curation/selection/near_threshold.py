"""The documents nearest to each threshold, on either side: what a threshold really separates.

A threshold is judged by the texts just above and just below it, so select keeps a few of each with
their beginnings. The nearest are those with the smallest distance relative to the threshold, equal
ones by id: the same for any split of the input.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from lmpipe.curation.selection.thresholds import Verdicts

EXCERPT_CHARACTERS = 300
Sample = dict[str, Any]


class Margins:
    """Collect the nearest documents of each rule from batches."""

    def __init__(self, per_side: int) -> None:
        self._per_side = per_side
        self._found: dict[str, list[Sample]] = defaultdict(list)  # "kept gopher_…"

    def add(self, batch: pa.RecordBatch, verdicts: Verdicts) -> None:
        """Look at one batch; only documents that a rule alone removed count as just removed."""
        num_broken = sum((one.breaks.astype(int) for one in verdicts.rules), np.zeros(1, int))
        for rule, breaks, scores, thresholds in verdicts.rules:
            with np.errstate(invalid="ignore"):
                distance = np.abs(scores - thresholds) / np.maximum(np.abs(thresholds), 1e-6)
            for side, rows in (
                ("kept", verdicts.keep), ("removed", breaks & (num_broken == 1)),
            ):  # fmt: skip
                chosen = np.flatnonzero(rows & ~np.isnan(distance))
                nearest = chosen[np.argsort(distance[chosen], kind="stable")][: self._per_side]
                for row in nearest.tolist():
                    facts = float(distance[row]), float(scores[row]), float(thresholds[row])
                    self._found[f"{side} {rule}"].append(_sample(batch, row, *facts))
        self._found = defaultdict(list, nearest_of([self._found], self._per_side))

    @property
    def found(self) -> dict[str, list[Sample]]:
        """The samples so far, by side and rule."""
        return dict(self._found)


def nearest_of(parts: Iterable[dict[str, list[Sample]]], per_side: int) -> dict[str, list[Sample]]:
    """Join samples of several shards and keep the nearest."""
    joined: dict[str, list[Sample]] = defaultdict(list)
    for part in parts:
        for key, samples in part.items():
            joined[key] += samples
    return {
        key: sorted(samples, key=lambda sample: (sample["distance"], sample["id"]))[:per_side]
        for key, samples in sorted(joined.items())
    }


def _sample(
    batch: pa.RecordBatch, row: int, distance: float, score: float, threshold: float
) -> Sample:
    text = batch.column("text")[row].as_py()[:EXCERPT_CHARACTERS]
    return {
        "id": batch.column("id")[row].as_py(),
        "url": batch.column("url")[row].as_py(),
        "text": text,
        "score": score,
        "bound": threshold,
        "distance": distance,
    }
