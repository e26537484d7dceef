"""How good the classifiers are, on examples that they were not trained on.

A threshold is chosen by what it costs: so precision and recall are said at 0.5 and at the bound
that select took, and the curve over all thresholds lies beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmpipe.artifacts.types import Artifact
from lmpipe.report.blocks import Cell, Charts, Section, Table
from lmpipe.report.read import Run, optional_json
from lmpipe.report.svg import Chart, Line, line_chart, number
from lmpipe.report.wording import count

NUM_BINS = 20
MIN_CHOSEN = 5  # fewer examples above a threshold say nothing of its precision
BOUNDS = {  # role in `signals`: column, select's bounds on it
    "quality": ("quality_score", ("min_quality_score", "top_quality_fraction")),
    "toxicity": ("toxicity", ("max_toxicity",)),
    "nsfw": ("nsfw", ("max_nsfw",)),
}
Pairs = list[tuple[float, bool]]


def section(run: Run) -> Section:
    """A row in each table and three charts a classifier."""
    made = Section(
        "classifiers",
        "Classifiers",
        "Measured on held-out examples. The reliability curve says how many of the examples with a"
        " score near 0.8 are positive: eight in ten, where it lies on the diagonal.",
    )
    found = [_read(run, artifact) for artifact in run.of("quality_classifier")]
    if found:
        made.add(_held_out(found), _taken(found))
    for classifier in found:
        made.add(_charts(classifier))
    return made


class _Figures(NamedTuple):
    precision: float | None
    recall: float | None
    num_chosen: int


@dataclass(frozen=True)
class _Classifier:
    artifact: Artifact
    column: str  # of the documents, that it fills
    label: str  # what it finds
    bound: str  # select's, or empty
    threshold: float | None
    pairs: Pairs  # score and truth of the held-out examples

    def at(self, threshold: float) -> _Figures:
        """Figures of "score >= threshold"."""
        chosen = [truth for score, truth in self.pairs if score >= threshold]
        positives = sum(truth for _, truth in self.pairs)
        hits = sum(chosen)
        return _Figures(
            hits / len(chosen) if chosen else None,
            hits / positives if positives else None,
            len(chosen),
        )


def _read(run: Run, artifact: Artifact) -> _Classifier:
    held_out = optional_json(artifact, "held_out.json") or {"scores": [], "positive": []}
    label = (optional_json(artifact, "meta.json") or {}).get("positive_label", "positive")
    pairs = list(zip(held_out["scores"], held_out["positive"], strict=True))
    column, bound, threshold = _bound(run, artifact)
    return _Classifier(artifact, column, label, bound, threshold, pairs)


def _bound(run: Run, artifact: Artifact) -> tuple[str, str, float | None]:
    """Return the column that a classifier fills, and select's bound on it, if it has one."""
    signals, select = run.one("signals"), run.one("select")
    inputs = signals.manifest.inputs if signals else []
    role = next((r.role for r in inputs if (r.stage, r.id) == (artifact.stage, artifact.id)), "")
    column, bounds = BOUNDS.get(role, ("", ()))
    config = select.manifest.config if select else {}
    for name in bounds:
        if config.get(name) is not None:
            counted = name == "top_quality_fraction"
            value = select.metrics.get("min_top_quality") if counted and select else config[name]
            return column, name, value
    if column == "quality_score" and config.get("quality_pareto_alpha") is not None:
        return column, "quality_pareto_alpha (a draw)", None
    return column, "", None


def _held_out(found: Sequence[_Classifier]) -> Table:
    figures = ("precision", "recall", "macro_f1", "brier", "calibration_error")
    rows: list[list[Cell | str]] = []
    for classifier in found:
        report = classifier.artifact.metrics.get("held_out") or {}
        counts = (count(report.get("examples")), count(report.get("positives")))
        rows.append([classifier.label, *counts, *(_figure(report.get(key)) for key in figures)])
    columns = ["finds", "examples", "positive", "precision", "recall", "macro-F1", "Brier score"]
    return Table(
        [*columns, "calibration error"],
        rows,
        numeric=range(1, 8),
        caption="On held-out examples, at a threshold of 0.5",
    )


def _taken(found: Sequence[_Classifier]) -> Table:
    rows: list[list[Cell | str]] = []
    for classifier in found:
        at = classifier.threshold
        precision, recall, _ = classifier.at(at) if at is not None else _Figures(None, None, 0)
        threshold = "–" if at is None else number(at)
        bound = classifier.bound or "none"
        name = classifier.column or "–"
        rows.append([classifier.label, name, bound, threshold, _figure(precision), _figure(recall)])
    return Table(
        ["finds", "column", "bound of select", "threshold", "precision there", "recall there"],
        rows,
        numeric=(3, 4, 5),
        caption="At the threshold that select takes",
    )


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _charts(classifier: _Classifier) -> Charts | None:
    drawn = [_reliability(classifier), _histogram(classifier), _trade_off(classifier)]
    charts = [chart for chart in drawn if chart is not None]
    return Charts(charts) if charts else None


def _reliability(classifier: _Classifier) -> Chart | None:
    bins = (classifier.artifact.metrics.get("held_out") or {}).get("calibration") or []
    if not bins:
        return None
    lines = [
        Line("perfect", [0.0, 1.0], [0.0, 1.0], 0, faint=True),
        Line(
            f"{classifier.label}, by tenths",
            [row["mean_score"] for row in bins],
            [row["positive_fraction"] for row in bins],
            1,
            dots=True,
        ),
    ]
    return line_chart(
        f"Reliability: {classifier.label}", lines, x_label="score", y_label="share of positives"
    )


def _histogram(classifier: _Classifier) -> Chart | None:
    if not classifier.pairs:
        return None
    lines = []
    for colour, (truth, name) in enumerate(((True, classifier.label), (False, "others")), 1):
        counts = [0] * NUM_BINS
        for score, positive in classifier.pairs:
            if positive is truth:
                counts[min(NUM_BINS - 1, int(score * NUM_BINS))] += 1
        middles = [(n + 0.5) / NUM_BINS for n in range(NUM_BINS)]
        lines.append(Line(name, middles, counts, colour))
    lines += _mark(classifier, max(max(line.y) for line in lines))
    return line_chart(
        f"Held-out scores: {classifier.label}", lines, x_label="score", y_label="examples"
    )


def _trade_off(classifier: _Classifier) -> Chart | None:
    if not classifier.pairs:
        return None
    thresholds = [n / 100 for n in range(101)]
    curves: dict[str, tuple[list[float], list[float]]] = {"precision": ([], []), "recall": ([], [])}
    for threshold in thresholds:
        precision, recall, chosen = classifier.at(threshold)
        for name, value in (("precision", precision), ("recall", recall)):
            if value is not None and (name == "recall" or chosen >= MIN_CHOSEN):
                curves[name][0].append(threshold)
                curves[name][1].append(value)
    lines = [Line(name, x, y, colour) for colour, (name, (x, y)) in enumerate(curves.items(), 1)]
    return line_chart(
        f"By threshold: {classifier.label}",
        [*lines, *_mark(classifier, 1.0)],
        x_label="threshold",
        y_label="precision, recall",
    )


def _mark(classifier: _Classifier, height: float) -> list[Line]:
    """Draw the threshold that select took as an upright line."""
    at = classifier.threshold
    if at is None:
        return []
    return [Line("threshold taken", [at, at], [0.0, height], 0, faint=True)]
