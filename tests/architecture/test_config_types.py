"""A string where a list is meant is refused: read letter by letter, "en" would be the list e, n."""

import importlib
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from lmpipe.artifacts.source import SourceSpec
from lmpipe.artifacts.stage import StageConfig
from tests.architecture.modules import config_modules

COLLECTIONS = (tuple, list, dict)


def forms(annotation: Any) -> Iterator[Any]:
    """Yield what a field may be, of a union each member, without type arguments."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from forms(member)
    else:
        yield origin or annotation


def collection_fields() -> list[tuple[type[StageConfig], str]]:
    modules = [importlib.import_module(name) for name in sorted(config_modules())]
    return [
        (config, field)
        for module in modules
        for config in vars(module).values()
        if isinstance(config, type) and issubclass(config, StageConfig)
        if config.__module__ == module.__name__
        for field, info in config.model_fields.items()
        if any(form in COLLECTIONS for form in forms(info.annotation))
    ]


FIELDS = collection_fields()


def test_the_fields_that_are_judged_are_found() -> None:
    names = {f"{config.__name__}.{field}" for config, field in FIELDS}
    assert {"SelectConfig.languages", "EvaluateConfig.tasks", "SourceConfig.files"} <= names


@pytest.mark.parametrize(("config", "field"), FIELDS)
def test_no_config_takes_a_string_for_a_list(config: type[StageConfig], field: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        config.model_validate({field: "en"})
    wrong = {error["loc"][0]: error["type"] for error in refusal.value.errors()}
    assert wrong[field] in ("tuple_type", "list_type", "dict_type")


def test_no_source_takes_a_string_for_its_paths() -> None:
    with pytest.raises(ValidationError, match="paths"):
        SourceSpec.model_validate({"paths": "data/a.jsonl"})
