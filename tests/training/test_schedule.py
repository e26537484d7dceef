import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpipe.errors import ConfigError
from lmpipe.training.schedule import Schedule, ScheduleName

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


def test_warm_up_and_decay_must_fit_into_the_run():
    with pytest.raises(ConfigError, match="longer than the run"):
        Schedule("warmup_stable_decay", 10, warmup_steps=6, decay_steps=5)
