"""The fit: known constants come back, outliers do not move it, intervals cover."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.errors import ConfigError
from lmpipe.scaling.fit import (
    ComputeLaw,
    LossLaw,
    Runs,
    _objective,
    bootstrap,
    fit_compute_law,
    fit_law,
    fit_loss_law,
    is_determined,
)

TRUTH = LossLaw(E=1.8, A=480.0, B=2100.0, alpha=0.35, beta=0.37)


def make_runs(law: LossLaw, noise: float = 0.0, seed: int = 0) -> Runs:
    """A grid of sizes and budgets with log-normal noise."""
    sizes, budgets = np.meshgrid(np.logspace(7, 10, 7), np.logspace(9, 11.5, 7))
    parameters, tokens = sizes.ravel(), budgets.ravel()
    draws = np.random.default_rng(seed).normal(0, noise, len(parameters))
    return Runs(parameters, tokens, law.predict(parameters, tokens) * np.exp(draws))


def test_the_constants_of_a_noiseless_law_come_back() -> None:
    law = fit_loss_law(make_runs(TRUTH))
    for name, value in TRUTH.constants().items():
        if name != "objective":
            assert law.constants()[name] == pytest.approx(value, rel=2e-3)
    assert law.objective < 1e-9


@settings(max_examples=3, deadline=None)
@given(st.floats(1.0, 3.0), st.floats(0.2, 0.6), st.floats(0.2, 0.6), st.floats(100, 3000))
def test_any_plausible_law_predicts_like_itself(
    floor: float, alpha: float, beta: float, scale: float
) -> None:
    truth = LossLaw(floor, scale, 2 * scale, alpha, beta)
    law = fit_loss_law(make_runs(truth))
    far = (np.array([3e10]), np.array([1e12]))
    assert law.predict(*far)[0] == pytest.approx(truth.predict(*far)[0], rel=5e-3)


def test_one_diverged_run_barely_moves_the_fit() -> None:
    runs = make_runs(TRUTH, noise=0.002)
    spoilt = Runs(runs.parameters, runs.tokens, np.where(np.arange(49) == 24, 9.9, runs.loss))
    assert fit_loss_law(spoilt).alpha == pytest.approx(fit_loss_law(runs).alpha, rel=0.05)


def test_the_gradient_is_the_slope_of_the_objective() -> None:
    runs = make_runs(TRUTH, noise=0.01)
    data = (np.log(runs.parameters), np.log(runs.tokens), np.log(runs.loss))
    theta = np.array([6.0, 7.5, 0.6, 0.34, 0.38])
    _, gradient = _objective(theta, *data)
    for i in range(5):
        step = np.eye(5)[i] * 1e-6
        slope = (_objective(theta + step, *data)[0] - _objective(theta - step, *data)[0]) / 2e-6
        assert gradient[i] == pytest.approx(slope, rel=1e-4, abs=1e-4)


def test_intervals_hold_the_truth_mostly_and_widen_with_the_noise() -> None:
    target = (5e10, 1e12)
    actual = float(TRUTH.predict(np.array([target[0]]), np.array([target[1]]))[0])
    held, widths = 0, {0.002: 0.0, 0.02: 0.0}
    for noise in widths:
        for seed in range(4):
            runs = make_runs(TRUTH, noise, seed)
            law = fit_loss_law(runs, start=TRUTH)
            found = bootstrap(runs, law, target, num_resamples=20, level=0.9, seed=1)
            low, high = found["prediction"].low, found["prediction"].high
            held += low < actual < high
            widths[noise] += high - low
    assert held >= 5  # of 8, where 7.2 are expected
    assert widths[0.02] > 3 * widths[0.002]


def test_the_bootstrap_is_decided_by_its_seed() -> None:
    runs = make_runs(TRUTH, 0.01)
    law = fit_compute_law(runs)
    first = bootstrap(runs, law, (1e9, 1e10), num_resamples=20, level=0.8, seed=4)
    assert first == bootstrap(runs, law, (1e9, 1e10), num_resamples=20, level=0.8, seed=4)


def test_a_straight_line_in_logs_comes_back_from_three_runs() -> None:
    truth = ComputeLaw(coefficient=50.0, exponent=0.06)
    parameters, tokens = np.array([1e5, 2e5, 4e5]), np.array([1e6, 2e6, 4e6])
    law = fit_law(Runs(parameters, tokens, truth.predict(parameters, tokens)))
    assert isinstance(law, ComputeLaw)
    assert law.coefficient == pytest.approx(50.0)
    assert law.exponent == pytest.approx(0.06)


def test_five_constants_are_asked_only_of_enough_runs() -> None:
    runs = make_runs(TRUTH)
    assert is_determined(runs)
    assert not is_determined(runs.take(np.arange(7)))  # seven sizes, one budget


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        (np.arange(3), "5 constants, which takes 8 different runs .* these are 3 of 3 and 1"),
        (np.arange(14), "these are 14 of 7 and 2"),
        (np.array([0, 8, 16] * 3), "these are 3 of 3 and 3"),
    ],
)
@pytest.mark.parametrize("start", [None, TRUTH])
def test_runs_that_do_not_determine_five_constants_are_refused(
    runs: Any, says: str, start: LossLaw | None
) -> None:
    with pytest.raises(ConfigError, match=says):
        fit_loss_law(make_runs(TRUTH).take(runs), start=start)


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_runs_whose_losses_say_nothing_of_the_tokens_have_two_constants(seed: int) -> None:
    sizes, budgets = np.meshgrid([1e6, 3e6, 1e7], [1e8, 3e8, 1e9])
    parameters, tokens = sizes.ravel()[:8], budgets.ravel()[:8]
    noise = np.random.default_rng(seed).normal(0, 0.02, 8)
    runs = Runs(parameters, tokens, 2 + 300 * parameters**-0.3 + noise)
    assert is_determined(runs)
    with pytest.raises(ConfigError, match=r"do not determine the 5 constants .* beta="):
        fit_loss_law(runs)
    assert isinstance(fit_law(runs), ComputeLaw)


def test_runs_of_one_compute_are_refused_for_two_constants() -> None:
    with pytest.raises(ConfigError, match=r"2 constants, .* 2 different computes .* these 2"):
        fit_compute_law(make_runs(TRUTH).take(np.array([3, 3])))


def test_the_optimal_split_spends_the_compute_where_neither_more_size_nor_more_data_helps() -> None:
    flops = 1e21
    parameters, tokens = TRUTH.optimal_split(flops)
    assert 6 * parameters * tokens == pytest.approx(flops)
    best = TRUTH.predict(np.array([parameters]), np.array([tokens]))[0]
    for factor in (0.8, 1.25):
        moved = TRUTH.predict(np.array([parameters * factor]), np.array([tokens / factor]))[0]
        assert moved > best


@pytest.mark.parametrize("loss", [float("nan"), 0.0, -1.0])
def test_a_run_without_a_proper_loss_is_refused(loss: float) -> None:
    says = rf"run 1 \(2e\+06 parameters, 3e\+07 tokens\) has loss={loss:g}"
    with pytest.raises(ConfigError, match=says):
        Runs(np.array([1e6, 2e6]), np.array([1e7, 3e7]), np.array([2.0, loss]))
