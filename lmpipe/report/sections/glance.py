"""The first screen: the numbers that matter, and whether the run did what it should."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmpipe.artifacts.types import Scores
from lmpipe.report.blocks import Check, Checks, Section, Tile, Tiles
from lmpipe.report.read import Run, optional_json, read_curves
from lmpipe.report.sections.data import num_records, split_sizes
from lmpipe.report.sections.evals import checkpoint_name
from lmpipe.report.wording import count, duration, percent, with_error

CLEAR_ERRORS = 2.0  # how many standard errors make a difference worth claiming
REWARDS = (("heldout_reward", "heldout_stderr"), ("reward", ""))


@dataclass(frozen=True)
class Measured:
    """A mean and its standard error."""

    value: float
    stderr: float

    def __str__(self) -> str:
        return with_error(self.value, self.stderr)


def section(run: Run) -> Section:
    """Summarise the run in tiles and checks."""
    result = Section("glance", "At a glance")
    tiles = [*_data_tiles(run), *_model_tiles(run), *_score_tiles(run), _time_tile(run)]
    checks = [
        _accounted(run),
        _learned(run),
        _stable(run),
        _rewarded(run),
        *_above_chance(run),
        _clean(run),
    ]
    result.add(Tiles(tiles), Checks([check for check in checks if check is not None]))
    return result


def _data_tiles(run: Run) -> list[Tile]:
    tiles = []
    if run.documents:
        records, last = num_records(run), run.documents[-1]
        tiles.append(Tile("Records", count(records), f"into {run.documents[0].artifact.stage}"))
        share = last.kept / records if records else 0.0
        tiles.append(Tile("Documents kept", count(last.kept), f"{percent(share)} of the records"))
    meta = optional_json(run.one("shards"), "meta.json") or {}
    tokens, num_bytes = split_sizes(meta, "tokens"), split_sizes(meta, "text_bytes")
    if tokens:
        total, text = sum(tokens.values()), sum(num_bytes.values())
        note = f"{text / total:.2f} bytes per token" if text and total else ""
        tiles.append(Tile("Tokens", count(total), note))
    return tiles


def _model_tiles(run: Run) -> list[Tile]:
    tiles = []
    base = run.one("pretrain")
    if base is not None:
        meta = optional_json(base, "meta.json") or {}
        if meta.get("parameters"):
            seen = f"{count(meta.get('tokens'))} tokens seen" if meta.get("tokens") else ""
            tiles.append(Tile("Parameters", count(meta["parameters"]), seen))
        curves = read_curves(base)
        loss = curves.last("validation_loss")
        entropy = _entropy(run)
        if loss is not None:
            note = f"unigram entropy {entropy:.2f}" if entropy else "nats per token"
            tiles.append(Tile("Validation loss", f"{loss:.3f}", note))
        bits = curves.last("bits_per_byte")
        if bits is not None:
            tiles.append(Tile("Bits per byte", f"{bits:.3f}", "on validation text"))
    reward = _reward(run)
    if reward is not None:
        before, after = reward
        tiles.append(Tile("GRPO reward", f"{after.value:.3f}", f"from {before.value:.3f}"))
    return tiles


def _score_tiles(run: Run) -> list[Tile]:
    scores = [a for a in run.artifacts if isinstance(a, Scores)]
    if not scores:
        return []
    facts = optional_json(scores[-1], "tasks.json") or {}
    tiles = []
    for task, metrics in scores[-1].read_json("scores.json").items():
        metric = facts.get(task, {}).get("metric") or next(iter(metrics), None)
        if metric in metrics:
            score = metrics[metric]
            chance = facts.get(task, {}).get("chance")
            note = f"± {score['stderr']:.3f}" if score.get("stderr") else ""
            note += (
                f", chance {chance:.2f}" if chance is not None else f" {metric}".replace("_", " ")
            )
            tiles.append(Tile(task, f"{score['value']:.3f}", note))
    return tiles


def _time_tile(run: Run) -> Tile:
    seconds = sum(a.manifest.provenance.seconds for a in run.artifacts)
    gpu_hours = sum(a.manifest.provenance.gpu_hours for a in run.artifacts)
    note = f"{gpu_hours:.2f} GPU-hours" if gpu_hours else f"{len(run.artifacts)} artifacts, on CPU"
    return Tile("Time of all stages", duration(seconds), note)


def _entropy(run: Run) -> float | None:
    value = (optional_json(run.one("shards"), "meta.json") or {}).get("unigram_entropy_nats")
    return float(value) if value else None


def _reward(run: Run) -> tuple[Measured, Measured] | None:
    """The reward before and after GRPO: on held-out problems where they were asked."""
    grpo = run.one("grpo")
    if grpo is None:
        return None
    curves = read_curves(grpo)
    for name, error in REWARDS:
        values, errors = curves.points(name, "step")[1], curves.points(error, "step")[1] or [0.0]
        if len(values) > 1:
            return Measured(values[0], errors[0]), Measured(values[-1], errors[-1])
    return None


def _accounted(run: Run) -> Check | None:
    """Kept and removed of a stage against what the stage before it kept."""
    wrong, checked = [], 0
    for step in run.documents:
        before = [s for s in (run.step_of(a) for a in run.inputs(step.artifact)) if s]
        if len(before) == 1:
            checked += 1
            if before[0].kept != step.entered:
                wrong.append(
                    f"{step.artifact.stage} got {before[0].kept:,}, shows {step.entered:,}"
                )
    if not checked:
        return None
    evidence = "; ".join(wrong) or f"kept + removed = input at {checked} stages"
    return Check("Every document is accounted for", evidence, not wrong)


def _learned(run: Run) -> Check | None:
    base, entropy = run.one("pretrain"), _entropy(run)
    loss = read_curves(base).last("validation_loss") if base is not None else None
    if loss is None or entropy is None:
        return None
    evidence = f"validation loss {loss:.3f} nats against a unigram entropy of {entropy:.3f}"
    return Check("The model learned more than word frequencies", evidence, loss < entropy)


def _stable(run: Run) -> Check | None:
    spikes, steps = [], 0
    for checkpoint in run.checkpoints:
        values = read_curves(checkpoint).columns.get("loss", [])
        steps += len(values)
        bad = sum(1 for v in values if v is not None and not math.isfinite(v))  # None: not logged
        if bad:
            spikes.append(f"{bad} in {checkpoint.stage}")
    if not steps:
        return None
    evidence = f"non-finite losses: {', '.join(spikes) or 'none'} in {steps:,} logged steps"
    return Check("Training stayed finite", evidence, not spikes)


def _rewarded(run: Run) -> Check | None:
    reward = _reward(run)
    if reward is None:
        return None
    before, after = reward
    noise = math.hypot(before.stderr, after.stderr)
    evidence = f"{before} before, {after} after"
    gained = after.value - before.value > CLEAR_ERRORS * noise
    return Check("Reinforcement learning raised the reward", evidence, gained)


def _above_chance(run: Run) -> list[Check]:
    scores = [a for a in run.artifacts if isinstance(a, Scores)]
    if not scores:
        return []
    facts = optional_json(scores[-1], "tasks.json") or {}
    checks = []
    for task, metrics in scores[-1].read_json("scores.json").items():
        about = facts.get(task, {})
        score, chance = metrics.get(about.get("metric")), about.get("chance")
        if score and chance is not None and score.get("stderr"):
            distance = (score["value"] - chance) / score["stderr"]
            evidence = (
                f"{with_error(score['value'], score['stderr'])} against {chance:.2f}:"
                f" {distance:+.1f} standard errors ({checkpoint_name(run, scores[-1])})"
            )
            checks.append(Check(f"{task} is above chance", evidence, distance >= CLEAR_ERRORS))
    return checks


def _clean(run: Run) -> Check | None:
    steps = [s for s in run.documents if s.artifact.stage == "decontaminate"]
    if not steps:
        return None
    removed = sum(step.removed for step in steps)
    left = sum(step.artifact.metrics.get("contaminated", 0) for step in steps)
    evidence = f"{removed:,} documents that held eval items were removed before training"
    if left:
        evidence += f"; {left:,} that hold some are in the training text"
    return Check("Training text was cleaned of eval items", evidence, left == 0)
