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
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import ScalingFit, Tokenizer, TokenShards
from lmpipe.errors import ConfigError
from lmpipe.model.config import ModelConfig
from lmpipe.runtime import Runtime
from lmpipe.training.launch import check_ranks
from lmpipe.training.optimizer import LearningRate, OptimizerConfig
from lmpipe.training.schedule import FinalFraction, ScheduleConfig, WarmupFraction, WarmupSteps

if TYPE_CHECKING:
    from lmpipe.scaling.fit import ComputeLaw, Floats, LossLaw, Runs

NEXT_COMPUTE = 10.0  # the fit also sizes a run of so many times the largest one's compute


class ScaleOptimizer(OptimizerConfig):
    """AdamW for small models, which bear a higher rate."""

    learning_rate: LearningRate = 4e-3


class ScaleSchedule(ScheduleConfig):
    """One rise and one constant rate for all budgets of a width, and a fall to 0 for each."""

    name: Literal["warmup_stable_decay"] = Field(
        "warmup_stable_decay", description="The one shape whose stable part serves all budgets."
    )
    warmup_steps: WarmupSteps = 16
    warmup_fraction: WarmupFraction = 0.0
    final_fraction: FinalFraction = 0.0

    @model_validator(mode="after")
    def _serves_all_budgets(self) -> ScaleSchedule:
        if self.warmup_fraction:
            raise ConfigError(
                f"warmup_fraction={self.warmup_fraction} must be 0: one run serves budgets of "
                "several lengths, and rises once; set warmup_steps"
            )
        if not self.decay_fraction:
            raise ConfigError("decay_fraction=0 must be above 0: each budget ends in a decay")
        return self


class ScaleConfig(StageConfig):
    """The sweep, and how its runs are trained."""

    model: ModelConfig = Field(
        ModelConfig(num_layers=2, d_model=64, num_heads=2, num_kv_heads=1, max_seq_len=128),
        description="Shape that every width is scaled from: same head size and aspect ratio.",
    )
    widths: tuple[int, ...] = Field(
        (32, 64, 128), min_length=1, max_length=32, description="d_model of the fitted runs."
    )
    token_budgets: tuple[int, ...] = Field(
        (262_144, 524_288, 1_048_576),
        min_length=1,
        max_length=32,
        description="Training tokens of the fitted runs, for each width.",
    )
    held_out_width: int = Field(192, ge=16, le=32_768, description="d_model of the predicted run.")
    held_out_tokens: int = Field(
        2_097_152, ge=1, le=10**14, description="Training tokens of the predicted run."
    )
    batch_tokens: int = Field(2048, ge=1, le=2**26, description="Tokens of an optimizer step.")
    optimizer: ScaleOptimizer = Field(
        ScaleOptimizer(), description="AdamW's settings; its rate is that of the width of `model`."
    )
    width_exponent: float = Field(
        0.5, ge=0, le=2, description="The rate falls with the width to this power."
    )
    schedule: ScaleSchedule = Field(
        ScaleSchedule(), description="The course of the learning rate over each budget."
    )
    validation_tokens: int = Field(
        32_768, ge=1, le=10**10, description="Validation tokens, from the first."
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Of the weights and the data order.")
    num_resamples: int = Field(200, ge=10, le=100_000, description="Bootstrap refits.")
    interval_level: float = Field(
        0.8, gt=0, lt=1, description="Share of the refits inside an interval."
    )

    @model_validator(mode="after")
    def _can_be_fitted(self) -> ScaleConfig:
        for width in (*self.widths, self.held_out_width):
            if width % self.model.head_size:
                raise ConfigError(
                    f"width {width} must be a multiple of the head size {self.model.head_size};"
                    f" try {max(1, round(width / self.model.head_size)) * self.model.head_size}"
                )
        if self.model.mup_base_width and self.width_exponent:
            raise ConfigError(
                f"model.mup_base_width={self.model.mup_base_width} and width_exponent="
                f"{self.width_exponent} both scale the rate with the width; use width_exponent=0"
            )
        if len({w * t for w in self.widths for t in self.token_budgets}) < 2:
            raise ConfigError("a law needs at least two runs of different compute")
        shortest = min(*self.token_budgets, self.held_out_tokens)
        if shortest < self.batch_tokens * (self.schedule.warmup_steps + 2):
            raise ConfigError(
                f"a budget of {shortest} tokens has no step after schedule.warmup_steps="
                f"{self.schedule.warmup_steps} of {self.batch_tokens} tokens; lower "
                "schedule.warmup_steps or batch_tokens"
            )
        return self

    def shape(self, width: int) -> ModelConfig:
        """Scale the model to a width: heads and layers grow with it."""
        base = self.model
        heads = width // base.head_size
        group = max(1, base.num_heads // base.num_kv_heads)
        return base.model_copy(
            update={
                "d_model": width,
                "num_heads": heads,
                "num_kv_heads": heads // group if heads % group == 0 else heads,
                "num_layers": max(1, round(base.num_layers * width / base.d_model)),
            }
        )

    def rate(self, width: int) -> float:
        """Peak learning rate of a width."""
        peak = self.optimizer.learning_rate
        return peak * math.pow(self.model.d_model / width, self.width_exponent)


def check_start(config: ScaleConfig, given: frozenset[str], runtime: Runtime | None) -> None:
    """Refuse ranks that cannot be had."""
    check_ranks(runtime)


@stage(version=1, kind="statistical", check=check_start)
def scale(
    out: Output[ScalingFit],
    config: ScaleConfig,
    shards: TokenShards,
    tokenizer: Tokenizer,
    *,
    runtime: Runtime,
) -> ScalingFit:
    """Run the sweep in ranks, fit the law to all runs but the largest, and predict that one."""
    from lmpipe.token_data.index import check_holds_a_sequence
    from lmpipe.token_data.shard_file import verify_shards
    from lmpipe.training.launch import run_ranks
    from lmpipe.training.mixing import reference

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
        points = run_ranks("lmpipe.scaling.sweep_rank:main", job, out, runtime)
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
    from lmpipe.model.cost import count_parameters

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
    import numpy as np

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
    import numpy as np

    from lmpipe.scaling.fit import Runs

    def column(name: str) -> Floats:
        return np.array([float(point[name]) for point in points])

    return Runs(column("parameters"), column("tokens"), column("loss"))


def _next_run(law: LossLaw | ComputeLaw, flops: float) -> dict[str, float] | None:
    """Size the next run; only the law in N and D can say how to split its compute."""
    import numpy as np

    from lmpipe.scaling.fit import LossLaw

    if not isinstance(law, LossLaw) or min(law.alpha, law.beta) <= 0:
        return None
    parameters, tokens = law.optimal_split(flops)
    loss = float(law.predict(np.array([parameters]), np.array([tokens]))[0])
    return {"flops": flops, "parameters": parameters, "tokens": tokens, "loss": loss}
