"""Curves of every checkpoint, and what the aligned models wrote."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from lmpipe.artifacts.types import Checkpoint
from lmpipe.report.blocks import (
    Block,
    Cell,
    Charts,
    Sample,
    Samples,
    Section,
    Table,
    Text,
    Tile,
    Tiles,
)
from lmpipe.report.read import Curves, Run, optional_json, read_curves
from lmpipe.report.svg import Chart, Level, Line, line_chart, number
from lmpipe.report.wording import count, duration, excerpt, label, percent, sentence

# columns that say where a point lies and not how the run went
AXES = ("step", "tokens", "seconds", "samples", "epoch", "sequences", "examples")
LOSSES = ("loss", "validation_loss")
HELD_OUT = "heldout_"
FIRST = ("reward", "lr", "grad_norm", "bits_per_byte", "kl")
LEADS = {
    "pretrain": "Loss in nats per token. The dashed line is the unigram entropy of the validation"
    " text under training counts: a model that only knew word frequencies would end there.",
    "sft": "Fine-tuning on conversations, loss on the assistant's tokens only.",
    "dpo": "Preference pairs from stored rollouts: chosen against rejected answers.",
    "grpo": "Reinforcement learning from a verifiable reward, advantages normalised by group.",
}
TITLES = {"pretrain": "Pretraining", "sft": "SFT", "dpo": "DPO", "grpo": "GRPO"}
SMOOTH_FROM = 60  # points; below that the raw curve is readable as it is
NUM_COMPLETIONS = 12


def sections(run: Run) -> list[Section]:
    """One section for each training stage, in the order of the run."""
    return [_section(run, checkpoint) for checkpoint in run.checkpoints]


def _section(run: Run, checkpoint: Checkpoint) -> Section:
    stage = checkpoint.stage
    same = [c for c in run.checkpoints if c.stage == stage]
    suffix = f" {same.index(checkpoint) + 1}" if len(same) > 1 else ""
    section = Section(
        f"{stage}{suffix.replace(' ', '-')}",
        TITLES.get(stage, sentence(stage)) + suffix,
        LEADS.get(stage, ""),
    )
    curves = read_curves(checkpoint)
    levels = _levels(run, stage)
    section.add(_tiles(checkpoint, curves), charts(curves, levels))
    section.add(constants(curves), mixture(checkpoint), packing(checkpoint))
    section.add(completions(checkpoint))
    return section


def _levels(run: Run, stage: str) -> list[Level]:
    meta = optional_json(run.one("shards"), "meta.json") or {}
    entropy = meta.get("unigram_entropy_nats")
    return [Level("unigram entropy", float(entropy))] if entropy and stage == "pretrain" else []


def _tiles(checkpoint: Checkpoint, curves: Curves) -> Tiles | None:
    meta: dict[str, Any] = optional_json(checkpoint, "meta.json") or {}
    tiles = []
    if meta.get("parameters"):
        tiles.append(Tile("Parameters", count(meta["parameters"])))
    if meta.get("step"):
        tokens = meta.get("tokens")
        tiles.append(
            Tile("Steps", count(meta["step"]), f"{count(tokens)} tokens" if tokens else "")
        )
    for name in (*LOSSES, "reward", f"{HELD_OUT}reward"):
        first, last = curves.first(name), curves.last(name)
        if first is not None and last is not None:
            tiles.append(Tile(sentence(label(name)), f"{last:.3f}", f"from {first:.3f}"))
    seconds = checkpoint.manifest.provenance.seconds
    tiles.append(Tile("Time", duration(seconds), ", ".join(checkpoint.manifest.provenance.devices)))
    return Tiles(tiles)


def charts(curves: Curves, levels: Sequence[Level]) -> Charts | None:
    """Draw the losses together, then every other column: none is left out unless it never moves.

    A column NAME and the one measured on held-out problems, `heldout_NAME`, share a drawing.
    """
    x = "tokens" if len(set(curves.points("tokens", "tokens")[0])) > 1 else "step"
    drawn = [_loss_chart(curves, x, levels)]
    names = [n for n in curves.columns if n not in (*AXES, *LOSSES) and not n.endswith("stderr")]
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.removeprefix(HELD_OUT), []).append(name)
    ordered = sorted(groups, key=lambda name: name not in FIRST)
    drawn += [_chart(name, groups[name], curves, x) for name in ordered]
    finished = [chart for chart in drawn if chart is not None]
    return Charts(finished) if finished else None


def constants(curves: Curves) -> Text | None:
    """Name the columns that never moved, in place of drawing them."""
    names = [n for n in curves.columns if n not in AXES and not n.endswith("stderr")]
    flat = {name: curves.points(name, "step")[1] for name in names}
    words = [f"{label(n)} {number(v[0])}" for n, v in flat.items() if v and len(set(v)) == 1]
    return Text(f"Constant throughout: {', '.join(words)}.") if words else None


def mixture(checkpoint: Checkpoint) -> Table | None:
    """Say what each token set gave to a run that mixes several."""
    given: dict[str, dict[str, Any]] = checkpoint.metrics.get("mixture") or {}
    if not given:
        return None
    num_stages = max(len(part["stage_shares"]) for part in given.values())
    stages = [f"stage {n}" for n in range(1, num_stages + 1)]
    rows: list[list[Cell | str]] = [
        [name, Cell(percent(part["share"]), part["share"]), count(part["tokens"]),
         f"{part['epochs']:.2f}", *map(percent, part["stage_shares"])]
        for name, part in given.items()
    ]  # fmt: skip
    columns = ["token set", "share", "tokens", "epochs", *stages]
    return Table(columns, rows, tuple(range(2, len(columns))), caption="What each token set gave")


def packing(checkpoint: Checkpoint) -> Table | None:
    """Say what the layout of documents in sequences costs."""
    found: dict[str, Any] = checkpoint.metrics.get("document_packing") or {}
    if not found:
        return None
    sets = {"": found} if "sequences" in found else found
    rows: list[list[Cell | str]] = [
        [name or "main", count(part["sequences"]), percent(part["padding_fraction"]),
         percent(part["cut_fraction"]), count(part["cut_documents"])]
        for name, part in sets.items()
    ]  # fmt: skip
    columns = ["token set", "sequences an epoch", "padding", "targets cut from their beginning",
               "documents cut"]  # fmt: skip
    return Table(columns, rows, (1, 2, 3, 4), caption="Documents in sequences")


def _loss_chart(curves: Curves, x: str, levels: Sequence[Level]) -> Chart | None:
    lines = _lines(curves, "loss", x, 1, "training loss")
    validation = curves.points("validation_loss", x)
    if validation[0]:
        lines.append(Line("validation loss", *validation, colour=2, dots=len(validation[0]) <= 40))
    unit = "nats per token" if levels else "loss"
    return line_chart("Loss", lines, x_label=x, y_label=unit, levels=levels)


def _chart(name: str, columns: Sequence[str], curves: Curves, x: str) -> Chart | None:
    moving = [c for c in columns if len(set(curves.points(c, x)[1])) > 1]
    if len(moving) == 1 and not moving[0].startswith(HELD_OUT):
        lines = _lines(curves, moving[0], x, 1)
    else:
        lines = [
            Line(label(c), *curves.points(c, x), colour=1 + i, dots=_sparse(curves, c))
            for i, c in enumerate(moving)
        ]
    title = sentence(label(name))
    return line_chart(title, lines, x_label=x, y_label=label(name))


def _sparse(curves: Curves, name: str) -> bool:
    return len(curves.points(name, "step")[0]) <= 40


def _lines(curves: Curves, name: str, x: str, colour: int, title: str = "") -> list[Line]:
    """A curve; a long one as a smoothed line before its raw values."""
    xs, ys = curves.points(name, x)
    title = title or label(name)
    if len(xs) < SMOOTH_FROM or name == "lr":
        return [Line(title, xs, ys, colour)]
    return [
        Line("each step", xs, ys, colour, faint=True),
        Line(title if title == "training loss" else "smoothed", xs, smoothed(ys), colour),
    ]


def smoothed(values: Sequence[float]) -> list[float]:
    """Centred mean over a fortieth of the curve to either side, less at its ends (no lag)."""
    reach = max(1, len(values) // 40)
    sums = [0.0, *itertools.accumulate(values)]
    result = []
    for i in range(len(values)):
        width = min(reach, i, len(values) - 1 - i)
        result.append((sums[i + width + 1] - sums[i - width]) / (2 * width + 1))
    return result


def completions(checkpoint: Checkpoint) -> Block | None:
    """Quote what the model wrote, the best and the worst rewarded among it."""
    samples = optional_json(checkpoint, "samples.json") or []
    if isinstance(samples, dict):
        samples = samples.get("samples", [])
    quoted = [_completion(sample) for sample in samples[:NUM_COMPLETIONS]]
    return Samples("Sample completions", quoted, open=True) if quoted else None


def _completion(sample: dict[str, Any]) -> Sample:
    reward = sample.get("reward")
    tone, facts = "", []
    if isinstance(reward, int | float):
        tone = "good" if reward >= 1 else "bad" if reward <= 0 else ""
        facts.append(f"reward {reward:.2f}")
    for name, value in sample.items():
        if name not in ("prompt", "completion", "reward") and isinstance(value, str | int | float):
            facts.append(f"{name.replace('_', ' ')} {excerpt(str(value), 80)}")
    return Sample(
        excerpt(str(sample.get("prompt", "")), 200),
        excerpt(str(sample.get("completion", ""))) or "(nothing)",
        ", ".join(facts),
        tone,
    )
