"""What was cut out of documents because another one holds it as well."""

from __future__ import annotations

from itertools import islice
from typing import Any

from lmpipe.artifacts.types import Artifact
from lmpipe.report.blocks import Check, Checks, Sample, Samples, Section, Tile, Tiles
from lmpipe.report.read import MAX_SAMPLED_SHARDS, Run, read_rows
from lmpipe.report.wording import count, excerpt, percent

MAX_SAMPLES = 8
MAX_ROWS = 20_000
COLUMNS = ["id", "action", "segment", "num_words", "keeper", "keeper_segment", "copies", "text"]


def section(run: Run) -> Section:
    """Show how much went, what was copied most, and what a Bloom filter may have got wrong."""
    found = Section(
        "passages",
        "Repeated passages",
        "Text that several documents hold stays in one of them. What was cut and what was kept add"
        " up to the text that came in, to the character.",
    )
    for artifact in run.of("dedup_passages"):
        found.add(_figures(artifact), _bloom(artifact.metrics), _samples(artifact))
    return found


def _figures(artifact: Artifact) -> Tiles:
    metrics = artifact.metrics
    kept, cut, dropped = (metrics[f"{name}_characters"] for name in ("kept", "cut", "dropped"))
    whole = max(1, kept + cut + dropped)
    return Tiles(
        [
            Tile("Characters cut", percent(cut / whole), f"{count(cut)} of them"),
            Tile("Documents cut", count(metrics["cut"]), f"of {count(metrics['input'])}"),
            Tile(
                "Documents removed",
                count(metrics["input"] - metrics["kept"]),
                f"too little left; {percent(dropped / whole)} of the text went with them",
            ),
            Tile("Passages", count(metrics["passages"]), f"{count(metrics['repeats'])} repeats"),
            Tile("Keepers lost", count(metrics["lost_keepers"]), "cuts whose text is nowhere left"),
        ]
    )


def _bloom(metrics: dict[str, Any]) -> Checks | None:
    if "bloom_bits" not in metrics:
        return None
    evidence = (
        f"{metrics['bloom_keys']:,} of {metrics['bloom_capacity']:,} keys,"
        f" {metrics['bloom_bits'] / 8 / 2**20:,.0f} MB, {metrics['bloom_probes']} probes: about"
        f" {metrics['bloom_expected_errors']:,.1f} unique passages were taken for repeats; no cut"
        " has a keeper"
    )
    fits = metrics["bloom_keys"] <= metrics["bloom_capacity"]
    return Checks([Check("The Bloom filter held all passages", evidence, fits)])


def _samples(artifact: Artifact) -> Samples | None:
    rows = islice(read_rows(artifact, "cuts/", COLUMNS, MAX_SAMPLED_SHARDS), MAX_ROWS)
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = " ".join(row["text"].lower().split())
        if key not in best or (row["copies"] or 0) > (best[key]["copies"] or 0):
            best[key] = row
    chosen = sorted(best.values(), key=lambda row: (-(row["copies"] or 0), row["id"]))
    samples = [
        Sample(
            f"{row['copies']:,} copies" if row["copies"] else "seen before",
            excerpt(row["text"]),
            f"cut out of {row['id']}"
            + (f", stays in {row['keeper']}" if row["keeper"] else "; a filter knows no keeper"),
            "bad",
        )
        for row in chosen[:MAX_SAMPLES]
    ]
    return Samples("What was copied most", samples) if samples else None
