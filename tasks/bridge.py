"""The only bridge between lmpipe and Prefect: a stage becomes a task.

    dedup = as_task(dedup_.dedup, retries=2, tags=("cpu",))

Called in a flow, such a task looks the artifact up, builds it in a child process if it is missing,
and shows Prefect what happens meanwhile: progress, tables, a summary and log lines. Prefect's own
result cache is off (NO_CACHE): it keys on arguments and source lines and never looks whether a
result still exists, while the artifact store is bound to bytes.

Prefect is imported when a flow runs and not before: its import takes 3 s, more than `lmpipe plan`.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

from lmpipe.artifacts.build import find
from lmpipe.artifacts.events import Event
from lmpipe.artifacts.leases import RunLeases
from lmpipe.artifacts.lookup import identify, read_manifest
from lmpipe.artifacts.manifest import Origin
from lmpipe.artifacts.process import build_in_child
from lmpipe.artifacts.stage import A, Inputs, Stage
from lmpipe.errors import InputError, LmpipeError, RunFailed
from lmpipe.runtime import Runtime
from lmpipe.runtime.devices import resolve_device
from lmpipe.runtime.redaction import Redactor
from lmpipe.training.launch import resolve_num_ranks
from tasks.conductor import Call, Policy, Settings, StageTask
from tasks.plan import Planned, Status, Step, bind_planned, flat, lacking_inputs
from tasks.selection import Selection
from tasks.task_runs import TaskRuns
from tasks.ui_words import for_the_reader

FAILED = ("FAILED", "NOT RUN")  # what a step is that failed, and one that needs it
LONGEST_REASON = 300  # letters of an error in a table and in the report's config


def as_task(
    stage: Stage[A],
    *,
    retries: int = 0,
    retry_delay_seconds: float = 10.0,
    tags: tuple[str, ...] = (),
    timeout_seconds: float | None = None,
    has_ranks: bool = True,
    tells_failures: bool = False,
) -> StageTask[A]:
    """Make a stage callable in flows; the arguments are Prefect's own, but for two.

    Args:
        has_ranks: whether the stage uses all GPUs of its runtime, a rank on each; else it uses one.
        tells_failures: whether the stage runs on those of its inputs that there are where others
            failed; its config's `failed` then says which.
    """
    policy = Policy(retries, retry_delay_seconds, tags, timeout_seconds, has_ranks, tells_failures)
    return StageTask(stage, policy)


class Listener(Protocol):
    """Hears what a run does, for a terminal beside Prefect's UI."""

    def started(self, name: str) -> None:
        """A step begins."""

    def event(self, name: str, event: Event) -> None:
        """A running step says something."""

    def line(self, name: str, line: str) -> None:
        """A running step's processes wrote a line."""

    def finished(self, step: Step) -> None:
        """A step ended as HIT, RUN (built), SKIP, FAILED or NOT RUN."""


class PrefectConductor:
    """Carries out the stage calls of one flow run as Prefect task runs.

    A stage that fails stops what reads its artifact, and nothing else: hours of work that need
    none of it go on, and `finish` ends the run as failed afterwards.

    Args:
        settings: where artifacts lie and how stages run.
        selection: what may be built.
        allowed: names of the steps that may be built.
        listener: hears what happens.
        origin: names this run in the manifests of what it builds, so that they can be accounted
            for, and a retry does not force again.
        leases: where the run writes down what it uses, so that gc leaves it alone.
    """

    def __init__(
        self,
        settings: Settings,
        selection: Selection,
        allowed: set[str],
        listener: Listener,
        origin: Origin,
        leases: RunLeases | None = None,
    ) -> None:
        self._settings = settings
        self._selection = selection
        self._allowed = allowed
        self.listener = listener
        self._origin = origin
        self._leases = leases
        self._task_runs = TaskRuns()
        self.steps: list[Step] = []

    def call(self, call: Call[A]) -> A:
        """Return the call's artifact: found, or built by a task run."""
        bound = bind_planned(call)
        if call.policy.tells_failures and _failed(bound):
            call = self._telling_failures(call)
            bound = bind_planned(call)
        waiting = [item for item in flat(bound) if isinstance(item, Planned)]
        if waiting:
            status: Status = "NOT RUN" if _failed(bound) else "SKIP"
            return cast(A, self._without(lacking_inputs(call, status, waiting)))
        runtime = self._settings.runtime_of(call)
        try:
            call.stage.admit(call.config, bound)
        except InputError as error:
            return cast(A, self._without(self._failure(call, error)))
        identity = identify(call.stage, call.config, bound)
        if self._leases is not None:
            self._leases.take(call.stage.name, identity)
        force = self._selection.forces(call.name) and not self._forced_before(call, identity)
        if not force:
            found = find(call.stage, identity, self._settings.store, runtime)
            if found is not None and self._leases is not None and found.manifest.adopted:
                self._leases.take(found.stage, found.manifest.adopted.id)
                found = find(call.stage, identity, self._settings.store, runtime)
            if found is not None:
                self._task_runs.show_found(call, flat(bound), found)
                self._end(Step(call.name, call.stage.name, "HIT", "", found.id))
                return found
        if call.name not in self._allowed:
            step = Step(call.name, call.stage.name, "SKIP", "not among the stages chosen")
            return cast(A, self._without(Planned(step, call.stage.output_type, None)))
        self.listener.started(call.name)
        started = time.monotonic()
        try:
            work = partial(self._build, call, bound, force)
            result = self._task_runs.build(call, flat(bound), work)
        except Exception as error:  # kept with its step; Ctrl-C and cancelling are no Exception
            seconds = time.monotonic() - started
            return cast(A, self._without(self._failure(call, error, identity, seconds)))
        seconds = time.monotonic() - started
        self._end(Step(call.name, call.stage.name, "RUN", "built", result.id, seconds))
        return result

    def _build(self, call: Call[A], bound: Inputs, force: bool) -> A:
        """Build a call's artifact in a child process; runs inside the task run."""
        from tasks.prefect_view import PrefectView

        store, runtime = self._settings.store, self._settings.runtime_of(call)
        view = PrefectView(call.name)

        def on_event(event: Event) -> None:
            self.listener.event(call.name, event)
            view.event(event)

        def on_line(line: str) -> None:
            self.listener.line(call.name, line)
            view.line(line)

        try:
            with _lease(call, runtime):
                artifact = build_in_child(
                    call.stage,
                    call.config,
                    bound,
                    store=store,
                    runtime=runtime,
                    force=force,
                    sink=on_event,
                    line_sink=on_line,
                    reason=self._reason(force),
                    origin=self._origin.model_copy(update={"step": call.name}),
                )
        except LmpipeError as error:
            raise type(error)(for_the_reader(str(error))) from error
        finally:
            view.close()
        view.summary(artifact)
        return artifact

    def finish(self) -> None:
        """Raise RunFailed if a step failed, naming each, and those not run for want of it."""
        failed = [step for step in self.steps if step.status == "FAILED"]
        if failed:
            lines = [f"{step.name} failed: {step.reason}" for step in failed]
            lines += [
                f"{s.name} was not run: {s.reason}" for s in self.steps if s.status == FAILED[1]
            ]
            raise RunFailed("\n  ".join(lines))

    def _telling_failures(self, call: Call[A]) -> Call[A]:
        """Return a call without the inputs that failed, its config saying what did."""
        told = tuple(
            f"{step.name}: {step.reason.partition(chr(10))[0][:LONGEST_REASON]}"
            for step in self.steps
            if step.status in FAILED
        )
        inputs = tuple(
            [item for item in value if not _has_failed(item)] if isinstance(value, list) else value
            for value in call.inputs
        )
        return replace(call, config=call.config.model_copy(update={"failed": told}), inputs=inputs)

    def _failure(
        self, call: Call[Any], error: Exception, identity: str = "", seconds: float | None = None
    ) -> Planned:
        """Return what stands for a step that failed, or that its gate refused.

        A refusal fails a run only where the step was asked for.
        """
        text = Redactor(os.environ).text(f"{type(error).__name__}: {error}")
        status: Status = "FAILED" if call.name in self._allowed else "SKIP"
        step = Step(call.name, call.stage.name, status, text, identity, seconds)
        return Planned(step, call.stage.output_type, None)

    def _without(self, planned: Planned) -> Planned:
        """End a step that has no artifact; return what stands for it."""
        self._end(planned.step)
        return planned

    def _end(self, step: Step) -> None:
        self.steps.append(step)
        self.listener.finished(step)

    def _reason(self, force: bool) -> str:
        forced = self._force_mark if force else ""
        return "; ".join(filter(None, (self._selection.reason, forced)))

    @property
    def _force_mark(self) -> str:
        return f"forced by run {self._origin.flow_run}"

    def _forced_before(self, call: Call[Any], identity: str) -> bool:
        """Whether this run has forced the step already: a retry must not train twice."""
        entry = read_manifest(self._settings.store, call.stage.name, identity)
        return entry is not None and entry[0].provenance.reason.endswith(self._force_mark)


@contextmanager
def _lease(call: Call[Any], runtime: Runtime) -> Iterator[None]:
    """Hold a slot a device of the limit that stages on GPUs share, if the run names one.

    Strict: a limit that does not exist is an error, where Prefect would otherwise limit nothing. A
    lease that cannot be renewed, because the API is away, never ends a training run.
    """
    if not runtime.gpu_limit or "gpu" not in call.policy.tags:
        yield
        return
    from prefect.concurrency.sync import concurrency

    slots = num_slots(call.policy, runtime)
    _say_if_full(runtime.gpu_limit, slots)
    with concurrency(
        runtime.gpu_limit,
        occupy=slots,
        strict=True,
        raise_on_lease_renewal_failure=False,
    ):
        yield


def _say_if_full(limit: str, slots: int) -> None:
    """Log what a stage is about to wait for, if the limit has too few slots free."""
    from prefect import get_run_logger
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            found = client.read_global_concurrency_limit_by_name(limit)
        except ObjectNotFound:  # taking the slots says so
            return
    free = found.limit - found.active_slots
    if found.active and slots > free:
        text = "waits: needs %d slots of the limit %s, which has %d of %d free"
        get_run_logger().warning(text, slots, limit, free, found.limit)


def num_slots(policy: Policy, runtime: Runtime) -> int:
    """Return how many devices a stage on GPUs will use on this machine.

    Where there is no GPU a stage takes one slot, or one for each rank that was asked for: the limit
    then keeps training runs from sharing the cores.
    """
    if not policy.has_ranks:
        return 1
    device = resolve_device(runtime)
    return resolve_num_ranks(runtime, device) if device == "cuda" else max(1, runtime.ranks)


def _failed(bound: Inputs) -> bool:
    """Whether an input failed, or was not run because another did."""
    return any(_has_failed(item) for item in flat(bound))


def _has_failed(item: Any) -> bool:
    return isinstance(item, Planned) and item.step.status in FAILED
