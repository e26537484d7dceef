"""Charts: ticks, scales, thinning, and what is drawn of awkward data."""

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpipe.report.sections.training import smoothed
from lmpipe.report.svg import (
    HEIGHT,
    MAX_POINTS,
    WIDTH,
    Dot,
    Level,
    Line,
    Span,
    dot_chart,
    labels,
    line_chart,
    log_ticks,
    nice_ticks,
    number,
    span_chart,
)

FINITE = st.floats(-1e12, 1e12, allow_nan=False)


@given(FINITE, FINITE)
def test_ticks_cover_the_range_in_even_steps(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 9
    steps = [y - x for x, y in itertools.pairwise(ticks)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)
    slack = 1e-6 * max(steps)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack


@given(st.floats(1e-9, 1e9), st.floats(1.001, 1e9))
def test_log_ticks_lie_inside_the_range(low: float, factor: float) -> None:
    assert all(low <= tick <= low * factor for tick in log_ticks(low, low * factor))


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=60))
def test_everything_is_drawn_inside_the_chart(points: list[tuple[float, float]]) -> None:
    points.sort()
    line = Line("a", [p[0] for p in points], [p[1] for p in points], dots=True)
    chart = line_chart("t", [line], x_label="x", y_label="y")
    assert chart is not None
    for x, y in re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)"', chart.svg):
        assert -0.1 <= float(x) <= WIDTH + 0.1
        assert -0.1 <= float(y) <= HEIGHT + 0.1
    assert "nan" not in chart.svg


def test_points_that_are_not_finite_are_left_out() -> None:
    line = Line("a", [1, 2, 3, 4], [1.0, math.nan, math.inf, 2.0])
    chart = line_chart("t", [line], x_label="x", y_label="y")
    assert chart is not None
    [points] = re.findall(r'points="([^"]+)"', chart.svg)
    assert len(points.split()) == 2


def test_a_chart_without_points_is_none() -> None:
    assert line_chart("t", [Line("a", [1], [math.nan])], x_label="x", y_label="y") is None
    assert line_chart("t", [], x_label="x", y_label="y") is None
    assert dot_chart("t", [], x_label="x") is None
    assert dot_chart("t", [Dot("a", math.nan)], x_label="x") is None
    assert span_chart("t", []) is None


def test_a_single_point_is_a_dot() -> None:
    chart = line_chart("t", [Line("a", [5], [5])], x_label="x", y_label="y")
    assert chart is not None
    assert "<circle" in chart.svg


def test_values_that_a_logarithm_cannot_take_are_left_out() -> None:
    line = Line("a", [0, 1, 10, 100], [1, 2, 3, 4])
    chart = line_chart("t", [line], x_label="x", y_label="y", log="x")
    assert chart is not None
    [points] = re.findall(r'points="([^"]+)"', chart.svg)
    assert len(points.split()) == 3


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    line = Line("a", list(range(100_000)), [float(i) for i in range(100_000)])
    chart = line_chart("t", [line], x_label="x", y_label="y")
    assert chart is not None
    [points] = re.findall(r'points="([^"]+)"', chart.svg)
    pairs = points.split()
    assert len(pairs) == MAX_POINTS
    assert pairs[-1].startswith(f"{WIDTH - 12:.1f}")


def test_a_reference_level_is_inside_the_axis() -> None:
    line = Line("a", [0, 1], [3.0, 4.0])
    chart = line_chart("t", [line], x_label="x", y_label="y", levels=[Level("chance", 6.4)])
    assert chart is not None
    [y] = re.findall(r'class="level" x1="[\d.]+" y1="([\d.]+)"', chart.svg)
    assert 0 < float(y) < HEIGHT
    assert ("level", "chance (6.4)") in chart.legend


def test_error_bars_and_chance_are_drawn() -> None:
    chart = dot_chart("t", [Dot("a", 0.6, 0.1, 0.5)], x_label="accuracy")
    assert chart is not None
    assert 'class="error k1"' in chart.svg
    assert 'class="level"' in chart.svg
    assert "0.6 ± 0.1" in chart.svg


def test_labels_are_escaped_and_cut() -> None:
    name = "<b>" + "long name " * 9
    chart = span_chart("<i>", [Span(name, 0, 5)])
    assert chart is not None
    assert "<b>" not in chart.svg
    assert "<i>" not in chart.svg
    assert "…" in chart.svg


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.003, "0.003"), (0.0004, "4e-4"), (1.5, "1.5"), (1234, "1,234"),
     (12_345, "12.3k"), (2.5e6, "2.5M"), (3e9, "3B"), (2e17, "2.0e17"), (math.nan, "–")],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (6e-5, 2e-4, ["5e-5", "1e-4", "1.5e-4", "2e-4"]),
        (2.73, 2.85, ["2.725", "2.75", "2.775", "2.8", "2.825", "2.85"]),
        (0, 9e4, ["0", "20k", "40k", "60k", "80k", "100k"]),
        (101_000, 103_000, ["101k", "101.5k", "102k", "102.5k", "103k"]),
    ],
)
def test_ticks_are_told_apart_by_their_labels(low: float, high: float, texts: list[str]) -> None:
    assert labels(nice_ticks(low, high)) == texts


@given(st.floats(-1e6, 1e6), st.floats(1e-7, 1e6))
def test_no_two_ticks_have_one_label(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    if span > abs(low) * 1e-5:
        assert len(set(labels(ticks))) == len(ticks)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_smoothing_keeps_length_ends_and_range(values: list[float]) -> None:
    result = smoothed(values)
    assert len(result) == len(values)
    assert result[0] == pytest.approx(values[0], abs=1e-3)
    assert result[-1] == pytest.approx(values[-1], abs=1e-3)
    assert min(values) - 1e-3 <= min(result)
    assert max(result) <= max(values) + 1e-3
