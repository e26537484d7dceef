from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lmpipe.alignment.config import DpoConfig, GrpoConfig, SftConfig
from lmpipe.errors import ConfigError
from lmpipe.scaling.config import ScaleConfig
from lmpipe.training.config import PretrainConfig
from lmpipe.training.schedule import Schedule, ScheduleConfig, ScheduleName

NAMES: list[ScheduleName] = ["warmup_stable_decay", "cosine", "linear", "constant"]


@given(
    name=st.sampled_from(NAMES),
    total=st.integers(1, 300),
    warmup=st.floats(0, 0.5),
    decay=st.floats(0, 0.5),
    final=st.floats(0, 1),
)
def test_every_schedule_stays_within_0_and_1_and_does_work_at_the_first_step(
    name: ScheduleName, total: int, warmup: float, decay: float, final: float
):
    schedule = Schedule(name, total, int(warmup * total), int(decay * total), final)
    values = [schedule(step) for step in range(total)]
    assert all(0 <= value <= 1 for value in values)
    assert values[0] > 0 or total == 1 or schedule.decay_steps >= total


def test_warmup_stable_decay_has_its_three_parts():
    schedule = Schedule("warmup_stable_decay", 10, warmup_steps=2, decay_steps=4)
    assert [schedule(step) for step in range(10)] == [0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]


@pytest.mark.parametrize("name", ["warmup_stable_decay", "cosine", "linear"])
def test_the_last_step_has_the_final_fraction_and_later_ones_keep_it(name: ScheduleName):
    schedule = Schedule(name, 50, warmup_steps=5, decay_steps=20, final_fraction=0.1)
    assert schedule(49) == pytest.approx(0.1)
    assert schedule(60) == pytest.approx(0.1)


def test_cosine_is_half_way_down_in_the_middle():
    assert Schedule("cosine", 101, final_fraction=0.2)(50) == pytest.approx(0.6)


@given(
    name=st.sampled_from(NAMES),
    total=st.integers(2, 300),
    warmup=st.integers(0, 299),
    final=st.floats(0, 0.9),
)
def test_the_peak_is_reached_where_the_warm_up_ends_and_nowhere_exceeded(
    name: ScheduleName, total: int, warmup: int, final: float
):
    warmup = min(warmup, total - 1)
    schedule = Schedule(name, total, warmup, 0, final)
    values = [schedule(step) for step in range(total)]
    assert values.index(1.0) == max(0, warmup - 1)
    assert values[: warmup or 1] == [(step + 1) / (warmup or 1) for step in range(warmup or 1)]
    falls = values[max(0, warmup - 1) :]
    assert falls == sorted(falls, reverse=True)
    if name in ("cosine", "linear"):
        assert values[-1] == pytest.approx(final)


def test_a_decay_takes_the_steps_after_the_warm_up_by_hand():
    linear = Schedule("linear", 7, warmup_steps=3, final_fraction=0.2)
    expected = [1 / 3, 2 / 3, 1, 0.8, 0.6, 0.4, 0.2]
    assert [linear(step) for step in range(7)] == pytest.approx(expected)
    cosine = Schedule("cosine", 7, warmup_steps=3, final_fraction=0)
    assert cosine(4) == pytest.approx(0.5)  # half-way between steps 2 and 6


def test_a_run_that_only_warms_up_ends_at_the_peak():
    for name in NAMES:
        assert Schedule(name, 4, warmup_steps=4)(3) == 1


def test_an_unknown_schedule_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        Schedule("cosin", 10)


def test_warm_up_and_decay_must_fit_into_the_run():
    with pytest.raises(ConfigError, match="longer than the run"):
        Schedule("warmup_stable_decay", 10, warmup_steps=6, decay_steps=5)


@pytest.mark.parametrize(
    ("config", "total", "schedule"),
    [
        (PretrainConfig(), 160, Schedule("warmup_stable_decay", 160, 3, 32, 0.05)),
        (PretrainConfig(), 244, Schedule("warmup_stable_decay", 244, 5, 49, 0.05)),
        (SftConfig(), 60, Schedule("linear", 60, 3, 0, 0.1)),
        (DpoConfig(), 2, Schedule("linear", 2, 2, 0, 0.1)),
        (GrpoConfig(), 40, Schedule("constant", 40, 3, 0, 0.1)),
        (ScaleConfig(), 128, Schedule("warmup_stable_decay", 128, 16, 26, 0)),
    ],
)
def test_each_stage_has_the_course_of_its_own(config: Any, total: int, schedule: Schedule) -> None:
    assert config.schedule.over(total) == schedule


def test_a_rise_has_so_many_steps_or_such_a_part_whichever_is_longer() -> None:
    both = ScheduleConfig(name="cosine", warmup_steps=10, warmup_fraction=0.05)
    assert [both.over(total).warmup_steps for total in (4, 100, 400)] == [4, 10, 20]


def test_parts_that_add_up_to_more_than_the_run_are_refused() -> None:
    with pytest.raises(ValidationError, match="add up to more than 1"):
        ScheduleConfig(warmup_fraction=0.6, decay_fraction=0.5)
    ScheduleConfig(name="cosine", warmup_fraction=0.6, decay_fraction=0.5)  # which has no such part


@pytest.mark.parametrize(
    ("config", "rate", "decay"),
    [
        (PretrainConfig(), 3e-3, 0.1),
        (SftConfig(), 1e-3, 0.0),
        (DpoConfig(), 1e-4, 0.0),
        (GrpoConfig(), 3e-4, 0.0),
        (ScaleConfig(), 4e-3, 0.1),
    ],
)
def test_each_stage_has_a_rate_of_its_own_and_the_rest_in_common(
    config: Any, rate: float, decay: float
) -> None:
    same = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "gradient_clip": 1.0}
    own = {"learning_rate": rate, "weight_decay": decay}
    assert config.optimizer.model_dump() == same | own
