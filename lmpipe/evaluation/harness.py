"""Run lm-eval on local files: tasks from our YAML, data from a pinned source, numbers with their
standard errors.

lm-eval's own task index is not loaded (`include_defaults=False`: 1 s against 16 s), and no
bootstrap is drawn: a mean's standard error has a closed form (`bootstrap_iters=1` asks for that;
0 would switch all errors off), and the ratio estimator below serves bits per byte, for which
lm-eval has none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from lmpipe.artifacts.types import Source
from lmpipe.documents.text_files import utf8_copy
from lmpipe.errors import InputError
from lmpipe.evaluation.config import TASK_FOLDER

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class TaskResult:
    """One task's numbers, what is known about the task, and its items one by one."""

    scores: dict[str, JsonObject]
    facts: JsonObject
    samples: list[JsonObject]


def task_config(name: str, benchmarks: Source, cache: Path) -> JsonObject:
    """Read a task's YAML and put real paths in place of the file names of the source.

    Raises:
        InputError: the source lacks a file that the task reads.
    """
    config: JsonObject = yaml.safe_load((TASK_FOLDER / f"{name}.yaml").read_text("utf-8"))
    files: dict[str, str] = config["dataset_kwargs"]["data_files"]
    for file in files.values():
        if file not in benchmarks.names():
            raise InputError(
                f"task {name!r} reads {file!r}, which source {benchmarks.name!r} lacks (it has"
                f" {', '.join(benchmarks.names()[:12])}); add the file to the source or take"
                f" {name!r} out of evaluate.tasks"
            )
    paths = {split: str(utf8_copy(benchmarks.local(file), cache)) for split, file in files.items()}
    config["dataset_kwargs"] = {"data_files": paths, "cache_dir": str(cache)}
    return config


def task_file(name: str) -> str:
    """Return the name of the file that holds a task's items."""
    config: JsonObject = yaml.safe_load((TASK_FOLDER / f"{name}.yaml").read_text("utf-8"))
    return str(config["dataset_kwargs"]["data_files"][config["test_split"]])


def run_tasks(model: LM, configs: Sequence[JsonObject], limit: int) -> dict[str, TaskResult]:
    """Evaluate `model`; `limit` items a task, 0 for all."""
    tasks = TaskManager(include_defaults=False).load(list(configs))
    found = evaluate(lm=model, task_dict=tasks, limit=limit or None, bootstrap_iters=1)
    assert found is not None, "only rank 0 runs"
    results = {}
    for config in configs:
        name = config["task"]
        samples = found["samples"][name]
        results[name] = TaskResult(
            scores=_scores(found["results"][name], samples),
            facts=_facts(config, samples),
            samples=[_slim(sample) for sample in samples],
        )
    return results


def _scores(aggregated: JsonObject, samples: Sequence[JsonObject]) -> dict[str, JsonObject]:
    """Turn lm-eval's `metric,filter` keys into {metric: {value, stderr, n}}."""
    scores = {}
    for key, value in aggregated.items():
        metric, comma, filter_name = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        stderr = aggregated.get(f"{metric}_stderr,{filter_name}")
        if metric == "bits_per_byte":
            stderr = ratio_stderr([bits_and_bytes(sample) for sample in samples])
        scores[metric] = {
            "value": float(value),
            "stderr": float(stderr) if isinstance(stderr, int | float) else None,
            "n": len(samples),
        }
    return scores


def bits_and_bytes(sample: JsonObject) -> tuple[float, float]:
    """Return the bits that a model needs for a text, and the text's UTF-8 bytes."""
    log_likelihood, num_bytes = sample["bits_per_byte"]
    return -float(log_likelihood) / math.log(2), float(num_bytes)


def ratio_stderr(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Standard error of sum(x)/sum(y) over independent texts (the delta method).

    Source: Cochran, Sampling Techniques, 6.3.
    """
    if len(pairs) < 2:
        return None
    total = sum(y for _, y in pairs)
    ratio = sum(x for x, _ in pairs) / total
    spread = sum((x - ratio * y) ** 2 for x, y in pairs)
    return math.sqrt(spread * len(pairs) / (len(pairs) - 1)) / total


def mean_stderr(values: Sequence[float]) -> JsonObject:
    """Return {value, stderr, n}: the mean, its standard error (n-1; None for one value), how many.

    Args:
        values: at least one; of independent items.
    """
    count = len(values)
    mean = sum(values) / count
    variance = sum((v - mean) ** 2 for v in values) / (count - 1) if count > 1 else None
    stderr = None if variance is None else math.sqrt(variance / count)
    return {"value": mean, "stderr": stderr, "n": count}


def _facts(config: JsonObject, samples: Sequence[JsonObject]) -> JsonObject:
    """Say what a reader needs beside the number: title, chance, direction, groups."""
    metadata = config.get("metadata", {})
    metric = config["metric_list"][0]["metric"]
    facts = {
        "title": metadata.get("title", config["task"]),
        "version": metadata.get("version"),
        "chance": metadata.get("chance"),
        "num_fewshot": config.get("num_fewshot", 0),
        "metric": metric,
        "higher_is_better": {m["metric"]: m["higher_is_better"] for m in config["metric_list"]},
        "groups": {},
    }
    by = metadata.get("group_by")
    if by:
        values: dict[str, list[float]] = defaultdict(list)
        for sample in samples:
            values[str(sample["doc"][by])].append(float(sample[metric]))
        facts["groups"] = {name: mean_stderr(values[name]) for name in sorted(values)}
    return facts


def _slim(sample: JsonObject) -> JsonObject:
    """Keep of an item what is needed to read it and to score it anew."""
    return {
        "doc_id": sample["doc_id"],
        "arguments": [list(map(_jsonable, request)) for request in sample["arguments"]],
        "responses": [_jsonable(response) for response in sample["filtered_resps"]],
        "target": sample["target"],
        **{metric: _jsonable(sample[metric]) for metric in sample["metrics"]},
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_jsonable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, float):
        return round(value, 6)
    return value
