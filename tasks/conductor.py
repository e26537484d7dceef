"""Who carries a stage call out: the planner, or Prefect.

A flow is a plain function that calls stages in order. The same function is planned and run: a stage
call asks the current conductor, and the planner answers with what it knows from the store while the
bridge builds what is missing. So there is no second description of the graph that could differ.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, cast

from lmpipe.artifacts.source import PinnedSource
from lmpipe.artifacts.stage import A, Stage, StageConfig
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Source
from lmpipe.errors import ConfigError
from lmpipe.runtime import Runtime


@dataclass(frozen=True)
class Policy:
    """How Prefect treats a stage's task runs."""

    retries: int = 0
    retry_delay_seconds: float = 10.0
    tags: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    has_ranks: bool = True
    tells_failures: bool = False


@dataclass(frozen=True)
class Call(Generic[A]):
    """One use of a stage in a flow."""

    stage: Stage[A]
    policy: Policy
    config: StageConfig
    inputs: tuple[Any, ...]
    name: str
    runtime: dict[str, Any] = field(default_factory=dict)
    check: Callable[[], None] | None = field(default=None, compare=False)
    recalled: str = ""  # of a source: why its files are those of an earlier run
    absent: str = ""  # of a source: why nobody can read them now


class Conductor(Protocol):
    """Carries stage calls out."""

    def call(self, call: Call[A]) -> A:
        """Return the call's artifact, or what stands for it."""
        ...

    def finish(self) -> None:
        """Raise what has gone wrong; called when a flow has made all of its calls."""
        ...


@dataclass(frozen=True)
class Settings:
    """Where artifacts lie and how stages run."""

    store: Store
    runtime: Runtime
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)

    def runtime_of(self, call: Call[Any]) -> Runtime:
        """Return a call's runtime: the run's, then the stage's, then the call's own."""
        update = {**self.overrides.get(call.stage.name, {}), **call.runtime}
        return Runtime.model_validate({**self.runtime.model_dump(), **update})


_current: ContextVar[Conductor | None] = ContextVar("conductor", default=None)


class _Once:
    """Answers a repeated call with the first answer, so that two flows may share a source."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._answers: dict[str, tuple[Call[Any], Any]] = {}

    def call(self, call: Call[A]) -> A:
        if call.name in self._answers:
            first, answer = self._answers[call.name]
            if (first.config, first.inputs) != (call.config, call.inputs):
                raise ConfigError(f"the flow uses {call.name} for two things; give one a label")
            return cast(A, answer)
        answer = self._conductor.call(call)
        self._answers[call.name] = (call, answer)
        return answer

    def finish(self) -> None:
        self._conductor.finish()


@contextmanager
def conducted_by(conductor: Conductor) -> Iterator[None]:
    """Let a conductor carry out the stage calls of this context."""
    once = _Once(conductor)
    token = _current.set(once)
    try:
        yield
        once.finish()
    finally:
        _current.reset(token)


class StageTask(Generic[A]):
    """A stage as flows call it: `documents = dedup(recipe.dedup, documents)`."""

    def __init__(self, stage: Stage[A], policy: Policy) -> None:
        self.stage = stage
        self.policy = policy

    def __call__(
        self,
        config: StageConfig,
        *inputs: Any,
        label: str = "",
        check: Callable[[], None] | None = None,
    ) -> A:
        """Return the stage's artifact.

        Args:
            config: what the stage does.
            inputs: artifacts in the order of the stage's signature.
            label: tells several uses of one stage in a flow apart.
            check: raises ConfigError for what this stage would find in the rest of the recipe only
                when it runs; a plan calls it if the stage is to be built.
        """
        return self._call(Call(self.stage, self.policy, config, inputs, label, check=check))

    def _call(self, call: Call[A]) -> A:
        conductor = _current.get()
        if conductor is None:
            raise ConfigError(
                f"{self.stage.name} was called outside a run; use `lmpipe run`, or "
                "lmpipe.artifacts.build.build in a notebook"
            )
        name = f"{self.stage.name}[{call.name}]" if call.name else self.stage.name
        return conductor.call(replace(call, name=name))


class SourceTask(StageTask[Source]):
    """The stage that brings files in: what it pins is identity, where they lie is Runtime."""

    def pinned(self, pinned: PinnedSource) -> Source:
        """Return the source artifact of pinned files."""
        runtime = {"locations": pinned.locations, "copy_sources": pinned.copy_files}
        call = Call(self.stage, self.policy, pinned.config, (), pinned.config.name, runtime)
        return self._call(replace(call, recalled=pinned.recalled, absent=pinned.absent))
