"""The scaling fit: points, curve, and the prediction against what was measured."""

from __future__ import annotations

from typing import Any

from lmpipe.report.blocks import Cell, Charts, Section, Table, Tile, Tiles
from lmpipe.report.read import Run
from lmpipe.report.svg import Line, line_chart
from lmpipe.report.wording import count


def section(run: Run) -> Section:
    """Show each fit of the run; empty where there was no sweep."""
    result = Section(
        "scaling", "Scaling", "Small runs, one law through them, and the largest run predicted."
    )
    for artifact in run.of("scale"):
        fit, points = artifact.read_json("fit.json"), artifact.read_json("points.json")
        result.add(_tiles(fit), _chart(fit, points), _constants(fit), _points(points))
    return result


def _tiles(fit: dict[str, Any]) -> Tiles:
    prediction = fit["prediction"]
    low, high = prediction["interval"]
    actual = prediction["actual"]
    tiles = [
        Tile("Law", fit["law"], fit["formula"]),
        Tile("Predicted loss", f"{prediction['predicted']:.3f}", f"{low:.3f} to {high:.3f}"),
    ]
    if actual is None:
        tiles.append(Tile("Measured loss", "none", "the run diverged"))
    else:
        inside = "inside" if low <= actual <= high else "outside"
        tiles += [
            Tile("Measured loss", f"{actual:.3f}", f"{inside} the interval"),
            Tile("Error", f"{prediction['error']:+.1%}", "of the measured loss"),
        ]
    if left_out := fit.get("left_out"):
        tiles.append(Tile("Left out of the fit", str(len(left_out)), f"diverged: {left_out[0]}"))
    if following := fit.get("next_run"):
        size, tokens = count(following["parameters"]), count(following["tokens"])
        note = f"{size} parameters on {tokens} tokens, {following['flops']:.1e} FLOPs, by the law"
        tiles.append(Tile("Next run", f"{following['loss']:.3f}", note))
    return Tiles(tiles)


def _chart(fit: dict[str, Any], points: list[dict[str, Any]]) -> Charts | None:
    lines = []
    points = [p for p in points if p["loss"] is not None]
    sizes = sorted({p["parameters"] for p in points if not p["held_out"]})
    for index, parameters in enumerate(sizes):
        own = sorted(
            (p for p in points if p["parameters"] == parameters and not p["held_out"]),
            key=lambda p: p["flops"],
        )
        flops, colour = [p["flops"] for p in own], 1 + index % 4
        name = f"{count(parameters)} parameters"
        lines.append(Line(name, flops, [p["loss"] for p in own], colour, dots=True))
        lines.append(Line("", flops, [p["fitted"] for p in own], colour, faint=True))
    held = [p for p in points if p["held_out"]]
    x = [p["flops"] for p in held]
    lines.append(Line("held out, measured", x, [p["loss"] for p in held], 5, dots=True))
    lines.append(
        Line("held out, predicted", x, [fit["prediction"]["predicted"]] * len(x), 6, dots=True)
    )
    chart = line_chart(
        "Loss against compute",
        lines,
        x_label="training FLOPs (6ND)",
        y_label="validation loss",
        log="x",
        caption="Faint: what the law says of the same runs.",
    )
    return Charts([chart]) if chart else None


def _constants(fit: dict[str, Any]) -> Table:
    rows: list[list[Cell | str]] = [
        [name, f"{value:.4g}", _interval(fit["intervals"].get(name))]
        for name, value in fit["constants"].items()
    ]
    level = f"{fit['level']:.0%} bootstrap interval"
    return Table(["constant", "value", level], rows, (1, 2))


def _interval(bounds: list[float] | None) -> str:
    return f"{bounds[0]:.4g} to {bounds[1]:.4g}" if bounds else "–"


def _points(points: list[dict[str, Any]]) -> Table:
    rows: list[list[Cell | str]] = [
        [count(p["parameters"]), count(p["tokens"]), f"{p['flops']:.2e}",
         "diverged" if p["loss"] is None else f"{p['loss']:.4f}",
         f"{p['fitted']:.4f}", "held out" if p["held_out"] else ""]
        for p in points
    ]  # fmt: skip
    columns = ["parameters", "tokens", "FLOPs", "loss", "law", ""]
    return Table(columns, rows, (0, 1, 2, 3, 4), caption="Runs")
