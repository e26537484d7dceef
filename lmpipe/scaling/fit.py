"""Fit a loss law to finished runs and say how far it can be trusted.

The parametric law is L(N, D) = E + A/N^alpha + B/D^beta, fitted as in the Chinchilla paper
(approach 3): Huber loss with delta 1e-3 on the difference of log losses, the law written as a
log-sum-exp so that E, A and B stay positive, L-BFGS from the best points of a grid. The
alternative, least squares on the losses themselves, lets one diverged run move the exponents;
Huber on logs does not.

Two traps of the original fit are closed. The objective is a sum of about 1e-3, so a solver's
default tolerance (relative to max(|f|, 1)) stops it early: it is divided by delta first. And the
mean in place of the sum makes that four hundred times worse, so the sum is kept.

With fewer than eight different runs, or fewer than three sizes or budgets, five constants are not
determined, though a solver returns some: `fit_loss_law` refuses them, and `fit_law` fits
L = coefficient * C^-exponent instead, a straight line in logs.

Source: Hoffmann et al. 2022, section 3.3 and appendix D.3; Besiroglu et al. 2024.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from lmpipe.errors import ConfigError

Floats = NDArray[np.float64]

HUBER_DELTA = 1e-3
# the paper's grid, all of it: it is scored in one vectorised pass, and only `NUM_STARTS` points of
# it are refined (about 0.05 s each on 240 runs)
GRID_EXPONENTS = (0.0, 0.25, 0.5, 1.0, 2.0)
GRID_LOG_E = (-1.0, -0.5, 0.0, 0.5, 1.0)
GRID_LOG_SCALE = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0)
NUM_STARTS = 24
SMALLEST = 1e-12  # nats; runs far from convergence say nothing of E, and a fit lets it go to 0
FLOPS_PER_PARAMETER_TOKEN = 6.0
MAX_EXPONENT = 2.0  # published fits have 0.03 to 0.8; a term that says nothing runs to 24
MIN_RUNS, MIN_SIZES, MIN_BUDGETS = 8, 3, 3  # for five constants


class Law(Protocol):
    """What predicts a loss from a size and a token budget."""

    def predict(self, parameters: Floats, tokens: Floats) -> Floats:
        """Return the loss in nats per token of each run, given arrays of one length."""

    def constants(self) -> dict[str, float]:
        """Return what was fitted, by name."""


@dataclass(frozen=True)
class Runs:
    """Finished training runs: one entry of each array per run; losses in nats per token."""

    parameters: Floats
    tokens: Floats
    loss: Floats

    def __post_init__(self) -> None:
        for name in ("parameters", "tokens", "loss"):
            values = getattr(self, name)
            bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
            if bad.size:
                run = int(bad[0])
                raise ConfigError(
                    f"run {run} ({self.parameters[run]:g} parameters, {self.tokens[run]:g} tokens) "
                    f"has {name}={values[run]:g}, which must be finite and positive; leave it out"
                )

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def num_different(self) -> int:
        """Runs of different sizes or budgets."""
        return len(set(zip(self.parameters.tolist(), self.tokens.tolist(), strict=True)))

    def take(self, index: NDArray[np.intp]) -> Runs:
        """Return the runs at some places, repeated ones as often as they are named."""
        return Runs(self.parameters[index], self.tokens[index], self.loss[index])


@dataclass(frozen=True)
class LossLaw:
    """L(N, D) = E + A/N^alpha + B/D^beta."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    objective: float = 0.0  # sum of Huber losses at the fit

    def predict(self, parameters: Floats, tokens: Floats) -> Floats:
        """Return the loss in nats per token of each run."""
        return np.asarray(self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta)

    def constants(self) -> dict[str, float]:
        """Return what was fitted, by name."""
        return asdict(self)

    def optimal_split(self, flops: float) -> tuple[float, float]:
        """Give the parameters and tokens that minimise the loss at C = 6ND.

        Source: Hoffmann et al. 2022, equation 4.
        """
        exponent = self.beta / (self.alpha + self.beta)
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        parameters = ratio * (flops / FLOPS_PER_PARAMETER_TOKEN) ** exponent
        return parameters, flops / FLOPS_PER_PARAMETER_TOKEN / parameters


@dataclass(frozen=True)
class ComputeLaw:
    """L(C) = coefficient * C^-exponent with C = 6ND."""

    coefficient: float
    exponent: float
    objective: float = 0.0

    def predict(self, parameters: Floats, tokens: Floats) -> Floats:
        """Return the loss in nats per token of each run."""
        flops = FLOPS_PER_PARAMETER_TOKEN * parameters * tokens
        return np.asarray(self.coefficient * flops**-self.exponent)

    def constants(self) -> dict[str, float]:
        """Return what was fitted, by name."""
        return asdict(self)


@dataclass(frozen=True)
class Interval:
    """A bootstrap interval: the given quantiles over refits of resampled runs."""

    low: float
    high: float
    level: float


def _log_law(theta: Floats, log_n: Floats, log_d: Floats) -> tuple[Floats, Floats]:
    """Log of the law and its terms' shares, for theta = (a, b, e, alpha, beta)."""
    a, b, e, alpha, beta = theta
    terms = np.stack([a - alpha * log_n, b - beta * log_d, np.full_like(log_n, e)])
    top = terms.max(axis=0)
    exponentials = np.exp(terms - top)
    total = exponentials.sum(axis=0)
    return top + np.log(total), exponentials / total


def _objective(
    theta: Floats, log_n: Floats, log_d: Floats, log_loss: Floats
) -> tuple[float, Floats]:
    """Huber loss over delta, and its gradient: |r| - delta/2 outside delta, r²/(2 delta) inside."""
    log_law, share = _log_law(theta, log_n, log_d)
    residual = log_law - log_loss
    size = np.abs(residual)
    inside = size <= HUBER_DELTA
    value = np.where(inside, 0.5 * residual**2 / HUBER_DELTA, size - 0.5 * HUBER_DELTA).sum()
    slope = np.where(inside, residual / HUBER_DELTA, np.sign(residual))
    gradient = np.array(
        [
            (slope * share[0]).sum(),
            (slope * share[1]).sum(),
            (slope * share[2]).sum(),
            -(slope * share[0] * log_n).sum(),
            -(slope * share[1] * log_d).sum(),
        ]
    )
    return float(value), gradient


def _refine(theta: Floats, runs: Runs) -> tuple[float, Floats]:
    """Run L-BFGS from one start, restarted until it stops gaining (kinks of Huber end a run early).

    Sizes and budgets are centred in logs first, so that a term's two constants do not move
    together: forty refits of 240 runs take 0.58 s on one CPU core, 0.80 s uncentred, to the same
    optimum.
    """
    log_n, log_d = np.log(runs.parameters), np.log(runs.tokens)
    shift_n, shift_d = float(log_n.mean()), float(log_d.mean())
    data = (log_n - shift_n, log_d - shift_d, np.log(runs.loss))
    theta = theta - np.array([theta[3] * shift_n, theta[4] * shift_d, 0, 0, 0])
    best = float("inf")
    for _ in range(4):
        found = minimize(
            _objective,
            theta,
            args=data,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 20},
        )
        theta = np.asarray(found.x, dtype=np.float64)
        gain, best = best - float(found.fun), min(best, float(found.fun))
        if gain < 1e-9 * best:
            break
    return best, theta + np.array([theta[3] * shift_n, theta[4] * shift_d, 0, 0, 0])


def _starts(runs: Runs) -> list[Floats]:
    """Score the whole grid in one pass and keep the best `NUM_STARTS` points, in order."""
    axes = (GRID_LOG_SCALE, GRID_LOG_SCALE, GRID_LOG_E, GRID_EXPONENTS, GRID_EXPONENTS)
    grid = np.array(list(itertools.product(*axes)), dtype=np.float64)
    a, b, e, alpha, beta = (column[:, None] for column in grid.T)
    log_n, log_d = np.log(runs.parameters)[None], np.log(runs.tokens)[None]
    log_law = np.logaddexp(np.logaddexp(a - alpha * log_n, b - beta * log_d), e)
    size = np.abs(log_law - np.log(runs.loss)[None])
    scores = np.where(size <= HUBER_DELTA, 0.5 * size**2 / HUBER_DELTA, size - 0.5 * HUBER_DELTA)
    order = np.argsort(scores.sum(axis=1), kind="stable")[:NUM_STARTS]
    return list(grid[order])


def _law_of(theta: Floats, value: float) -> LossLaw:
    a, b, e, alpha, beta = (float(x) for x in theta)
    return LossLaw(
        E=float(np.exp(e)),
        A=float(np.exp(a)),
        B=float(np.exp(b)),
        alpha=alpha,
        beta=beta,
        objective=value * HUBER_DELTA,
    )


def _theta_of(law: LossLaw) -> Floats:
    """Return the law's constants as L-BFGS takes them; a term that has vanished stays finite."""
    scales = np.maximum([law.A, law.B, law.E], SMALLEST)
    return np.array([*np.log(scales), law.alpha, law.beta])


def fit_loss_law(runs: Runs, *, start: LossLaw | None = None) -> LossLaw:
    """Fit the five constants; `start` skips the grid.

    Raises:
        ConfigError: the runs do not determine them.
    """
    if not is_determined(runs):
        sizes, budgets = _num_sizes_and_budgets(runs)
        raise ConfigError(
            f"E + A/N^alpha + B/D^beta has 5 constants, which takes {MIN_RUNS} different runs of "
            f"{MIN_SIZES} sizes and {MIN_BUDGETS} token budgets or more; these are "
            f"{runs.num_different} of {sizes} and {budgets}. Add runs, or fit the 2 constants of "
            "fit_compute_law"
        )
    law = _fit_loss_law(runs, start)
    if not _is_plausible(law):
        raise ConfigError(
            "the losses do not determine the 5 constants of E + A/N^alpha + B/D^beta: the best fit "
            f"has alpha={law.alpha:g}, beta={law.beta:g}, A={law.A:g}, B={law.B:g}, where "
            f"exponents lie in (0, {MAX_EXPONENT:g}]. Add runs whose sizes or budgets lie further "
            "apart, or fit the 2 constants of fit_compute_law"
        )
    return law


def _is_plausible(law: LossLaw) -> bool:
    """Say whether both terms fall, at a rate that a model has had: a flat one fits any exponent."""
    finite = all(np.isfinite(value) for value in law.constants().values())
    return finite and 0 < law.alpha <= MAX_EXPONENT and 0 < law.beta <= MAX_EXPONENT


def _fit_loss_law(runs: Runs, start: LossLaw | None) -> LossLaw:
    """Fit the five constants, to resampled runs too, of which a few may be missing."""
    starts = [_theta_of(start)] if start else _starts(runs)
    value, theta = min((_refine(s, runs) for s in starts), key=lambda found: found[0])
    return _law_of(theta, value)


def fit_compute_law(runs: Runs) -> ComputeLaw:
    """Fit a straight line to log loss against log compute by least squares."""
    log_c = np.log(FLOPS_PER_PARAMETER_TOKEN * runs.parameters * runs.tokens)
    log_loss = np.log(runs.loss)
    centred = log_c - log_c.mean()
    spread = float((centred**2).sum())
    if spread == 0.0:
        raise ConfigError(
            "coefficient C^-exponent has 2 constants, which takes runs of 2 different computes "
            f"(6 N D) or more; these {len(runs)} have one. Add a size or a token budget"
        )
    slope = float((centred * log_loss).sum()) / spread
    intercept = float(log_loss.mean()) - slope * float(log_c.mean())
    residual = log_loss - intercept - slope * log_c
    return ComputeLaw(float(np.exp(intercept)), -slope, float((residual**2).sum()))


def is_determined(runs: Runs) -> bool:
    """Say whether five constants can be asked of these runs."""
    sizes, budgets = _num_sizes_and_budgets(runs)
    return runs.num_different >= MIN_RUNS and sizes >= MIN_SIZES and budgets >= MIN_BUDGETS


def _num_sizes_and_budgets(runs: Runs) -> tuple[int, int]:
    return len(np.unique(runs.parameters)), len(np.unique(runs.tokens))


def fit_law(runs: Runs) -> LossLaw | ComputeLaw:
    """Fit the law that the runs can carry: five constants, or two where a term says nothing."""
    law = _fit_loss_law(runs, None) if is_determined(runs) else None
    return law if law and _is_plausible(law) else fit_compute_law(runs)


def bootstrap(
    runs: Runs,
    law: LossLaw | ComputeLaw,
    target: tuple[float, float],
    *,
    num_resamples: int,
    level: float,
    seed: int,
) -> dict[str, Interval]:
    """Refit on resampled runs; give an interval per constant and one for the loss at `target`.

    Each resample starts from the full fit: from there one descent costs 20 ms against 0.5 s from
    the grid. A resample that lost all but one compute budget has no line through it and is drawn
    again; a refit that ran off to infinity (a term that a few runs do not determine) is left out.
    The interval of the prediction is for a run and not for the law: each refit's value is
    moved by a residual of the full fit, drawn at random.

    Args:
        target: parameters and tokens of the run to predict.
    """
    generator = np.random.default_rng(seed)
    size, budget = (np.array([value]) for value in target)
    residual = np.log(runs.loss / law.predict(runs.parameters, runs.tokens))
    draws: dict[str, list[float]] = {}
    for _ in range(num_resamples):
        sample = runs.take(_resample(runs, generator))
        refit = _fit_loss_law(sample, law) if isinstance(law, LossLaw) else fit_compute_law(sample)
        noise = float(np.exp(generator.choice(residual)))
        constants = {
            **refit.constants(),
            "prediction": float(refit.predict(size, budget)[0]) * noise,
        }
        if not all(np.isfinite(value) for value in constants.values()):
            continue
        for name, value in constants.items():
            draws.setdefault(name, []).append(value)
    draws.pop("objective", None)
    tail = (1 - level) / 2
    return {
        name: Interval(
            float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail)), level
        )
        for name, values in draws.items()
    }


def _resample(runs: Runs, generator: np.random.Generator) -> NDArray[np.intp]:
    compute = runs.parameters * runs.tokens
    while True:
        index = generator.integers(0, len(runs), len(runs)).astype(np.intp)
        if len(np.unique(compute[index])) > 1:
            return index
