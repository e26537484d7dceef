"""What a recipe's author is told of a key that there is not, and of a value that cannot be.

A key is answered by a table of old names and of other programs' words, else with the same one in
another section of the stage, else with the nearest one of its own section, then of the stage. Old
names are refused, not read: a recipe has one spelling, and what it says is what is hashed.
"""

import difflib
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from lmpipe.runtime.redaction import Redactor

Place = tuple[Any, ...]  # keys from the recipe's root, numbers for items of a list

TRAINED = ("pretrain", "sft", "dpo", "grpo", "scale")
# in every stage that trains; the words on the left were ours, or are those of other programs
RENAMED = {
    "lr": "optimizer.learning_rate",
    "learning_rate": "optimizer.learning_rate",
    "beta1": "optimizer.beta1",
    "beta2": "optimizer.beta2",
    "betas": "optimizer.beta1",
    "epsilon": "optimizer.epsilon",
    "eps": "optimizer.epsilon",
    "weight_decay": "optimizer.weight_decay",
    "gradient_clip": "optimizer.gradient_clip",
    "gradient_clipping": "optimizer.gradient_clip",
    "grad_clip": "optimizer.gradient_clip",
    "max_grad_norm": "optimizer.gradient_clip",
    "schedule": "schedule.name",
    "lr_schedule": "schedule.name",
    "lr_scheduler_type": "schedule.name",
    "warmup": "schedule.warmup_steps",
    "warmup_steps": "schedule.warmup_steps",
    "warmup_fraction": "schedule.warmup_fraction",
    "warmup_ratio": "schedule.warmup_fraction",
    "decay_fraction": "schedule.decay_fraction",
    "final_fraction": "schedule.final_fraction",
    "final_lr_fraction": "schedule.final_fraction",
}
MOVED = {
    "pretrain.clip": "pretrain.optimizer.gradient_clip",
    "pretrain.max_skipped_in_a_row": "runtime.stop_skipped_in_a_row",
    **{f"{stage}.{old}": f"{stage}.{new}" for stage in TRAINED for old, new in RENAMED.items()},
}


def causes(error: ValidationError) -> list[Any]:
    """Return the faults less those that a fault within them makes.

    A list whose only item is bad is empty to pydantic, and said to be too short as well.
    """
    details = error.errors()
    places = [detail["loc"] for detail in details]
    return [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(p != detail["loc"] and p[: len(detail["loc"])] == detail["loc"] for p in places)
    ]


def explain(detail: dict[str, Any], root: type[BaseModel]) -> str:
    """Turn one pydantic error into key, value, what is allowed, and the nearest spelling.

    Args:
        root: the model that the value was checked against.
    """
    where: Place = tuple(detail["loc"])
    key = _dotted(where)
    given = "" if detail["type"] == "missing" else f", got {str(detail['input'])[:80]!r}"
    if detail["type"] == "extra_forbidden":
        line = unknown(where, root, detail["input"])
    elif detail["type"] == "value_error":  # our own words, which say what was given
        line = f"{key}: {detail['msg'].removeprefix('Value error, ')}"
    elif detail["type"] == "model_type" and (known := _keys_at(where, root)):
        hint = "its keys are " + ", ".join(known)
        hint = f"did you mean {MOVED[key]!r}?" if key in MOVED else hint
        line = f"{key}: is a section and takes no value; {hint} (got {str(detail['input'])[:80]!r})"
    else:
        line = f"{key}: {detail['msg']}{given}"
    return Redactor({}).text(f"  {line}")


def unknown(where: Place, root: type[BaseModel], given: Any) -> str:
    """Say that a key is none, and which one may be meant."""
    meant = _meant(where, root)
    known = ", ".join(sorted(_keys_at(where[:-1], root)))
    hint = f"known are {known}; use one of these, or take the key out"
    hint = f"did you mean {meant!r}?" if meant else hint
    return f"{_dotted(where)}: unknown key; {hint} (got {str(given)[:80]!r})"


def _meant(where: Place, root: type[BaseModel]) -> str:
    """Return the key of its section, or the whole one of its stage, that a wrong one is near to."""
    name, elsewhere = str(where[-1]), {}
    if len(where) > 1:
        elsewhere = {path.rpartition(".")[2]: path for path in _leaves(root, where[:1])}
    if new := MOVED.get(f"{where[0]}.{name}") or elsewhere.get(name):
        return new
    here = {key: key for key in _keys_at(where[:-1], root)}
    for places in (here, elsewhere):
        for near in difflib.get_close_matches(name, places, n=1):
            return places[near]
    return ""


def _leaves(root: type[BaseModel], where: Place) -> Iterator[str]:
    """Yield the dotted name of every key below a place, the deepest first."""
    for name in _keys_at(where, root):
        yield from _leaves(root, (*where, name))
        yield _dotted((*where, name))


def _dotted(where: Place) -> str:
    return ".".join(str(part) for part in where)


def _keys_at(where: Place, root: type[BaseModel]) -> list[str]:
    """Return the keys that a recipe may have at a place."""
    places: list[Any] = [root]
    for part in where:
        places = [inner for place in places for inner in _below(place, part)]
    return [key for place in places if _is_model(place) for key in place.model_fields]


def _below(annotation: Any, part: Any) -> list[Any]:
    """Return the types of what lies at a key, or a number, of a value of some type."""
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        return _alternatives(field.annotation) if field is not None else []
    arguments = [argument for argument in typing.get_args(annotation) if argument is not ...]
    return _alternatives(arguments[-1]) if arguments else []  # a mapping's value, a list's item


def _alternatives(annotation: Any) -> list[Any]:
    """Return a type, or those of which a value may have any."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if origin in (types.UnionType, typing.Union):
        return [a for part in typing.get_args(annotation) for a in _alternatives(part)]
    return [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
