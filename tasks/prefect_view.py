"""What a stage's task run shows in Prefect: progress, tables, a summary, its log and its alarms.

Events arrive from threads that read pipes. Calls to the API are slow and can fail, so one worker
thread makes them, from a bounded queue and thinned to a rate that a busy server bears. What does
not fit is counted and dropped here, and stays whole in the log stored beside the attempt. A view
that fails never fails the stage.

An alarm becomes a warning in the log and a Prefect event `lmpipe.<name>`, which automations notify
on. Prefect adds the flow run, task run, deployment and tags to it by itself.
"""

import contextvars
import logging
import queue
import re
import threading
import time
from typing import Any

from lmpipe.artifacts.events import Event
from lmpipe.artifacts.types import Artifact, Report
from lmpipe.report.wording import cell
from tasks.ui_words import for_the_reader, readable, without_addresses

LINES_PER_SECOND = 40  # one million lines at full rate would be 25,000 API batches
PROGRESS_SECONDS = 2.0
QUEUE_LENGTH = 1000
REPORT_LINK_SECONDS = 7 * 24 * 3600  # the longest that S3 signs a link for
ALARM_SECONDS = 10.0  # how long an alarm waits for room in a full queue; the rest is dropped
EVENT_PREFIX = "lmpipe."


class PrefectView:
    """Shows one task run's events; made inside the task run."""

    def __init__(self, name: str) -> None:
        from prefect import get_run_logger

        self._name = name
        self._key = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        self._logger: Any = get_run_logger()
        self._budget = float(LINES_PER_SECOND)
        self._refilled = time.monotonic()
        self._dropped = 0
        self._progress_id: Any = None
        self._progress_at = 0.0
        self._points: list[dict[str, Any]] = []
        self._queue: queue.Queue[Event | None] = queue.Queue(QUEUE_LENGTH)
        context = contextvars.copy_context()  # Prefect finds the task run through context variables
        self._thread = threading.Thread(
            target=context.run, args=[self._work], name="prefect-view", daemon=True
        )
        self._thread.start()

    def line(self, line: str) -> None:
        """Log a line of the stage's processes, thinned."""
        now = time.monotonic()
        self._budget = min(
            LINES_PER_SECOND, self._budget + (now - self._refilled) * LINES_PER_SECOND
        )
        self._refilled = now
        if self._budget < 1:
            self._dropped += 1
            return
        self._budget -= 1
        if self._dropped:
            self._logger.info("… %d lines left out here; the stored log has all", self._dropped)
            self._dropped = 0
        self._logger.info("%s", without_addresses(line))

    def event(self, event: Event) -> None:
        """Take an event; never blocks the stage for long, never raises."""
        try:
            if event["type"] == "alarm":
                self._queue.put(event, timeout=ALARM_SECONDS)
            else:
                self._queue.put_nowait(event)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Show what is queued and stop."""
        self._queue.put(None)
        self._thread.join(timeout=30)
        if self._dropped:
            self._logger.info("… %d lines left out here; the stored log has all", self._dropped)

    def summary(self, artifact: Artifact) -> None:
        """Show what was built."""
        seconds = artifact.manifest.provenance.seconds
        text = (
            f"## {self._name}\n\n`{artifact.stage}/{artifact.id}` built in "
            f"{cell('seconds', seconds)}, {len(artifact.manifest.outputs):,} objects, "
            f"digest `{artifact.digest[:16]}`\n\n"
            f"{_metrics_table(artifact)}\n"
        )
        self._guard(self._markdown, text)
        if isinstance(artifact, Report):
            self._guard(self._report, artifact)

    def _report(self, report: Report) -> None:
        """Show the page's Markdown twin, and a link to the page itself."""
        from prefect.artifacts import create_link_artifact, create_markdown_artifact

        create_markdown_artifact(
            report.read_bytes("report.md").decode(), key="report-text", description=self._name
        )
        link = report.link("report.html", REPORT_LINK_SECONDS)
        # "report" is the key of the stage's own summary.
        create_link_artifact(
            link, link_text="report.html", key="report-page", description=self._name
        )

    def _work(self) -> None:
        while (event := self._queue.get()) is not None:
            self._guard(self._show, event)
        if self._points:
            self._guard(self._table, "curves", self._points[-500:])

    def _show(self, event: Event) -> None:
        match event["type"]:
            case "progress":
                self._progress(event)
            case "table":
                self._table(event["name"], event["rows"])
            case "series":
                self._points.append({"step": event["step"], **event["values"]})
            case "log":
                level = logging.getLevelNamesMapping()[event["level"].upper()]
                self._logger.log(level, "%s", for_the_reader(event["message"]))
            case "alarm":
                self._alarm(event)

    def _progress(self, event: Event) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        now = time.monotonic()
        done, total = event["done"], event["total"]
        if done < total and now - self._progress_at < PROGRESS_SECONDS:
            return
        self._progress_at = now
        percent = round(100.0 * min(1.0, done / total), 1) if total else 100.0
        text = f"{event['label'] or self._name}: {done:,.0f} of {total:,.0f} {event['unit']}"
        if self._progress_id is None:
            self._progress_id = create_progress_artifact(
                percent, key=f"{self._key}-progress", description=text
            )
        else:
            update_progress_artifact(self._progress_id, percent, description=text)

    def _alarm(self, event: Event) -> None:
        from prefect.events import emit_event

        self._logger.warning("ALARM %s: %s", event["name"], event["message"])
        emit_event(
            EVENT_PREFIX + event["name"],
            resource={
                "prefect.resource.id": f"lmpipe.stage.{self._key}",
                "prefect.resource.name": self._name,
            },
            payload={"message": event["message"], "values": event["values"]},
        )

    def _table(self, name: str, rows: list[dict[str, Any]]) -> None:
        from prefect.artifacts import create_table_artifact

        key = re.sub(r"[^a-z0-9]+", "-", f"{self._key}-{name}".lower()).strip("-")
        create_table_artifact(readable(rows), key=key, description=f"{self._name}: {name}")

    def _markdown(self, text: str) -> None:
        from prefect.artifacts import create_markdown_artifact

        create_markdown_artifact(text, key=self._key, description=self._name)

    def _guard(self, show: Any, *arguments: Any) -> None:
        """Show something; a server that is away costs the picture and not the stage."""
        try:
            show(*arguments)
        except Exception as error:
            self._logger.warning("could not be shown in Prefect: %s", error)


def _metrics_table(artifact: Artifact) -> str:
    """Return an artifact's metrics as a Markdown table."""
    rows = [
        f"| {name} | {cell(name, value)} |"
        for name, value in artifact.metrics.items()
        if isinstance(value, int | float)
    ]
    return "\n".join(["| metric | value |", "|---|---:|", *rows])
