"""What training data hold of the benchmarks: the record that goes with a model, and the gate.

`decontaminate` leaves contamination.json in its artifact. Whoever trains on what was made from it
calls `record_of`, which follows manifests upwards to that report; `check` then refuses data whose
report is missing or over the recipe's limit. What a model was trained on travels with it:
every checkpoint holds contamination.json, in which evaluation looks its items up. An item is a row
number, so the record names the digest of the lines that it counted: of any other file of that name
it knows nothing.

The gate asks about the data that a recipe has now, and so stands before a model that is found as
well as before one that is trained: a benchmark that came later changes no byte of the shards.

A refusal is lifted by naming what is accepted: a benchmark, or `unreported` for data without a
report. A switch that accepts everything would be left on; a name goes into the manifest.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.artifacts.lookup import read_manifest
from lmpipe.artifacts.manifest import Manifest
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Artifact
from lmpipe.errors import InputError

FILE = "contamination.json"
UNREPORTED = "unreported"
Flag = Literal["clean", "dirty", "unsure", "unchecked", "unknown"]

LIMIT_DESCRIPTION = (
    "Largest share of the training documents that may hold evaluation items, unsure ones among "
    "them, by the report of decontaminate; data over it are refused."
)
ACCEPT_DESCRIPTION = (
    "Benchmarks whose items the data may hold all the same, by name; `unreported` accepts data "
    "without a contamination report."
)


class BenchmarkRecord(BaseModel):
    """One benchmark's items by number; all others are clean."""

    model_config = ConfigDict(frozen=True)

    items: int
    documents: int = Field(description="Training documents that hold an item of it.")
    dirty: tuple[int, ...] = ()
    unsure: tuple[int, ...] = ()
    unchecked: tuple[int, ...] = ()
    sha256: str = Field("", description="Of the lines that items are numbers of; empty: unknown.")


class ContaminationRecord(BaseModel):
    """What is known of a body of training data, or of all data that a model has seen."""

    model_config = ConfigDict(frozen=True)

    reported: bool = Field(description="Whether every part of the data has a report.")
    missing: tuple[str, ...] = Field((), description="Data without a report.")
    reports: tuple[str, ...] = Field((), description="Artifacts that the reports lie in.")
    documents: int = 0
    contaminated_documents: int = 0
    unsure_documents: int = Field(0, description="Documents with isolated n-grams of an item.")
    accepted: tuple[str, ...] = Field((), description="What was accepted by name.")
    benchmarks: dict[str, BenchmarkRecord] = Field(default_factory=dict)

    @property
    def contaminated_fraction(self) -> float:
        """Share of the documents that hold an item."""
        return self.contaminated_documents / max(1, self.documents)

    @property
    def suspect_fraction(self) -> float:
        """Share of the documents that hold an item or may do so: what the gate counts."""
        return self.suspect_documents / max(1, self.documents)

    @property
    def suspect_documents(self) -> int:
        """Documents that hold an item, or isolated n-grams of one that many others hold."""
        return self.contaminated_documents + self.unsure_documents

    def flag(self, benchmark: str, item: int, sha256: str) -> Flag:
        """Say what is known of one item.

        Args:
            sha256: of the benchmark's lines; where they are not those that were looked for, or none
                were, all of them are `unknown`.
        """
        record = self.benchmarks.get(benchmark)
        if record is None or record.sha256 != sha256:
            return "unknown"
        if item in record.dirty:
            return "dirty"
        if not self.reported:
            return "unknown"
        if item in record.unsure:
            return "unsure"
        return "unchecked" if item in record.unchecked else "clean"

    def summary(self) -> dict[str, Any]:
        """Return the figures that a manifest shows."""
        return {
            "reported": self.reported,
            "contaminated_fraction": self.contaminated_fraction,
            "suspect_fraction": self.suspect_fraction,
            "accepted": list(self.accepted),
            "dirty_items": {name: len(b.dirty) for name, b in sorted(self.benchmarks.items())},
        }

    def dump(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return self.model_dump(mode="json")


def parse_report(report: dict[str, Any], where: str) -> ContaminationRecord:
    """Read a contamination.json of `decontaminate` or of `lmpipe contamination`.

    Raises:
        InputError: it is none.
    """
    try:
        benchmarks = {
            name: BenchmarkRecord(
                items=row["items"],
                documents=sum(entry["remaining"] for entry in row["found"].values()),
                dirty=tuple(row["dirty"]),
                unsure=tuple(sorted(map(int, row["unsure"]))),
                unchecked=tuple(row["unchecked"]),
                sha256=row.get("sha256", ""),
            )
            for name, row in report["benchmarks"].items()
        }
        return ContaminationRecord(
            reported=True,
            reports=(where,),
            documents=report["documents"],
            contaminated_documents=report["contaminated_documents"],
            unsure_documents=report.get("unsure_documents", _most_unsure(report)),
            benchmarks=benchmarks,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{where} is no contamination report of this version ({error!r}); "
            "build decontaminate again"
        ) from error


def _most_unsure(report: dict[str, Any]) -> int:
    """Return the least number of unsure documents, for reports from before they were counted."""
    rows = [row["unsure"].values() for row in report["benchmarks"].values()]
    return max((entry.get("documents", 0) for row in rows for entry in row), default=0)


def record_of(artifact: Artifact) -> ContaminationRecord:
    """Return what is known of the documents that an artifact was made from."""
    return merge(_records(artifact.store, artifact.manifest))


def record_in(checkpoint: Artifact) -> ContaminationRecord:
    """Return the record that a checkpoint carries; without one its data are unreported."""
    if FILE in checkpoint.names():
        return ContaminationRecord.model_validate(checkpoint.read_json(FILE))
    return _missing(checkpoint.manifest)


def record_of_files(artifact: Artifact) -> ContaminationRecord:
    """Return what a source's own contamination.json says of its files."""
    names = [name for name in artifact.names() if name.rsplit("/", 1)[-1] == FILE]
    if not names:
        return _missing(artifact.manifest)
    return merge(parse_report(artifact_json(artifact, name), name) for name in names)


def artifact_json(artifact: Artifact, name: str) -> dict[str, Any]:
    """Return one JSON object of an artifact or a source."""
    with artifact.open(name) as file:
        loaded: dict[str, Any] = json.load(file)
    return loaded


def merge(records: Iterable[ContaminationRecord]) -> ContaminationRecord:
    """Join what is known of several bodies of data: dirty in one is dirty in all.

    Where they were searched for different files of one name, the counts stay for the gate; the
    digest goes, and with it the word on single items.
    """
    parts = list(records)
    names = sorted({name for part in parts for name in part.benchmarks})
    everywhere = [n for n in names if all(n in part.benchmarks for part in parts if part.reported)]
    benchmarks = {}
    for name in names:
        mine = [part.benchmarks[name] for part in parts if name in part.benchmarks]
        dirty = {item for record in mine for item in record.dirty}
        if name not in everywhere and not dirty:
            continue  # some of the data were never searched for it: unknown
        unsure = {item for record in mine for item in record.unsure} - dirty
        benchmarks[name] = BenchmarkRecord(
            items=max(record.items for record in mine),
            documents=sum(record.documents for record in mine),
            dirty=tuple(sorted(dirty)),
            unsure=tuple(sorted(unsure)),
            unchecked=tuple(sorted({i for r in mine for i in r.unchecked} - dirty - unsure)),
            sha256=mine[0].sha256 if len({record.sha256 for record in mine}) == 1 else "",
        )
    return ContaminationRecord(
        reported=all(part.reported for part in parts),
        missing=_union(part.missing for part in parts),
        reports=_union(part.reports for part in parts),
        documents=sum(part.documents for part in parts),
        contaminated_documents=sum(part.contaminated_documents for part in parts),
        unsure_documents=sum(part.unsure_documents for part in parts),
        accepted=_union(part.accepted for part in parts),
        benchmarks=benchmarks,
    )


def check(
    record: ContaminationRecord, limit: float, accepted: Sequence[str], stage: str
) -> ContaminationRecord:
    """Refuse data that have no report or hold too much; return the record with what was accepted.

    Raises:
        InputError: the data are refused; the message names what, the limit, and the way out.
    """
    key = f"{stage}.accept_contamination"
    used = []
    if not record.reported:
        if UNREPORTED not in accepted:
            raise InputError(
                f"{stage} refuses data without a contamination report: {', '.join(record.missing)}."
                f" Run decontaminate on them, or name it: {key}=[{UNREPORTED}]"
            )
        used.append(UNREPORTED)
    dirty = {name: b for name, b in sorted(record.benchmarks.items()) if b.dirty or b.unsure}
    fraction = record.suspect_fraction
    if fraction > limit:
        refused = [name for name in dirty if name not in accepted]
        if refused:
            counts = ", ".join(
                f"{name} ({len(dirty[name].dirty)} items in {dirty[name].documents} documents, "
                f"{len(dirty[name].unsure)} unsure)"
                for name in refused
            )
            raise InputError(
                f"{stage} refuses contaminated data: {record.suspect_documents} of "
                f"{record.documents} documents ({fraction:.2%}, over "
                f"{stage}.max_contaminated_fraction={limit:g}) hold items of {counts}. Let "
                f"decontaminate.remove take them out, or accept them by name: "
                f"{key}=[{', '.join(refused)}]"
            )
        used += [name for name in dirty if name in accepted]
    return record.model_copy(update={"accepted": _union([record.accepted, tuple(used)])})


def _records(store: Store, manifest: Manifest) -> list[ContaminationRecord]:
    """Follow documents upwards, each to the nearest report."""
    if any(file.name == FILE for file in manifest.outputs):
        artifact = Artifact(store, manifest)
        where = f"{manifest.stage}/{manifest.id}"
        return [parse_report(artifact.read_json(FILE), where)]
    above = [read_manifest(store, entry.stage, entry.id) for entry in manifest.inputs]
    bodies = [found[0] for found in above if found and found[0].type == "Documents"]
    if not bodies:
        return [_missing(manifest)]
    return [record for body in bodies for record in _records(store, body)]


def _missing(manifest: Manifest) -> ContaminationRecord:
    return ContaminationRecord(reported=False, missing=(f"{manifest.stage}/{manifest.id}",))


def _union(groups: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for group in groups for name in group}))
