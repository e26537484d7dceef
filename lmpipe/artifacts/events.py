"""What a running stage tells its caller: progress, curve points, tables, log lines and alarms.

A stage emits plain dictionaries and knows nothing of who listens. In a child process they travel as
JSON lines over a pipe; in a notebook they are printed; under Prefect the bridge turns them into
progress, table and markdown artifacts. A listener that fails never fails the stage.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Sink = Callable[[Event], None]

PROGRESS_INTERVAL_SECONDS = 0.5


def discard(event: Event) -> None:
    """Drop an event."""


class PipeSink:
    """Writes events as JSON lines to a file descriptor; safe from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        line = json.dumps(event, default=str).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]


class Emitter:
    """The emitting half that Output and training ranks share: one method per kind of event."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._last_progress = 0.0

    def progress(self, done: float, total: float, unit: str = "documents", label: str = "") -> None:
        """Tell how far the stage is; frequent calls are thinned, the last one never."""
        now = time.monotonic()
        if done < total and now - self._last_progress < PROGRESS_INTERVAL_SECONDS:
            return
        self._last_progress = now
        self._sink({"type": "progress", "done": done, "total": total, "unit": unit, "label": label})

    def series(self, step: int, **values: float) -> None:
        """Add one point to the stage's curves."""
        self._sink({"type": "series", "step": step, "values": values})

    def table(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Show a table."""
        self._sink({"type": "table", "name": name, "rows": rows})

    def log(self, message: str, level: str = "info") -> None:
        """Say something in words; level is debug, info, warning or error."""
        self._sink({"type": "log", "level": level, "message": message})

    def alarm(self, name: str, message: str, **values: float) -> None:
        """Say that someone should look; the stage goes on.

        An alarm may depend on thresholds in `Runtime`, so it must change no byte of the output.

        Args:
            name: what it is about, the same each time, such as "training.spike".
            message: what was found, the limit, and where to look.
            values: the numbers, for whoever is notified.
        """
        self._sink({"type": "alarm", "name": name, "message": message, "values": values})

    def emit(self, event: Event) -> None:
        """Pass an event on that another process made."""
        self._sink(event)
