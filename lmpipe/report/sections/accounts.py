"""What the run cost, how to repeat it, and where each artifact came from."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lmpipe.artifacts.types import Artifact
from lmpipe.report.blocks import Cell, Charts, Code, Sample, Samples, Section, Table
from lmpipe.report.read import Run, moment, title
from lmpipe.report.svg import Span, span_chart
from lmpipe.report.wording import duration, size

COLOURS = {"exact": 1, "statistical": 2}
LONG_GAP_SECONDS = 3600.0


def failures(failed: Sequence[str]) -> list[Section]:
    """Say first which steps of the run failed, or were not run for want of one that did."""
    if not failed:
        return []
    result = Section(
        "failed",
        "What failed",
        "This run failed: the page is about the stages that did not need these.",
    )
    rows: list[list[Cell | str]] = [list(line.partition(": ")[::2]) for line in failed]
    result.add(Table(["step", "why"], rows))
    return [result]


def cost(run: Run) -> Section:
    """Give each stage's time, size and GPU-hours."""
    result = Section(
        "cost",
        "Time and cost",
        "From the manifests: when each artifact was made. One that was already in the store when"
        " the run began shows the time of its making.",
    )
    total = sum(a.manifest.provenance.seconds for a in run.artifacts) or 1.0
    rows: list[list[Cell | str]] = []
    for artifact in run.artifacts:
        made = artifact.manifest.provenance
        written = sum(record.bytes for record in artifact.manifest.outputs)
        rows.append(
            [
                title(artifact),
                Cell(duration(made.seconds), made.seconds / total),
                f"{made.gpu_hours:.2f}" if made.gpu_hours else "–",
                size(made.bytes_read or artifact.metrics.get("bytes", 0)),
                size(written),
                artifact.manifest.kind,
                made.host,
            ]
        )
    legend = [(f"k{colour}", f"{kind} stage") for kind, colour in COLOURS.items()]
    chart = span_chart("When each stage ran", _spans(run.artifacts), legend=legend)
    result.add(Charts([chart]) if chart else None)
    columns = ["stage", "time", "GPU-hours", "read", "written", "kind", "host"]
    result.add(Table(columns, rows, (2, 3, 4)))
    return result


def _spans(artifacts: Sequence[Artifact]) -> list[Span]:
    """Place stages in time; idle stretches of over an hour are cut out."""
    timed = sorted(
        (
            moment(artifact.manifest.provenance.started).timestamp(),
            moment(artifact.manifest.provenance.finished).timestamp(),
            index,
        )
        for index, artifact in enumerate(artifacts)
    )
    spans, offset, end_of_all = [], timed[0][0] if timed else 0.0, timed[0][0] if timed else 0.0
    for start, end, index in timed:
        if start - end_of_all > LONG_GAP_SECONDS:
            offset += start - end_of_all
        end_of_all = max(end_of_all, end)
        artifact = artifacts[index]
        colour = COLOURS.get(artifact.manifest.kind, 1)
        spans.append(Span(title(artifact), start - offset, end - offset, colour))
    return spans


def reproduce(run: Run, recipe: str) -> Section:
    """Give the commands and the exact code that made the run."""
    result = Section("reproduce", "Reproduce")
    commits = sorted({a.manifest.provenance.git_commit for a in run.artifacts} - {""})
    dirty = any(a.manifest.provenance.git_dirty for a in run.artifacts)
    newest = run.artifacts[-1].manifest.provenance.git_commit if run.artifacts else ""
    lines = [f"git checkout {newest}"] if newest else []
    lines += [
        f"lmpipe run {recipe}",
        f"lmpipe plan {recipe}          # what would run now, and why",
    ]
    if run.artifacts:
        last = run.artifacts[-1]
        lines.append(f"lmpipe show {last.id}      # manifest, config and inputs of one artifact")
    result.add(Code("\n".join(lines)))
    notes = []
    if len(commits) > 1:
        notes.append(f"its artifacts come from {len(commits)} commits: {', '.join(commits)}")
    if dirty:
        notes.append("the working tree had uncommitted changes")
    if notes:
        result.lead = f"Mind that {' and '.join(notes)}."
    configs = [
        Sample(f"{title(a)} {a.id}", json.dumps(a.manifest.config, indent=1, ensure_ascii=False))
        for a in run.artifacts
    ]
    result.add(Samples("Config of every stage", configs) if configs else None)
    return result


def lineage(run: Run) -> Section:
    """List every artifact with its identity, content digest and inputs."""
    rows: list[list[Cell | str]] = []
    for artifact in run.artifacts:
        inputs = ", ".join(f"{r.stage} {r.id[:8]}" for r in artifact.manifest.inputs)
        version = f"{artifact.manifest.version}"
        rows.append(
            [
                title(artifact),
                version,
                Cell(artifact.id, code=True),
                Cell(artifact.digest[:16], code=True),
                inputs or "–",
            ]
        )
    result = Section(
        "lineage",
        "Lineage",
        "An id names what was asked for, a digest the bytes that came out. Equal digests mean that"
        " everything after them is shared.",
    )
    result.add(Table(["stage", "version", "id", "digest", "made from"], rows))
    inexact = [(a.stage, record) for a in run.artifacts for record in a.manifest.inexact]
    if inexact:
        cut: list[list[Cell | str]] = [
            [stage, str(record.get("record", "")), str(record.get("reason", ""))]
            for stage, record in inexact[:50]
        ]
        result.add(Table(["stage", "record", "limit"], cut, caption="Records that a limit stopped"))
    return result
