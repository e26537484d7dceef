"""What other thresholds of `select` would keep and drop, without running it.

The same predicates as the stage's judge the same columns, text left unread: an answer for 100,000
documents takes a second or two, and cannot differ from what the stage would do. SQL over Parquet
would be as fast, but it would be a second wording of every rule.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmpipe.artifacts.types import Documents
from lmpipe.curation.selection.config import SelectConfig
from lmpipe.curation.selection.language_terms import in_models_terms
from lmpipe.curation.selection.thresholds import Verdicts, columns_for, count_thresholds, judge_all
from lmpipe.documents.read import read_documents

BATCH_ROWS = 16_384
_FACTS = ("id", "url", "host", "language")


@dataclass(frozen=True)
class Change:
    """One document that would change sides, and the threshold that decides it."""

    id: str
    url: str
    language: str
    host: str
    rule: str
    score: float
    threshold: float


@dataclass
class Shift:
    """What was kept before, what would be, and who changes sides."""

    num_documents: int = 0
    kept_before: int = 0
    kept_after: int = 0
    gained: list[Change] = field(default_factory=list)  # removed before, kept now
    lost: list[Change] = field(default_factory=list)
    num_gained: int = 0
    num_lost: int = 0
    # language or host: documents, kept before, kept after
    by_language: dict[str, Counter[str]] = field(default_factory=dict)
    by_host: dict[str, Counter[str]] = field(default_factory=dict)
    by_rule: Counter[tuple[str, str]] = field(default_factory=Counter)  # (gained|lost, rule)


def compare(
    documents: Documents, before: SelectConfig, after: SelectConfig, num_samples: int = 10
) -> Shift:
    """Judge all documents under both configs.

    Samples are those with the lowest ids: hashes, so an even and repeatable draw.
    """
    before, after = (in_models_terms(config, documents) for config in (before, after))
    columns = sorted({*_FACTS, *columns_for(before), *columns_for(after)})
    counted_before = count_thresholds(documents, before)
    counted_after = count_thresholds(documents, after)
    shift = Shift()
    for batch in read_documents(documents, columns, BATCH_ROWS):
        old = judge_all(batch, before, counted_before)
        new = judge_all(batch, after, counted_after)
        _add(shift, batch, old, new)
    for side in (shift.gained, shift.lost):
        side.sort(key=lambda change: change.id)
        del side[num_samples:]
    return shift


def _add(shift: Shift, batch: Any, old: Verdicts, new: Verdicts) -> None:
    shift.num_documents += batch.num_rows
    shift.kept_before += int(old.keep.sum())
    shift.kept_after += int(new.keep.sum())
    for name, table in (("language", shift.by_language), ("host", shift.by_host)):
        _count(table, batch.column(name).to_pylist(), old, new)
    gained = np.flatnonzero(~old.keep & new.keep)
    lost = np.flatnonzero(old.keep & ~new.keep)
    shift.num_gained += len(gained)
    shift.num_lost += len(lost)
    for rows, verdicts, side, name in (
        (gained, old, shift.gained, "gained"), (lost, new, shift.lost, "lost"),
    ):  # fmt: skip
        if len(rows):
            side += _changes(shift, batch, rows.tolist(), verdicts, name)


def _count(
    table: dict[str, Counter[str]], values: Sequence[str | None], old: Verdicts, new: Verdicts
) -> None:
    for value, before, after in zip(values, old.keep.tolist(), new.keep.tolist(), strict=True):
        counts = table.get(value or "none")
        if counts is None:
            counts = table[value or "none"] = Counter()
        counts["documents"] += 1
        if before:
            counts["before"] += 1
        if after:
            counts["after"] += 1


def _changes(
    shift: Shift, batch: Any, rows: list[int], verdicts: Verdicts, side: str
) -> list[Change]:
    changed = []
    plain = {name: batch.column(name) for name in ("id", "url", "language", "host")}
    for row in rows:
        first = next(verdict for verdict in verdicts.rules if verdict.breaks[row])
        shift.by_rule[side, first.rule] += 1
        facts = {name: str(column[row].as_py() or "") for name, column in plain.items()}
        changed.append(
            Change(
                **facts,
                rule=first.rule,
                score=float(first.scores[row]),
                threshold=float(first.thresholds[row]),
            )
        )
    return changed
