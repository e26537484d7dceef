"""Planning a run without running it: each stage HIT, RUN or PENDING, and why.

The flow function itself is called with a conductor that only looks. A stage whose inputs are all
known has an id, so the store can say HIT or RUN; one below a stage that must run is PENDING, since
its id depends on bytes that do not exist yet. Where an earlier result of the upstream stage exists,
the plan also says what a pending stage would hit if those bytes came out the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from lmpipe.artifacts.lookup import identify, nearest, read_manifest
from lmpipe.artifacts.stage import A, Inputs, Role, given_roles
from lmpipe.artifacts.tombstone import when_collected
from lmpipe.artifacts.types import Artifact, Source, open_artifact
from lmpipe.errors import ConfigError, InputError
from lmpipe.runtime.preflight import check_machine
from tasks.conductor import Call, Settings, conducted_by
from tasks.selection import Selection

Status = Literal["HIT", "RUN", "PENDING", "SKIP", "MISSING", "REFUSED", "FAILED", "NOT RUN"]
WANTING = ("SKIP", "MISSING", "REFUSED")  # what a planned step is that gives nothing to read


@dataclass(frozen=True)
class Step:
    """What will become of one stage call, or has become of it.

    `needs` names the steps for want of which a SKIP or NOT RUN is one, the first of each chain.
    """

    name: str
    stage: str
    status: Status
    reason: str
    artifact: str = ""
    seconds: float | None = field(default=None)
    needs: tuple[str, ...] = ()


class Planned:
    """Stands for an artifact that is not there yet; `assumed` is its predecessor, if any."""

    def __init__(self, step: Step, output_type: type[Artifact], assumed: Artifact | None) -> None:
        self.step = step
        self.output_type = output_type
        self.assumed = assumed


class Planner:
    """A conductor that looks and builds nothing; `steps` holds what it saw.

    Args:
        here: whether this machine is the one that will run it, and can say what it has.
    """

    def __init__(
        self, settings: Settings, selection: Selection, allowed: set[str], here: bool = True
    ) -> None:
        self._settings = settings
        self._selection = selection
        self._allowed = allowed
        self._here = here
        self.looked: list[tuple[Call[Any], Inputs]] = []
        self._absent: dict[str, str] = {}  # why the files of a source cannot be read, by its id
        self.steps: list[Step] = []

    def call(self, call: Call[A]) -> A:
        """Return the artifact if it is there, else a stand-in."""
        bound = bind_planned(call)
        waiting = [i for i in flat(bound) if isinstance(i, Planned)]
        result = self._below(call, bound, waiting) if waiting else self._look(call, bound)
        if unreadable := self._unreadable(call, bound, result):
            result = self._planned(call, "REFUSED", unreadable, "", None)
        step = result.step if isinstance(result, Planned) else self._hit(call, result)
        if call.absent and isinstance(result, Artifact):
            self._absent[result.id] = f"{call.name}: {call.absent}"
        self.steps.append(step)
        if step.status in ("RUN", "PENDING"):
            self._check(call, bound)
        return cast(A, result)

    def _unreadable(self, call: Call[Any], bound: Inputs, result: Artifact | Planned) -> str:
        """Say why a step that is to be built could not read a source, or nothing.

        A role for any artifact, as the report's, reads what is known of a source and not its files.
        """
        is_built = isinstance(result, Planned) and result.step.status in ("RUN", "PENDING")
        reads = {r.name: bound.get(r.name) for r in call.stage.roles if issubclass(r.type, Source)}
        absent = [self._absent[i.id] for i in flat(reads) if getattr(i, "id", "") in self._absent]
        if call.absent:
            absent.append(f"{call.name}: {call.absent}")
        if not is_built or not absent:
            return ""
        return f"{call.name} has to read files that are away: {'; '.join(absent)}"

    def _check(self, call: Call[Any], bound: Inputs) -> None:
        """Raise ConfigError for what the stage would refuse when its turn comes."""
        runtime = self._settings.runtime_of(call) if self._here else None
        try:
            if call.check is not None:
                call.check()
            if runtime is not None:
                check_machine(runtime)
            if call.stage.check is not None:
                call.stage.check(call.config, given_roles(bound), runtime)
        except ConfigError as error:
            raise ConfigError(f"{call.name} would fail: {error}") from error

    def finish(self) -> None:
        """Have nothing to say: `check_runnable` looks at the steps."""

    def _look(self, call: Call[Any], bound: Inputs) -> Artifact | Planned:
        """Decide a call whose inputs are all there."""
        self.looked.append((call, bound))
        try:
            call.stage.admit(call.config, bound)
        except InputError as error:
            return self._planned(call, "REFUSED", str(error), "", None)
        store = self._settings.store
        identity = identify(call.stage, call.config, bound)
        entry = read_manifest(store, call.stage.name, identity)
        found = None
        if entry is not None:
            found = open_artifact(store, entry[0], call.runtime.get("locations"))
        collected = when_collected(store, entry[0]) if entry is not None else ""
        lost = found.missing() if found is not None else []
        forced = self._selection.forces(call.name)
        if found is not None and not lost and not forced and not collected:
            return found
        if forced:
            why = "forced"
        elif collected:
            why = f"its objects were collected by gc on {collected[:10]}"
        elif lost:
            why = f"lost {len(lost)} of its objects, such as {lost[0]}"
        else:
            why = self._why_new(call, bound)
        return self._planned(call, "RUN", why, identity, found)

    def _below(self, call: Call[Any], bound: Inputs, waiting: list[Planned]) -> Planned:
        """Decide a call below stages that have no bytes yet."""
        names = ", ".join(dict.fromkeys(item.step.name for item in waiting))
        lacking = [item for item in waiting if item.step.status in WANTING]
        if lacking:
            return lacking_inputs(call, "SKIP", lacking)
        if self._selection.forces(call.name):
            return self._planned(call, "PENDING", f"forced, after {names}", "", None)
        if any(item.assumed is None for item in waiting):
            return self._planned(call, "PENDING", f"after {names}", "", None)
        assumed = {role: _assume(value) for role, value in bound.items()}
        identity = identify(call.stage, call.config, cast(Inputs, assumed))
        entry = read_manifest(self._settings.store, call.stage.name, identity)
        if entry is None:
            return self._planned(call, "PENDING", f"after {names}", identity, None)
        found = open_artifact(self._settings.store, entry[0])
        why = f"after {names}; hits {identity[:12]} if those bytes do not change"
        return self._planned(call, "PENDING", why, identity, found)

    def _planned(
        self, call: Call[Any], status: Status, why: str, identity: str, assumed: Artifact | None
    ) -> Planned:
        if status in ("RUN", "PENDING") and call.name not in self._allowed:
            before = self._is_before(call.name)
            status = "MISSING" if before else "SKIP"
            why = f"not built ({why})" if before else "after the last stage asked for"
        seconds = assumed.manifest.provenance.seconds if assumed else None
        step = Step(call.name, call.stage.name, status, why, identity, seconds)
        return Planned(step, call.stage.output_type, assumed)

    def _is_before(self, name: str) -> bool:
        """Whether a step that may not be built comes before those that may."""
        planned = {step.name for step in self.steps}
        return not (self._allowed & planned) and bool(self._allowed)

    def _hit(self, call: Call[Any], found: Artifact) -> Step:
        seconds = found.manifest.provenance.seconds
        rows = ", ".join(
            f"{key} {value:,}" if isinstance(value, int) else f"{key} {value:.4g}"
            for key, value in list(found.metrics.items())[:3]
            if isinstance(value, int | float) and not isinstance(value, bool)
        )
        if adopted := found.manifest.adopted:
            fields = ", ".join(adopted.fields)
            rows = f"adopted from {adopted.id[:12]} but for {fields}" + f"; {rows}" * bool(rows)
        return Step(call.name, call.stage.name, "HIT", call.recalled or rows, found.id, seconds)

    def _why_new(self, call: Call[Any], bound: Inputs) -> str:
        relative = nearest(self._settings.store, call.stage, call.config, bound)
        if relative is None:
            return "never built"
        manifest, differences = relative
        shown = "; ".join(str(d) for d in differences[:3])
        more = f"; {len(differences) - 3} more" if len(differences) > 3 else ""
        return f"differs from {manifest.id[:12]}: {shown}{more}"


class _Namer:
    """A conductor that only writes down which steps a flow has."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def call(self, call: Call[A]) -> A:
        self.names.append(call.name)
        bind_planned(call)
        step = Step(call.name, call.stage.name, "PENDING", "")
        return cast(A, Planned(step, call.stage.output_type, None))

    def finish(self) -> None: ...


def step_names(compose: Callable[[], Any]) -> list[str]:
    """Return the names of a flow's steps in order, and check its wiring on the way."""
    namer = _Namer()
    with conducted_by(namer):
        compose()
    return namer.names


def plan(
    compose: Callable[[], Any], settings: Settings, selection: Selection, here: bool = True
) -> list[Step]:
    """Return what would become of each step of a flow.

    Args:
        compose: calls the stages; it is called twice and must do nothing else.
        settings: where artifacts lie and how stages run.
        selection: what may be built.
        here: whether this machine is the one that will run it.

    Raises:
        ConfigError: a stage that is to be built would fail by its config or this machine.
    """
    planner = Planner(settings, selection, selection.allowed(step_names(compose)), here)
    with conducted_by(planner):
        compose()
    return planner.steps


def calls_with_inputs(
    compose: Callable[[], Any], settings: Settings
) -> list[tuple[Call[Any], Inputs]]:
    """Return the calls of a flow whose inputs are all in the store, each with these by role."""
    planner = Planner(settings, Selection(), set(step_names(compose)), here=False)
    with conducted_by(planner):
        compose()
    return planner.looked


def check_runnable(steps: list[Step], selection: Selection) -> None:
    """Refuse a run that could not come to its end, before it builds anything.

    Raises:
        ConfigError: a selected step reads something that the run may not build.
        InputError: a stage's gate refuses what a selected step is or reads.
    """
    allowed = selection.allowed([step.name for step in steps])
    blocked = [step for step in steps if step.name in allowed and step.status == "SKIP"]
    missing = list(dict.fromkeys(name for step in blocked for name in step.needs))
    wanted = {*allowed, *missing}
    if refused := [s.reason for s in steps if s.status == "REFUSED" and s.name in wanted]:
        raise InputError("\n".join(refused))
    if blocked:
        raise ConfigError(
            f"{blocked[0].name} needs {', '.join(missing)}, which the store does not hold; "
            f"run with --until {missing[-1]} first, or without --from/--only"
        )


def lacking_inputs(call: Call[Any], status: Status, lacking: list[Planned]) -> Planned:
    """Return what stands for a call some of whose inputs will not be there."""
    why = f"needs {', '.join(dict.fromkeys(item.step.name for item in lacking))}"
    needs = dict.fromkeys(n for item in lacking for n in item.step.needs or (item.step.name,))
    step = Step(call.name, call.stage.name, status, why, needs=tuple(needs))
    return Planned(step, call.stage.output_type, None)


def bind_planned(call: Call[Any]) -> Inputs:
    """Match a call's inputs to roles as `Stage.bind` does, stand-ins included."""
    roles = call.stage.roles
    if len(call.inputs) > len(roles):
        raise ConfigError(f"{call.name} takes {len(roles)} inputs, got {len(call.inputs)}")
    bound: dict[str, Any] = {}
    for index, role in enumerate(roles):
        value = call.inputs[index] if index < len(call.inputs) else None
        _check_role(call.name, role, value)
        bound[role.name] = list(value) if role.many and value else [] if role.many else value
    return bound


def flat(bound: Inputs) -> list[Any]:
    """Return all inputs of a call in one list."""
    items: list[Any] = []
    for value in bound.values():
        items.extend(value if isinstance(value, list) else [value] if value is not None else [])
    return items


def _check_role(name: str, role: Role, value: Any) -> None:
    if value is None:
        if not (role.optional or role.many):
            raise ConfigError(f"{name}: input {role.name!r} is missing")
        return
    for item in value if role.many else [value]:
        kind = item.output_type if isinstance(item, Planned) else type(item)
        if not issubclass(kind, role.type):
            raise ConfigError(
                f"{name}: input {role.name!r} must be {role.type.__name__}, got {kind.__name__}"
            )


def _assume(value: Any) -> Any:
    if isinstance(value, list):
        return [_assume(item) for item in value]
    return value.assumed if isinstance(value, Planned) else value
