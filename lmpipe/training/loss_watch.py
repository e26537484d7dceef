"""Noticing a spike of the training loss while the run still goes on.

A loss is a spike if it is `deviations` robust standard deviations (1.4826 times the median absolute
deviation) above the median of the last `steps` losses, or not finite. Median and deviation, in
place of mean and variance, so that a spike in the window does not hide the next one. A falling loss
lies below its median, so the steep start raises nothing; a window that is not full yet raises
nothing either. One alarm in `steps` steps: a run that has diverged says so once and not each step.

The deviation counts as at least 0.5 % of the median, else a loss that hardly moves (a memorised
sample, a fixed batch) would alarm on noise.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable

from lmpipe.artifacts.events import Emitter
from lmpipe.runtime import Runtime

_NORMAL = 1.4826  # standard deviations of a normal distribution per median absolute deviation
_LEAST_SHARE = 0.005


class LossWatch:
    """The last losses of a run, and the rule.

    Args:
        history: losses of the steps before, of a run that goes on from a checkpoint.
    """

    def __init__(self, runtime: Runtime, out: Emitter, history: Iterable[float] = ()) -> None:
        self._deviations = runtime.alarm_loss_deviations
        self._steps = runtime.alarm_loss_steps
        self._out = out
        finite = (loss for loss in history if math.isfinite(loss))
        self._losses: deque[float] = deque(finite, maxlen=self._steps)
        self._quiet_until = -1

    def see(self, step: int, loss: float) -> None:
        """Take a step's loss; raise an alarm if it is a spike and none was raised lately."""
        if self._deviations == 0:
            return
        if step >= self._quiet_until and self._is_spike(step, loss):
            self._quiet_until = step + self._steps
        if math.isfinite(loss):
            self._losses.append(loss)

    def _is_spike(self, step: int, loss: float) -> bool:
        if not math.isfinite(loss):
            message = f"loss {loss} at step {step} is not a number one can learn from"
            self._out.alarm("training.spike", message, step=step)
            return True
        if len(self._losses) < self._steps:
            return False
        median = statistics.median(self._losses)
        spread = statistics.median(abs(value - median) for value in self._losses)
        deviation = max(_NORMAL * spread, _LEAST_SHARE * abs(median), 1e-12)
        if loss <= median + self._deviations * deviation:
            return False
        self._out.alarm(
            "training.spike",
            f"loss {loss:.4g} at step {step} is {(loss - median) / deviation:.1f} deviations above "
            f"{median:.4g}, the median of {self._steps} steps; "
            f"runtime.alarm_loss_deviations={self._deviations:g}",
            step=step,
            loss=loss,
            median=median,
            deviation=deviation,
        )
        return True
