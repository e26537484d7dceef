"""Running a flow's composition inside a Prefect flow run, and writing down what became of it."""

import contextlib
import json
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from flows.align import align
from flows.curate import curate
from flows.evaluate import evaluate
from flows.naming import prefect_name
from flows.pipeline import pipeline
from flows.pretrain import pretrain
from flows.recipe import PipelineConfig
from flows.scale import scale
from flows.tokenize import tokenize
from flows.worker_watch import ends_with_worker
from lmpipe.artifacts.events import Event
from lmpipe.artifacts.leases import RunLeases
from lmpipe.artifacts.manifest import Origin
from lmpipe.artifacts.provenance import now
from lmpipe.errors import StoreError, StoreRefused
from tasks.bridge import Listener, PrefectConductor
from tasks.conductor import conducted_by
from tasks.plan import Step, check_runnable, plan
from tasks.selection import Selection

COMPOSITIONS: dict[str, Callable[[PipelineConfig], Any]] = {
    "pipeline": pipeline,
    "curate": curate,
    "tokenize": tokenize,
    "pretrain": pretrain,
    "align": align,
    "evaluate": evaluate,
    "scale": scale,
}


class Silent:
    """A listener for runs that nobody watches in a terminal."""

    def started(self, name: str) -> None:
        """Ignore."""

    def event(self, name: str, event: Event) -> None:
        """Ignore."""

    def line(self, name: str, line: str) -> None:
        """Ignore."""

    def finished(self, step: Step) -> None:
        """Ignore."""


def look_ahead(
    flow: str, recipe: PipelineConfig, selection: Selection, here: bool = True
) -> list[Step]:
    """Return what would become of each step; `here`: on this machine."""
    return plan(partial(COMPOSITIONS[flow], recipe), recipe.settings(), selection, here)


def plan_run(
    flow: str, recipe: PipelineConfig, selection: Selection, here: bool = True
) -> list[Step]:
    """Return what would become of each step, or raise what would stop the run.

    Args:
        here: whether this machine is the one that will run it.
    """
    steps = look_ahead(flow, recipe, selection, here)
    check_runnable(steps, selection)
    return steps


def execute(
    flow: str,
    recipe: PipelineConfig,
    selection: Selection,
    listener: Listener | None = None,
    flow_run: str = "",
) -> list[Step]:
    """Run a composition, building what is missing; call it inside a Prefect flow run.

    Args:
        flow: a key of COMPOSITIONS.
        recipe: what to run.
        selection: what may be built.
        listener: hears what happens.
        flow_run: id of the Prefect flow run; a retry has the same one and forces nothing twice.

    Returns:
        What became of each step, also stored as `runs/<recipe>/<time>.json`.

    Raises:
        RunFailed: a stage failed; everything that did not need it was built.
        StoreRefused: the store may not be written, and something must be built.
    """
    settings = recipe.settings()
    compose = partial(COMPOSITIONS[flow], recipe)
    planned = plan_run(flow, recipe, selection)
    allowed = selection.allowed([step.name for step in planned])
    started = now()
    origin = Origin(
        flow_run=flow_run or secrets.token_hex(6),
        flow_run_name=prefect_name(),
        flow=flow,
        recipe=recipe.name,
    )
    leases = RunLeases(settings.store, f"{flow} of {recipe.name}, run {origin.flow_run}")
    conductor = PrefectConductor(settings, selection, allowed, listener or Silent(), origin, leases)

    def write_record() -> None:
        record = {
            "recipe": recipe.model_dump(mode="json"),
            "flow": flow,
            "flow_run": flow_run,
            "selection": selection.model_dump(mode="json"),
            "started": started,
            "finished": now(),
            "steps": [vars(step) for step in conductor.steps],
        }
        path = f"runs/{recipe.name}/{started.replace(':', '')}-{secrets.token_hex(2)}.json"
        settings.store.create(path, json.dumps(record, indent=1).encode())

    with leases:  # until the record is written, from which gc knows what the run used
        if leases.refusal:
            _check_builds_nothing(planned, allowed, leases.refusal)
            message = (
                f"this run's use of the store is not recorded, gc may take it: {leases.refusal}"
            )
            event = {"type": "log", "level": "warning", "message": message}
            conductor.listener.event("store", event)
        try:
            with ends_with_worker(), conducted_by(conductor):
                compose()
        except BaseException:
            with contextlib.suppress(StoreError, OSError):  # what ended the run is what counts
                write_record()
            raise
        if not leases.refusal:
            write_record()
    return conductor.steps


def _check_builds_nothing(planned: list[Step], allowed: set[str], refusal: str) -> None:
    """Refuse a run that must build on a store that it may only read.

    Raises:
        StoreRefused: names what would be built.
    """
    steps = [s for s in planned if s.status in ("RUN", "PENDING") and s.name in allowed]
    if steps:
        listed = ", ".join(f"{step.name} ({step.reason})" for step in steps[:3])
        more = f" and {len(steps) - 3} more" * (len(steps) > 3)
        raise StoreRefused(f"nothing was run: {refusal}. The run must build {listed}{more}")
