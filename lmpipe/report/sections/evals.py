"""Evaluations with standard errors, one column for each evaluated checkpoint."""

from __future__ import annotations

import json
from typing import Any

from lmpipe.artifacts.types import Artifact, Scores
from lmpipe.report.blocks import Cell, Charts, Sample, Samples, Section, Table
from lmpipe.report.read import Run, optional_json
from lmpipe.report.svg import Chart, Dot, dot_chart
from lmpipe.report.wording import excerpt, label, sentence, with_error

NUM_ITEMS = 6


def section(run: Run) -> Section:
    """Put tasks in rows and checkpoints in columns, then draw accuracies against chance."""
    result = Section(
        "evals",
        "Evaluation",
        "Values ± one standard error. A difference between two columns smaller than twice their"
        " errors says nothing.",
    )
    scores = [a for a in run.artifacts if isinstance(a, Scores)]
    if not scores:
        return result
    names = [checkpoint_name(run, a) for a in scores]
    facts: dict[str, Any] = {}
    for artifact in scores:
        facts |= optional_json(artifact, "tasks.json") or {}
    tables = [artifact.read_json("scores.json") for artifact in scores]
    result.add(_table(names, tables, facts))
    charts = [_accuracies(names, tables, facts)]
    charts += [_groups(name, names, scores) for name in facts if facts[name].get("groups")]
    drawn = [chart for chart in charts if chart is not None]
    result.add(Charts(drawn) if drawn else None)
    for task in tables[-1]:
        result.add(_items(scores[-1], task))
    return result


def checkpoint_name(run: Run, scores: Artifact) -> str:
    """Name scores by the stage of the checkpoint that they are about."""
    records = [r for r in scores.manifest.inputs if r.role == "checkpoint"]
    if not records:
        return scores.stage
    same = [s for s in run.checkpoints if s.stage == records[0].stage]
    return records[0].stage if len(same) < 2 else f"{records[0].stage} {records[0].id[:6]}"


def _table(names: list[str], tables: list[Any], facts: dict[str, Any]) -> Table:
    rows: list[list[Cell | str]] = []
    tasks = list(dict.fromkeys(task for table in tables for task in table))
    for task in tasks:
        about = facts.get(task, {})
        metrics = list(dict.fromkeys(m for table in tables for m in table.get(task, {})))
        for metric in metrics:
            values = [table.get(task, {}).get(metric) for table in tables]
            count = max((v["n"] for v in values if v), default=0)
            chance = about.get("chance")
            better = about.get("higher_is_better", {}).get(metric)
            rows.append(
                [
                    about.get("title", task),
                    label(metric) + {True: " ↑", False: " ↓"}.get(better, ""),
                    *(with_error(v["value"], v.get("stderr")) if v else "–" for v in values),
                    f"{chance:.2f}" if chance is not None else "–",
                    f"{count:,}",
                ]
            )
    numeric = tuple(range(2, len(names) + 4))
    return Table(["task", "metric", *names, "chance", "items"], rows, numeric)


def _accuracies(names: list[str], tables: list[Any], facts: dict[str, Any]) -> Chart | None:
    dots = []
    for name, table, colour in zip(names, tables, range(1, len(names) + 1), strict=True):
        for task, metrics in table.items():
            chance = facts.get(task, {}).get("chance")
            metric = facts.get(task, {}).get("metric")
            if chance is not None and metric in metrics:
                score = metrics[metric]
                row = f"{task} {name}" if len(names) > 1 else task
                dots.append(Dot(row, score["value"], score.get("stderr"), chance, 1 + colour % 6))
    return dot_chart("Accuracy against chance", dots, x_label="accuracy")


def _groups(task: str, names: list[str], scores: list[Scores]) -> Chart | None:
    """Draw a task's parts for the last checkpoint."""
    about = (optional_json(scores[-1], "tasks.json") or {}).get(task)
    if not about:
        return None
    dots = [
        Dot(group.replace("_", " "), part["value"], part.get("stderr"), about.get("chance"))
        for group, part in about["groups"].items()
    ]
    title = f"{sentence(task)} by part, {names[-1]}"
    return dot_chart(title, dots, x_label=label(about["metric"]))


def _items(scores: Artifact, task: str) -> Samples | None:
    """Quote the first items of a task with the model's answers."""
    name = f"samples/{task}.jsonl"
    if name not in scores.names():
        return None
    lines = []
    with scores.open(name) as file:
        for line in file:
            lines.append(json.loads(line))
            if len(lines) == NUM_ITEMS:
                break
    return Samples(f"Items of {task}", [_item(item) for item in lines])


def _item(item: dict[str, Any]) -> Sample:
    """Show each request with its log-likelihood, or the text that was written."""
    target = item.get("target")
    lines = []
    for index, (request, response) in enumerate(
        zip(item["arguments"], item["responses"], strict=False)
    ):
        mark = "→" if index == target else " "
        text = str(request[-1]) if isinstance(request[-1], str) else str(request[0])
        value = response[0] if isinstance(response, list) else response
        shown = f"{value:9.2f}" if isinstance(value, int | float) else f"{value!s}"
        lines.append(f"{mark} {shown}  {excerpt(text, 240)}")
    metrics = {k: v for k, v in item.items() if isinstance(v, int | float) and k != "doc_id"}
    metrics.pop("target", None)
    right = next(iter(metrics.values()), None) if isinstance(target, int) else None
    context = item["arguments"][0][0] if len(item["arguments"][0]) > 1 else ""
    return Sample(
        excerpt(str(context), 160) or f"item {item['doc_id']}",
        "\n".join(lines),
        "→ marks the right answer; numbers are log-likelihoods" if isinstance(target, int) else "",
        "" if right is None else "good" if right else "bad",
    )
