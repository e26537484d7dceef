"""Which documents held eval items, which items are dirty, and whether the search can be trusted."""

from __future__ import annotations

from itertools import islice
from typing import Any

from lmpipe.artifacts.types import Artifact
from lmpipe.report.blocks import Cell, Check, Checks, Sample, Samples, Section, Table, Tile, Tiles
from lmpipe.report.read import MAX_SAMPLED_SHARDS, DocumentStep, Run, optional_json, read_rows
from lmpipe.report.svg import number
from lmpipe.report.wording import count, excerpt, percent

MAX_NUMBERS = 24
MAX_SAMPLES = 8
COLUMNS = ["id", "benchmark", "item", "part", "share", "action", "text"]


def section(run: Run) -> Section:
    """Show what was found of each eval set, the control, and items in the documents' own words."""
    found = Section(
        "contamination",
        "Contamination",
        "Documents that share long word n-grams with an eval item. An item is dirty if the training"
        " text still holds it; its score then says little.",
    )
    for step in run.documents:
        if step.artifact.stage != "decontaminate":
            continue
        report = optional_json(step.artifact, "contamination.json") or {}
        found.add(_figures(step, report), _control(step.artifact.metrics.get("control")))
        if step.reasons:
            rows: list[list[Cell | str]] = [
                [reason, Cell(f"{amount:,}", amount / step.removed)]
                for reason, amount in step.reasons
            ]
            found.add(Table(["eval set or reason", "documents"], rows))
        sets = report.get("benchmarks") or {}
        found.add(_benchmarks(step.artifact.metrics.get("benchmarks") or {}, sets))
        found.add(_numbers(sets), _samples(step.artifact))
    return found


def _figures(step: DocumentStep, report: dict[str, Any]) -> Tiles:
    removed = percent(step.removed / step.entered) if step.entered else ""
    tiles = [
        Tile("Documents checked", count(step.entered)),
        Tile("Removed", count(step.removed), f"{removed} of them"),
    ]
    if report:
        held, left = report["flagged_documents"], report["contaminated_documents"]
        tiles.append(Tile("Held an item", count(held), "before anything went"))
        tiles.append(Tile("Hold one still", count(left), "and are in the training text"))
        dirty = sum(len(row["dirty"]) for row in report["benchmarks"].values())
        tiles.append(Tile("Dirty items", count(dirty), "of all eval sets"))
    return Tiles(tiles)


def _control(figures: dict[str, float] | None) -> Checks | None:
    """Say what came of the items and of the innocent texts that were hidden in real documents."""
    if not figures:
        return None
    planted, found = int(figures["planted"]), int(figures["found"])
    checks = [
        Check(
            "Items hidden in real documents are found",
            f"{found:,} of {planted:,}, half of them in capitals with other punctuation: recall"
            f" {percent(figures['recall'])}",
            found == planted,
        )
    ]
    if negatives := int(figures["negatives"]):
        wrong = int(figures["flagged_negatives"])
        checks.append(
            Check(
                "Short items and templates hidden there flag nothing",
                f"{wrong:,} of {negatives:,} did: precision {percent(figures['precision'])}",
                wrong == 0,
            )
        )
    return Checks(checks)


def _benchmarks(rows_by_name: dict[str, Any], sets: dict[str, Any]) -> Table | None:
    """One row an eval set, with the columns that `decontaminate` reports and the dirty items."""
    if not rows_by_name:
        return None
    columns = list(next(iter(rows_by_name.values())))
    rows = [[str(row.get(column, "–")) for column in columns] for row in rows_by_name.values()]
    if sets:
        columns = [*columns, "dirty items"]
        for name, row in zip(rows_by_name, rows, strict=True):
            row.append(str(len(sets.get(name, {}).get("dirty", []))))
    return Table(columns, rows, tuple(range(1, len(columns))), caption="Eval sets")


def _numbers(sets: dict[str, Any]) -> Table | None:
    """Name the items that are not known to be clean."""
    rows: list[list[Cell | str]] = []
    for name, row in sets.items():
        for kind, meaning in (
            ("dirty", "in the training text"),
            ("unsure", "met by boilerplate alone"),
        ):
            numbers = sorted(int(n) for n in row[kind])
            if numbers:
                more = len(numbers) - MAX_NUMBERS
                text = ", ".join(map(str, numbers[:MAX_NUMBERS]))
                rows.append([name, meaning, text + (f" and {more:,} more" if more > 0 else "")])
    return Table(["eval set", "items", "numbers"], rows) if rows else None


def _samples(artifact: Artifact) -> Samples | None:
    rows = islice(read_rows(artifact, "overlaps/", COLUMNS, MAX_SAMPLED_SHARDS), 2000)
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        key = row["benchmark"], row["item"]
        if key not in best or row["share"] > best[key]["share"]:
            best[key] = row
    chosen = sorted(best.values(), key=lambda row: (-row["share"], row["benchmark"], row["item"]))
    samples = [
        Sample(
            f"{row['benchmark']}, item {row['item']}, {row['part']}",
            excerpt(row["text"]),
            f"share {number(row['share'])} of its n-grams, document {row['id']}, {row['action']}",
            "bad",
        )
        for row in chosen[:MAX_SAMPLES]
    ]
    return Samples("Items as documents held them", samples) if samples else None
