import random

import pytest

from lmpipe.artifacts.events import Emitter
from lmpipe.runtime import Runtime
from lmpipe.training.loss_watch import LossWatch


def alarms(losses, history=(), **runtime):
    """Return what a run with these losses raises: step, and what is said."""
    events = []
    watch = LossWatch(Runtime(**runtime), Emitter(events.append), history)
    for step, loss in enumerate(losses):
        watch.see(step, loss)
    assert {event["type"] for event in events} <= {"alarm"}
    assert {event["name"] for event in events} <= {"training.spike"}
    return [(event["values"]["step"], event["message"]) for event in events]


def falling(count, noise=0.05):
    """A loss as runs have it: from 9 down to 3, with noise."""
    draw = random.Random(1)
    return [3 + 6 * 0.98**step + draw.gauss(0, noise) for step in range(count)]


def test_a_falling_noisy_loss_raises_nothing():
    assert alarms(falling(2000)) == []


@pytest.mark.parametrize("at", [150, 400, 900])
def test_a_spike_is_reported_with_its_step_and_numbers(at):
    losses = falling(1000)
    losses[at] += 6
    ((step, message),) = alarms(losses)
    assert step == at
    assert "deviations above" in message and "runtime.alarm_loss_deviations=8" in message


def test_a_run_that_diverges_says_so_once_in_as_many_steps_as_are_compared():
    found = alarms([2.0 + 0.01 * (n % 3) for n in range(20)] + [9.0] * 40, alarm_loss_steps=16)
    assert [step for step, _ in found] == [20]
    twice = alarms([2.0] * 20 + [9.0] * 40 + [50.0] * 9, alarm_loss_steps=16)
    assert [step for step, _ in twice] == [20, 60]


def test_a_loss_that_is_not_finite_is_a_spike_and_enters_no_median():
    losses = [2.0] * 10 + [float("nan")] + [2.0] * 10
    ((step, message),) = alarms(losses, alarm_loss_steps=8)
    assert step == 10 and "nan" in message


def test_a_resumed_run_compares_with_the_losses_before_the_kill():
    assert alarms([9.0], alarm_loss_steps=8) == []
    assert len(alarms([9.0], history=[2.0] * 8, alarm_loss_steps=8)) == 1


def test_zero_deviations_switch_the_watch_off():
    assert alarms([2.0] * 100 + [99.0, float("inf")], alarm_loss_deviations=0) == []


def test_a_loss_that_hardly_moves_does_not_alarm_on_noise():
    losses = [2.0] * 100 + [2.01, 2.02, 2.03]
    assert alarms(losses) == []
