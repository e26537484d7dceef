"""CCNet's split of each language into head, middle and tail by perplexity.

The two thresholds are percentiles of a language's perplexities, counted over the documents at hand
or stored from an earlier run, so that a second crawl is split at the first one's. The label is a
column of what is kept: a mixture, a report or a later selection can go by it.

Source: Wenzek et al. 2019 (CCNet), section 3.4; the percentiles are those of its code.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from lmpipe.artifacts.stage import StageConfig
from lmpipe.curation.quality.language import policy_language

COLUMN = "perplexity_bucket"
Label = Literal["head", "middle", "tail", "all"]
LABELS: tuple[Label, ...] = get_args(Label)
RANKS = {"head": 2.0, "middle": 1.0, "tail": 0.0, "all": 1.0}  # in an ensemble
BucketThresholds = tuple[float, float]  # the head's end, the tail's start


class PerplexityBuckets(StageConfig):
    """Where a language is cut, and which of its parts are kept."""

    head_percentile: float = Field(
        30.0, gt=0, lt=100, description="Below this percentile of perplexity lies the head."
    )
    tail_percentile: float = Field(
        60.0, gt=0, lt=100, description="From this percentile of perplexity on lies the tail."
    )
    cutoffs: dict[str, BucketThresholds] = Field(
        default_factory=dict,
        description="Stored thresholds by language in place of counted ones: [head's end, tail's "
        "start], an earlier run's metric perplexity_cutoffs. Languages beside them are counted.",
    )
    keep: tuple[Label, ...] = Field(
        LABELS,
        min_length=1,
        description="Parts that are kept; `all` are the documents of languages without a model.",
    )

    @field_validator("cutoffs")
    @classmethod
    def _normalise(cls, cutoffs: dict[str, BucketThresholds]) -> dict[str, BucketThresholds]:
        for code, (head, tail) in cutoffs.items():
            if not 0 < head <= tail:
                raise ValueError(
                    f"cutoffs.{code}={[head, tail]} must be two perplexities, the lower one first"
                )
        normal = {policy_language(code): pair for code, pair in sorted(cutoffs.items())}
        if len(normal) < len(cutoffs):
            raise ValueError(f"cutoffs names one language twice: {sorted(cutoffs)}")
        return normal

    @field_validator("keep")
    @classmethod
    def _in_order(cls, keep: tuple[Label, ...]) -> tuple[Label, ...]:
        return tuple(label for label in LABELS if label in keep)

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.head_percentile > self.tail_percentile:
            raise ValueError(
                f"head_percentile={self.head_percentile:g} must not exceed "
                f"tail_percentile={self.tail_percentile:g}"
            )
        return self

    def thresholds_of(self, perplexities: NDArray[Any]) -> BucketThresholds:
        """Count a language's two thresholds."""
        shares = [self.head_percentile, self.tail_percentile]
        head, tail = np.percentile(perplexities.astype(np.float64), shares)
        return float(head), float(tail)


def labels_of(perplexities: NDArray[Any], thresholds: NDArray[np.float64]) -> NDArray[np.object_]:
    """Return each document's label.

    Args:
        thresholds: two for each document; NaN where its language has no model.
    """
    labels = np.full(len(perplexities), "tail", dtype=object)
    labels[perplexities < thresholds[:, 1]] = "middle"
    labels[perplexities < thresholds[:, 0]] = "head"
    labels[np.isnan(thresholds[:, 0])] = "all"
    return labels


def nearest_thresholds(
    perplexities: NDArray[Any], thresholds: NDArray[np.float64], keep: tuple[Label, ...]
) -> NDArray[np.float64]:
    """Return the threshold that decides on each document: between a kept and a removed part.

    Where both do, it is the nearer one; where none does, NaN.
    """
    sides = [
        ("head" in keep) != ("middle" in keep),
        ("middle" in keep) != ("tail" in keep),
    ]
    if not any(sides):
        return np.full(len(perplexities), np.nan)
    if not all(sides):
        return thresholds[:, sides.index(True)]
    distances = np.abs(perplexities[:, None] - thresholds)
    return np.where(distances[:, 0] < distances[:, 1], thresholds[:, 0], thresholds[:, 1])


Counts = dict[str, dict[str, dict[str, int]]]  # language, label: entered, kept


@dataclass
class BucketCounts:
    """Documents of each language's parts: how many entered the split, how many select kept."""

    counts: Counts = field(default_factory=dict)

    def add(
        self, languages: Sequence[str | None], labels: Sequence[str | None], keep: Sequence[bool]
    ) -> None:
        """Count one batch; a document without a label was removed before the split."""
        for language, label, kept in zip(languages, labels, keep, strict=True):
            if label is not None:
                part = self.counts.setdefault(language or "none", {})
                count = part.setdefault(label, {"entered": 0, "kept": 0})
                count["entered"] += 1
                count["kept"] += bool(kept)


def joined(parts: Iterable[Counts]) -> Counts:
    """Add the shards' counts up, the largest language first, its parts from the head down."""
    total: dict[str, dict[str, Counter[str]]] = {}
    for part in parts:
        for language, labels in part.items():
            for label, count in labels.items():
                total.setdefault(language, {}).setdefault(label, Counter()).update(count)
    sizes = {name: sum(c["entered"] for c in parts.values()) for name, parts in total.items()}
    return {
        language: {
            label: {key: total[language][label][key] for key in ("entered", "kept")}
            for label in LABELS
            if label in total[language]
        }
        for language in sorted(total, key=lambda name: (-sizes[name], name))
    }
