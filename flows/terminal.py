"""What a run and a plan look like in a terminal: live progress on a TTY, plain lines elsewhere."""

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from lmpipe.artifacts.events import Event
from tasks.plan import Step

PLAIN_INTERVAL_SECONDS = 10.0
COLOURS = {
    "HIT": "green",
    "RUN": "yellow",
    "PENDING": "blue",
    "SKIP": "dim",
    "MISSING": "red",
    "REFUSED": "red",
    "FAILED": "red",
    "NOT RUN": "red",
}


def outcome(step: Step) -> str:
    """Return a word or a line on how a step ended."""
    words = {"RUN": "built", "HIT": "found", "SKIP": f"skipped: {step.reason}"}
    return words.get(step.status, step.reason.partition("\n")[0])


class Terminal:
    """A listener that shows each step as it goes and one line when it has ended."""

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._shown_at = 0.0
        self._tasks: dict[str, TaskID] = {}
        self.steps: list[Step] = []
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.fields[step]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "Terminal":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def started(self, name: str) -> None:
        """Show that a step begins."""
        self._shown_at = time.monotonic()
        if self._console.is_terminal:
            self._tasks[name] = self._progress.add_task("starting", step=name, total=None)
        else:
            self._console.print(f"{name}: started", markup=False, highlight=False)

    def event(self, name: str, event: Event) -> None:
        """Show progress and warnings."""
        if event["type"] == "progress":
            done = f"{event['done']:,.0f}/{event['total']:,.0f} {event['unit']}"
            text = f"{event['label']} {done}".strip()
            if name in self._tasks:
                self._progress.update(
                    self._tasks[name],
                    completed=event["done"],
                    total=event["total"],
                    description=escape(text),
                )
            elif time.monotonic() - self._shown_at > PLAIN_INTERVAL_SECONDS:
                self._shown_at = time.monotonic()
                self._console.print(f"{name}: {text}", markup=False, highlight=False)
        elif event["type"] == "alarm":
            text = f"[bold red]ALARM[/] {escape(name)}: {escape(event['message'])}"
            self._console.print(text, highlight=False)
        elif event["type"] == "log" and (self._verbose or event["level"] != "debug"):
            self._console.print(f"{name}: {event['message']}", markup=False, highlight=False)

    def line(self, name: str, line: str) -> None:
        """Show what a step's processes write, when asked to."""
        if self._verbose:
            self._console.print(f"{name} | {line}", markup=False, highlight=False)

    def finished(self, step: Step) -> None:
        """Show how a step ended."""
        self.steps.append(step)
        if step.name in self._tasks:
            self._progress.remove_task(self._tasks.pop(step.name))
        colour = COLOURS[step.status]
        seconds = f"{step.seconds:7.1f} s" if step.seconds is not None else " " * 9
        identity = f" [dim]{step.artifact[:12]}[/]" if step.artifact else ""
        self._console.print(
            f"[{colour}]{step.status:4}[/] {seconds}  {escape(step.name)} "
            f"{escape(outcome(step))}{identity}",
            highlight=False,
        )


def show_plan(console: Console, steps: list[Step]) -> None:
    """Print a plan as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("id", no_wrap=True)
    table.add_column("why", overflow="fold")
    for step in steps:
        took = f"{step.seconds:.1f} s" if step.seconds is not None else ""
        colour = COLOURS[step.status]
        table.add_row(
            escape(step.name),
            f"[{colour}]{step.status}[/]",
            took,
            step.artifact[:12],
            escape(step.reason),
        )
    console.print(table)
    counts = {status: sum(s.status == status for s in steps) for status in COLOURS}
    console.print(", ".join(f"{n} {status}" for status, n in counts.items() if n))
