"""Every error that lmpipe raises on purpose.

    LmpipeError
    ├── ConfigError (ValueError)   a recipe, config or option is wrong; raised before anything runs
    ├── InputError                 data from outside are unusable: names file, record, range, remedy
    ├── StoreError                 the artifact store misbehaves or an object is missing
    │   ├── StoreUnavailable       the store does not answer; the same call may work later
    │   ├── StoreRefused           the store may not be written or read with these rights
    │   └── LockLost               another builder took the lock over; nothing was published
    ├── StageFailed                a stage's child process ended without a result
    ├── RunFailed                  stages of a run failed; all that did not need them went on
    └── TrainingError              training cannot go on (ranks lost, non-finite gradients in a row)

A message says what happened, the value found, the allowed range and the remedy. All classes take
one string, so that they survive pickling between processes.
"""

import difflib
from collections.abc import Iterable


class LmpipeError(Exception):
    """Base of all errors raised on purpose; everything else is a defect."""


class ConfigError(LmpipeError, ValueError):
    """A config, recipe or option is wrong. Raised at construction, before any work."""


class InputError(LmpipeError):
    """Data from outside cannot be used: the message names the file, the record and the remedy."""


class StoreError(LmpipeError):
    """The artifact store cannot serve a read or take a write."""


class StoreUnavailable(StoreError):
    """The artifact store does not answer, after all retries; the same call may work later."""


class StoreRefused(StoreError):
    """The artifact store refuses access: rights, or a mount that is read-only."""


class LockLost(StoreError):
    """Another builder holds the lock now; the attempt that lost it publishes nothing."""


class StageFailed(LmpipeError):
    """A stage's process ended without a result: the message names its exit code or signal."""


class RunFailed(LmpipeError):
    """Stages of a run failed: the message names them, and what was not run for want of them."""


class TrainingError(LmpipeError):
    """Training cannot continue: a rank died, or too many steps in a row were not finite."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return what a message says of a name that is none: the nearest one, else all there are."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
