"""Read from artifacts what the report shows. Nothing else in this package opens a file.

Counts come from manifests (row counts) and single Parquet columns, scores from shards spread evenly
over the run, texts from the row groups that hold them in so many of the first shards, so that the
report of a run over billions of documents still takes seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from lmpipe.artifacts.types import Artifact, Checkpoint, Documents

MAX_SAMPLED_SHARDS = 4
MAX_SEARCHED_SHARDS = 256
MAX_SCORED_SHARDS = 64
MAX_SAMPLED_DOCUMENTS = 20_000
Row = dict[str, Any]


class Run:
    """The artifacts of one run in the order of the data flow."""

    def __init__(self, artifacts: Sequence[Artifact]) -> None:
        self.artifacts = in_order(artifacts)
        self._by_id = {(a.stage, a.id): a for a in self.artifacts}

    def of(self, stage: str) -> list[Artifact]:
        """The artifacts of a stage."""
        return [a for a in self.artifacts if a.stage == stage]

    def one(self, stage: str) -> Artifact | None:
        """The last artifact of a stage, or None."""
        return next(iter(reversed(self.of(stage))), None)

    def inputs(self, artifact: Artifact) -> list[Artifact]:
        """The artifacts of this run that went into another one."""
        keys = [(record.stage, record.id) for record in artifact.manifest.inputs]
        return [self._by_id[key] for key in keys if key in self._by_id]

    @cached_property
    def documents(self) -> list[DocumentStep]:
        """The steps of curation in the order of the data flow."""
        return [DocumentStep(a) for a in self.artifacts if isinstance(a, Documents)]

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """The base model and the aligned ones, in the order of training."""
        return [a for a in self.artifacts if isinstance(a, Checkpoint)]

    def step_of(self, artifact: Artifact) -> DocumentStep | None:
        """The step that made an artifact, or None if it holds no documents."""
        return next((step for step in self.documents if step.artifact is artifact), None)


def in_order(artifacts: Sequence[Artifact]) -> list[Artifact]:
    """Order artifacts so that each comes after its inputs, and else by the time they were made."""
    waiting = sorted({(a.stage, a.id): a for a in artifacts}.values(), key=_made)
    known = {(a.stage, a.id) for a in waiting}
    done: set[tuple[str, str]] = set()
    ordered: list[Artifact] = []
    while waiting:
        ready = next(
            a
            for a in waiting
            if all(
                (i.stage, i.id) in done or (i.stage, i.id) not in known for i in a.manifest.inputs
            )
        )
        waiting.remove(ready)
        done.add((ready.stage, ready.id))
        ordered.append(ready)
    return ordered


def _made(artifact: Artifact) -> tuple[str, str, str]:
    return artifact.manifest.provenance.started, artifact.stage, artifact.id


def title(artifact: Artifact) -> str:
    """Name an artifact by its stage; a source also by its own name, since a run has several."""
    if artifact.stage == "source":
        return f"source {artifact.manifest.config.get('name', artifact.id[:6])}"
    return artifact.stage


def moment(text: str) -> datetime:
    """Read a manifest's time."""
    return datetime.fromisoformat(text)


@dataclass(frozen=True)
class DocumentStep:
    """A documents artifact: what was kept, what was removed and why."""

    artifact: Documents

    @cached_property
    def kept(self) -> int:
        """Documents that stayed."""
        return num_rows(self.artifact, "kept/")

    @cached_property
    def reasons(self) -> list[tuple[str, int]]:
        """Removal reasons with their counts, the commonest first."""
        counts: Counter[str] = Counter()
        for row in read_rows(self.artifact, "removed/", ["reason"]):
            counts[str(row["reason"])] += 1
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))

    @cached_property
    def removed(self) -> int:
        """Documents in the ledger."""
        return sum(count for _, count in self.reasons)

    @property
    def entered(self) -> int:
        """Documents kept and removed together."""
        return self.kept + self.removed

    def removed_samples(self, per_reason: int) -> dict[str, list[Row]]:
        """Some ledger rows of each reason, by ascending id: the same ones at every reading."""
        found: dict[str, list[Row]] = {}
        columns = ["id", "reason", "score", "threshold", "keeper", "similarity", "url"]
        rows = sorted(read_rows(self.artifact, "removed/", columns), key=lambda row: str(row["id"]))
        for row in rows:
            samples = found.setdefault(str(row["reason"]), [])
            if len(samples) < per_reason:
                samples.append(row)
        return {reason: found[reason] for reason, _ in self.reasons if reason in found}

    def texts(self, ids: set[str]) -> dict[str, str]:
        """Texts of the given documents, as far as the first shards hold them."""
        import pyarrow.parquet as pq

        found: dict[str, str] = {}
        for name in self.artifact.names("kept/")[:MAX_SEARCHED_SHARDS]:
            with self.artifact.open(name) as file:
                parquet = pq.ParquetFile(file)
                for group in range(parquet.num_row_groups):
                    if len(found) == len(ids):
                        return found
                    if ids & set(parquet.read_row_group(group, ["id"])["id"].to_pylist()):
                        rows = parquet.read_row_group(group, ["id", "text"]).to_pylist()
                        found |= {row["id"]: row["text"] or "" for row in rows if row["id"] in ids}
        return found

    def kept_samples(self, count: int) -> list[Row]:
        """Documents spread evenly over the first shard."""
        names = ["id", "url", "text", "language", "language_score", "quality_score"]
        rows = list(read_rows(self.artifact, "kept/", names, 1))
        stride = max(1, len(rows) // max(1, count))
        return rows[::stride][:count]

    def column_counts(self, column: str) -> Counter[str]:
        """Kept documents by the value of a column; those without one are left out."""
        rows = read_rows(self.artifact, "kept/", [column])
        return Counter(str(row[column]) for row in rows if row.get(column) is not None)


def num_rows(artifact: Artifact, prefix: str) -> int:
    """Rows of all Parquet objects below a prefix, from the manifest where it has them."""
    import pyarrow.parquet as pq

    total = 0
    for name in artifact.names(prefix):
        rows = artifact.record(name).rows
        if rows is None:
            with artifact.open(name) as file:
                rows = pq.ParquetFile(file).metadata.num_rows
        total += rows
    return total


def read_rows(
    artifact: Artifact, prefix: str, columns: Sequence[str], max_shards: int = 0
) -> Iterator[Row]:
    """Yield rows of the Parquet objects below a prefix; columns that a file lacks are left out."""
    import pyarrow.parquet as pq

    names = [name for name in artifact.names(prefix) if name.endswith(".parquet")]
    for name in names[: max_shards or None]:
        with artifact.open(name) as file:
            parquet = pq.ParquetFile(file)
            present = [c for c in columns if c in parquet.schema_arrow.names]
            seen = 0
            for batch in parquet.iter_batches(batch_size=2048, columns=present):
                yield from batch.to_pylist()
                seen += batch.num_rows
                if max_shards and seen >= MAX_SAMPLED_DOCUMENTS:
                    break


def read_values(artifact: Artifact, column: str) -> tuple[list[float], bool]:
    """Return a column's values without nulls, and whether they are those of all kept documents.

    Of many shards some are read, spread evenly: the files of a source are in an order that means
    something, so the first ones would not stand for the others.
    """
    import pyarrow.parquet as pq

    names = artifact.names("kept/")
    stride = -(-len(names) // MAX_SCORED_SHARDS) if names else 1
    values: list[float] = []
    for name in names[::stride]:
        with artifact.open(name) as file:
            parquet = pq.ParquetFile(file)
            if column in parquet.schema_arrow.names:
                found = parquet.read(columns=[column])[column].drop_null().to_pylist()
                values += map(float, found)
    return values, stride == 1


@dataclass(frozen=True)
class Curves:
    """The columns of a checkpoint's curves."""

    columns: dict[str, list[float | None]]

    def points(self, name: str, x: str) -> tuple[list[float], list[float]]:
        """Pairs of finite values of two columns; empty where either is missing."""
        if name not in self.columns or x not in self.columns:
            return [], []
        pairs = [
            (float(a), float(b))
            for a, b in zip(self.columns[x], self.columns[name], strict=True)
            if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)
        ]
        return [a for a, _ in pairs], [b for _, b in pairs]

    def last(self, name: str) -> float | None:
        """The last finite value of a column, or None."""
        values = self.points(name, "step")[1]
        return values[-1] if values else None

    def first(self, name: str) -> float | None:
        """The first finite value of a column, or None."""
        values = self.points(name, "step")[1]
        return values[0] if values else None


def read_curves(artifact: Artifact) -> Curves:
    """Read `curves.parquet`: its numeric columns."""
    import pyarrow.parquet as pq
    import pyarrow.types as kinds

    if "curves.parquet" not in artifact.names():
        return Curves({})
    with artifact.open("curves.parquet") as file:
        table = pq.read_table(file)
    numeric = [
        f.name for f in table.schema
        if kinds.is_floating(f.type) or kinds.is_integer(f.type)
    ]  # fmt: skip
    columns = {name: table.column(name).to_pylist() for name in numeric}
    if "step" not in columns and table.num_rows:
        columns["step"] = list(range(table.num_rows))
    return Curves(columns)


def optional_json(artifact: Artifact | None, name: str) -> Any:
    """Read a JSON object, or None where the artifact lacks it."""
    if artifact is None or name not in artifact.names():
        return None
    return artifact.read_json(name)
