"""Where a training run is: what is saved beside the weights."""

from dataclasses import dataclass
from typing import Any


@dataclass
class Position:
    """Where a run is; saved and restored with the weights.

    Attributes:
        steps: steps taken, skipped ones included; counts data.
        updates: steps that changed the weights; counts the schedule.
        data: the caller's own (JSON), such as the next sequence and its ids.
    """

    steps: int = 0
    updates: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    data: dict[str, Any] | None = None
