"""Declaring a stage: a frozen config and a function, joined by `@stage`.

    class DedupConfig(StageConfig):
        bands: int = Field(14, ge=1, description="…")

    @stage(version=1, kind="exact")
    def dedup(out, config: DedupConfig, documents: Documents, *, runtime: Runtime) -> Documents: ...

The signature is the declaration: config type, input roles with their artifact types, output type.
A registry by strings would let modules be found without an import, at the price of a reading path
that go-to-definition cannot follow.
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict

from lmpipe.artifacts.identity import canonical_json, config_identity, file_digest
from lmpipe.artifacts.types import Artifact
from lmpipe.errors import ConfigError
from lmpipe.runtime import Runtime

A = TypeVar("A", bound=Artifact)
Kind = Literal["exact", "statistical"]
Inputs = dict[str, Artifact | list[Artifact] | None]
Check = Callable[[Any, frozenset[str], Runtime | None], None]

_UNORDERED = (set, frozenset)


class StageConfig(BaseModel):
    """What a stage does. All of it is identity; where and how it runs is Runtime's.

    A subclass with a set, a path or a field without a description is refused when it is defined:
    sets have no order to hash, and a path would make the same work on two machines two artifacts.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            where = f"{cls.__name__}.{name}"
            extra = field.json_schema_extra
            if isinstance(extra, dict) and "neutral" in extra:
                canonical_json(extra["neutral"])
            if not field.description:
                raise ConfigError(f"{where} has no description; give it Field(description=…)")
            for part in _parts(field.annotation):
                if inspect.isclass(part) and issubclass(part, (*_UNORDERED, PurePath)):
                    raise ConfigError(
                        f"{where} is a {part.__name__}: use a sorted tuple for a set, and a source "
                        "or a Runtime field for a path"
                    )

    def identity(self) -> dict[str, Any]:
        """Return what of the config enters the id, as plain JSON values: see `neutral`."""
        return config_identity(self)

    def identity_files(self) -> tuple[Path, ...]:
        """Return the files of lmpipe whose bytes say what the stage does; they enter the id."""
        return ()

    def identity_file_digests(self) -> dict[str, str]:
        """Return the sha256 of each of those files, by its name: where it lies is no identity."""
        return {path.name: file_digest(path) for path in self.identity_files()}


@dataclass(frozen=True)
class Role:
    """One input of a stage."""

    name: str
    type: type[Artifact]
    many: bool
    optional: bool


@dataclass(frozen=True)
class Stage(Generic[A]):
    """A declared stage; `function` does the work and everything else describes it."""

    name: str
    version: int
    kind: Kind
    config_type: type[StageConfig]
    roles: tuple[Role, ...]
    output_type: type[A]
    function: Callable[..., A]
    gate: Callable[..., Any] | None = None
    check: Check | None = None

    def admit(self, config: StageConfig, inputs: Inputs) -> None:
        """Let the stage's gate look at its inputs, before what was made from them is used.

        Raises:
            InputError: they are refused; the message says why and what the way out is.
        """
        if self.gate is not None:
            self.gate(config, **inputs)

    @property
    def reference(self) -> str:
        """`module:name`, from which a child process imports it."""
        return f"{self.function.__module__}:{self.name}"

    def bind(self, inputs: tuple[Any, ...]) -> Inputs:
        """Match positional inputs to roles and check their types.

        Raises:
            ConfigError: too many, too few, or an artifact of the wrong type.
        """
        if len(inputs) > len(self.roles):
            raise ConfigError(f"{self.name} takes {len(self.roles)} inputs, got {len(inputs)}")
        bound: Inputs = {}
        for index, role in enumerate(self.roles):
            value = inputs[index] if index < len(inputs) else None
            bound[role.name] = self._checked(role, value)
        return bound

    def complete(self, inputs: Mapping[str, Any]) -> Inputs:
        """Return inputs given by role with what was left out, so that the id is the same.

        Raises:
            ConfigError: no such role, one that is missing, or an artifact of the wrong type.
        """
        known = [role.name for role in self.roles]
        if unknown := sorted(set(inputs) - set(known)):
            raise ConfigError(f"{self.name} has no input {unknown[0]!r}; it takes {known}")
        return self.bind(tuple(inputs.get(name) for name in known))

    def _checked(self, role: Role, value: Any) -> Artifact | list[Artifact] | None:
        if value is None and (role.optional or role.many):
            return [] if role.many else None
        for item in value if role.many else [value]:
            if not isinstance(item, role.type):
                raise ConfigError(
                    f"{self.name}: input {role.name!r} must be {role.type.__name__}, "
                    f"got {type(item).__name__}"
                )
        return list(value) if role.many else cast(Artifact, value)


def stage(
    *,
    version: int,
    kind: Kind,
    gate: Callable[..., Any] | None = None,
    check: Check | None = None,
) -> Callable[[Callable[..., A]], Stage[A]]:
    """Declare the decorated function as a stage.

    Args:
        version: bumped by hand whenever the same config and inputs give other bytes.
        kind: `exact` if any machine, worker count and order gives the same bytes; else
            `statistical`.
        gate: takes config and inputs as the stage does and raises InputError for inputs that must
            not be used. It also stands before an artifact that is found: what is known of equal
            bytes may have changed since.
        check: takes the config, the roles that are given, and the runtime (None: it will run on
            another machine), and raises ConfigError for what the stage would refuse only after the
            stages before it have run. A plan calls it, and so does the stage's own process.
    """

    def declare(function: Callable[..., A]) -> Stage[A]:
        hints = typing.get_type_hints(function)
        names = list(inspect.signature(function).parameters)
        if names[:2] != ["out", "config"] or names[-1] != "runtime":
            raise ConfigError(
                f"stage {function.__name__} must take (out, config, inputs…, *, runtime), "
                f"takes {names}"
            )
        return Stage(
            name=function.__name__,
            version=version,
            kind=kind,
            config_type=hints["config"],
            roles=tuple(_role(name, hints[name]) for name in names[2:-1]),
            output_type=hints["return"],
            function=function,
            gate=gate,
            check=check,
        )

    return declare


def given_roles(inputs: Mapping[str, Any]) -> frozenset[str]:
    """Return the roles that something plays."""
    return frozenset(role for role, value in inputs.items() if value)


def _role(name: str, hint: Any) -> Role:
    many = typing.get_origin(hint) is list
    inner = typing.get_args(hint) if many or _is_union(hint) else (hint,)
    kinds = [part for part in inner if part is not type(None)]
    return Role(name, kinds[0], many, optional=type(None) in inner)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _parts(annotation: Any) -> list[Any]:
    """Return an annotation and everything nested in it."""
    origin = typing.get_origin(annotation)
    nested = [part for argument in typing.get_args(annotation) for part in _parts(argument)]
    return [origin or annotation, *nested]
