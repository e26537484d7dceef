"""Stage `scale`: train a few small models, fit a loss law, and check it on a larger run.

The sweep crosses widths with token budgets. One constant-rate run serves all budgets of a width:
before each budget's end a copy of it decays to zero, and the run goes on from before the decay. A
run of its own for each budget, the alternative, costs the sum of the budgets in place of the
largest one (for budgets 1, 2, 4: 7 against 4.6).

Source: Hoffmann et al. 2022 (the law); Hu et al. 2024, section 4 (warm-up, stable, decay in place
    of n² runs).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import ScalingFit, Tokenizer, TokenShards
from lmpipe.errors import ConfigError
from lmpipe.model.cost import count_parameters
from lmpipe.runtime import Runtime
from lmpipe.scaling.config import ScaleConfig
from lmpipe.token_data.index import check_holds_a_sequence
from lmpipe.token_data.shard_file import verify_shards
from lmpipe.training.launch import check_ranks, run_ranks
from lmpipe.training.mixing import reference

if TYPE_CHECKING:
    from lmpipe.scaling.fit import ComputeLaw, Floats, LossLaw, Runs
    from lmpipe.training.rank import RankContext

NEXT_COMPUTE = 10.0  # the fit also sizes a run of so many times the largest one's compute


def check_start(config: ScaleConfig, given: frozenset[str], runtime: Runtime | None) -> None:
    """Refuse ranks that cannot be had."""
    check_ranks(runtime)


def scale_in_rank(job: dict[str, Any], context: RankContext) -> list[dict[str, Any]]:
    """Do a rank's part; what it needs is imported there, torch among it."""
    from lmpipe.scaling.sweep_rank import main

    return main(job, context)


@stage(version=2, kind="statistical", check=check_start)
def scale(
    out: Output[ScalingFit],
    config: ScaleConfig,
    shards: TokenShards,
    tokenizer: Tokenizer,
    *,
    runtime: Runtime,
) -> ScalingFit:
    """Run the sweep in ranks, fit the law to all runs but the largest, and predict that one."""

    for split in ("train", "validation"):
        check_holds_a_sequence(shards, split, config.model.max_seq_len, "scale.model.max_seq_len")
    verify_shards(shards)
    vocab_size = int(tokenizer.read_json("meta.json")["vocab_size"])
    with out.previous_checkpoint(runtime) as previous:
        job = {
            "config": config.model_dump(mode="json"),
            "shards": reference(shards),
            "vocab_size": vocab_size,
            "resume": str(previous) if previous else "",
            "series": sweep_series(config, vocab_size),
        }
        points = run_ranks(scale_in_rank, job, out, runtime)
    fit = describe(points, config)
    for name in fit["left_out"]:
        out.log(f"the run of {name} diverged and is left out of the fit", "warning")
    out.write_json("points.json", points)
    out.write_json("fit.json", fit)
    out.metric("law", fit["law"])
    out.metric("prediction", fit["prediction"])
    out.table("runs", points)
    return out.commit()


def sweep_series(config: ScaleConfig, vocab_size: int) -> list[dict[str, Any]]:
    """List the runs: one series a width, with the budgets at which it is measured.

    Parameters are those that a token is multiplied by, so that 6ND is what a token costs: with a
    small model the embedding is most of the rest, and counting it bends the law.
    """

    plan = [(w, sorted(config.token_budgets), False) for w in sorted(config.widths)]
    plan.append((config.held_out_width, [config.held_out_tokens], True))
    return [
        {
            "shape": (shape := config.shape(width).with_vocab(vocab_size)).model_dump(mode="json"),
            "parameters": count_parameters(shape).matmul,
            "budgets": budgets,
            "rate": config.rate(width),
            "held_out": held_out,
        }
        for width, budgets, held_out in plan
    ]


def describe(points: list[dict[str, Any]], config: ScaleConfig) -> dict[str, Any]:
    """Fit the law and say what it predicts; adds the law's value to each point.

    A run that diverged has no loss to fit: its loss becomes None, and it is named in `left_out`.

    Raises:
        ConfigError: the runs that are left do not determine a law.
    """

    from lmpipe.scaling.fit import FLOPS_PER_PARAMETER_TOKEN, LossLaw, bootstrap, fit_law

    left_out = _take_out_diverged(points)
    usable = [p for p in points if not p["held_out"] and p["loss"] is not None]
    if len(usable) < 2:
        raise ConfigError(
            f"{len(usable)} runs are left to fit a law to; diverged: {', '.join(left_out)}. Lower "
            "scale.optimizer.learning_rate"
        )
    fitted = _runs(usable)
    law = fit_law(fitted)
    for point in points:
        n, d = np.array([float(point["parameters"])]), np.array([float(point["tokens"])])
        point["flops"] = FLOPS_PER_PARAMETER_TOKEN * float(n[0] * d[0])
        point["fitted"] = float(law.predict(n, d)[0])
    target = next(p for p in points if p["held_out"])
    intervals = bootstrap(
        fitted,
        law,
        (float(target["parameters"]), float(target["tokens"])),
        num_resamples=config.num_resamples,
        level=config.interval_level,
        seed=config.seed,
    )
    constants = {k: v for k, v in law.constants().items() if k != "objective"}
    predicted = intervals.pop("prediction")
    is_loss_law, actual = isinstance(law, LossLaw), target["loss"]
    return {
        "law": "E, N and D" if is_loss_law else "power law in compute",
        "formula": "E + A/N^alpha + B/D^beta" if is_loss_law else "coefficient C^-exponent",
        "constants": constants,
        "objective": law.objective,
        "level": config.interval_level,
        "intervals": {name: [bounds.low, bounds.high] for name, bounds in intervals.items()},
        "prediction": {
            "parameters": target["parameters"],
            "tokens": target["tokens"],
            "predicted": target["fitted"],
            "interval": [predicted.low, predicted.high],
            "actual": actual,
            "error": None if actual is None else target["fitted"] / actual - 1,
        },
        "left_out": left_out,
        "next_run": _next_run(law, NEXT_COMPUTE * target["flops"]),
    }


def _take_out_diverged(points: list[dict[str, Any]]) -> list[str]:
    """Set losses that are no numbers to None; return the names of these runs."""
    names = []
    for point in points:
        if not math.isfinite(point["loss"]):
            names.append(f"{point['parameters']} parameters on {point['tokens']} tokens")
            point["loss"] = None
        if not math.isfinite(point.get("training_loss", 0.0)):
            point["training_loss"] = None
    return names


def _runs(points: list[dict[str, Any]]) -> Runs:

    from lmpipe.scaling.fit import Runs

    def column(name: str) -> Floats:
        return np.array([float(point[name]) for point in points])

    return Runs(column("parameters"), column("tokens"), column("loss"))


def _next_run(law: LossLaw | ComputeLaw, flops: float) -> dict[str, float] | None:
    """Size the next run; only the law in N and D can say how to split its compute."""

    from lmpipe.scaling.fit import LossLaw

    if not isinstance(law, LossLaw) or min(law.alpha, law.beta) <= 0:
        return None
    parameters, tokens = law.optimal_split(flops)
    loss = float(law.predict(np.array([parameters]), np.array([tokens]))[0])
    return {"flops": flops, "parameters": parameters, "tokens": tokens, "loss": loss}
