"""An alarm of a stage reaches the terminal and Prefect's log, and stops nothing."""

import io
import queue
import threading
from pathlib import Path
from typing import Any

import prefect.concurrency.sync  # noqa: F401  it binds emit_event before a test replaces it
import pytest
from prefect import flow
from rich.console import Console

from flows.terminal import Terminal
from lmpipe.artifacts.manifest import Origin
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from tasks import prefect_view
from tasks.bridge import PrefectConductor, as_task
from tasks.conductor import Settings, conducted_by
from tasks.selection import Selection
from tests.stack.ops_stages import AlarmingConfig, alarming

pytestmark = pytest.mark.usefixtures("prefect_server")
alarming_task = as_task(alarming)


def run(folder: Path, runtime: Runtime) -> tuple[str, list[str]]:
    """Run the stage that raises every alarm; return what the terminal shows, and the steps."""
    text = io.StringIO()
    terminal = Terminal(Console(file=text, width=400, color_system=None))
    settings = Settings(Store(str(folder)), runtime)
    conductor = PrefectConductor(
        settings, Selection(), {"alarming"}, terminal, Origin(flow_run="run")
    )

    @flow(name="alarming")
    def composed() -> None:
        with conducted_by(conductor):
            alarming_task(AlarmingConfig())

    composed()
    return text.getvalue(), [step.status for step in conductor.steps]


def test_alarms_are_shown_and_emitted_and_the_stage_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    emitted: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        "prefect.events.emit_event",
        lambda event, resource, payload: emitted.append((event, {**resource, **payload})),
    )
    shown, steps = run(tmp_path / "store", Runtime())
    assert steps == ["RUN"]
    lines = [line for line in shown.splitlines() if line.startswith("ALARM alarming: ")]
    assert len(lines) == 3
    assert any("select keeps 3 of 1000 documents" in line for line in lines)
    assert [event for event, _ in emitted] == [
        "lmpipe.training.spike",
        "lmpipe.curation.low-yield",
        "lmpipe.curation.contamination",
    ]
    assert emitted[1][1]["prefect.resource.id"] == "lmpipe.stage.alarming"
    assert emitted[1][1]["values"] == {"documents": 1000, "kept": 3, "limit": 0.02}
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert sum(message.startswith("ALARM ") for message in warnings) == 3


def test_thresholds_are_no_identity_and_silence_the_alarms(tmp_path: Path) -> None:
    silent = Runtime(alarm_kept_fraction=0, alarm_contaminated_fraction=1, alarm_loss_deviations=0)
    shown, steps = run(tmp_path / "store", silent)
    assert "ALARM" not in shown and steps == ["RUN"]
    assert run(tmp_path / "store", Runtime())[1] == ["HIT"]


def test_an_alarm_waits_for_room_where_progress_would_be_dropped() -> None:
    view = object.__new__(prefect_view.PrefectView)
    view._queue, view._dropped = queue.Queue(1), 0
    view.event({"type": "progress"})
    view.event({"type": "progress"})
    assert view._dropped == 1
    threading.Timer(0.2, view._queue.get).start()
    view.event({"type": "alarm"})
    assert view._queue.get(timeout=5) == {"type": "alarm"}
    assert view._dropped == 1
