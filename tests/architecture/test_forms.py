"""The forms in the UI: what they open with is valid, and every field explains and bounds itself."""

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from flows import deployed
from flows.deploy import Site, default_parameters, deployment, form, read_file
from flows.recipe import INSTALLATION, PipelineConfig
from tasks.selection import Selection

VALUES = {"LMPIPE_IMAGE": "registry/lmpipe:cpu", "LMPIPE_GPU_IMAGE": "registry/lmpipe:gpu"}
FILE = read_file(VALUES | {"LMPIPE_API_URL": "http://host/api"})
POOLS = FILE["definitions"]["pools"]
ENTRIES = pytest.mark.parametrize("entry", FILE["deployments"], ids=lambda entry: entry["name"])
STAGE_FORMS = [e for e in FILE["deployments"] if e["name"] not in ("rerun", "housekeeping")]


def models_of(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every field; a section that says nothing of itself is described by its model."""
    definitions = schema["definitions"]
    for name, definition in definitions.items():
        for field, spec in definition.get("properties", {}).items():
            model = definitions.get(spec.get("$ref", "").rpartition("/")[2], {})
            yield f"{name}.{field}", model | spec


@ENTRIES
def test_what_a_form_opens_with_is_valid(entry: dict[str, Any]) -> None:
    parameters = default_parameters(entry, Site())
    jsonschema.validate(parameters, form(entry["entrypoint"]))
    flow = getattr(deployed, entry["name"])
    validated = flow.validate_parameters(copy.deepcopy(parameters))
    models = {"recipe": PipelineConfig, "selection": Selection}
    for name, value in validated.items():
        if isinstance(value, tuple(models.values())):
            again = TypeAdapter(models[name]).validate_python(value.model_dump(mode="json"))
            assert again == value
            assert value.model_dump(mode="json") == parameters.get(
                name, Selection().model_dump(mode="json")
            )


@ENTRIES
def test_no_parameter_is_a_union(entry: dict[str, Any]) -> None:
    for name, spec in form(entry["entrypoint"])["properties"].items():
        assert not {"anyOf", "oneOf"} & set(spec), name
        assert spec["description"], f"{name} has no description"


@ENTRIES
def test_every_field_has_a_description(entry: dict[str, Any]) -> None:
    bare = [n for n, spec in models_of(form(entry["entrypoint"])) if not spec.get("description")]
    assert not bare


def test_enums_and_bounds_reach_the_form() -> None:
    definitions = form("flows/deployed.py:pipeline")["definitions"]
    assert definitions["Runtime"]["properties"]["executor"]["enum"] == ["local", "ray", "slurm"]
    assert definitions["Runtime"]["properties"]["ranks"]["maximum"] == 4096
    assert definitions["DedupConfig"]["properties"]["rows"]["minimum"] == 1
    assert definitions["PipelineConfig"]["additionalProperties"] is False
    flows = form("flows/deployed.py:rerun")["properties"]["flow"]["enum"]
    assert set(flows) == {entry["name"] for entry in STAGE_FORMS}


def test_a_section_that_is_off_by_default_can_be_filled_in() -> None:
    parameters = default_parameters(STAGE_FORMS[0], Site())
    parameters["recipe"]["dedup_passages"] = {"unit": "sentences", "bloom_memory_mb": 64}
    jsonschema.validate(parameters, form("flows/deployed.py:pipeline"))
    recipe = deployed.pipeline.validate_parameters(copy.deepcopy(parameters))["recipe"]
    assert recipe.dedup_passages.length == 3
    again = TypeAdapter(PipelineConfig).validate_python(recipe.model_dump(mode="json"))
    assert again == recipe
    parameters["recipe"]["dedup_passages"]["unit"] = "pages"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(parameters, form("flows/deployed.py:pipeline"))


def test_a_value_out_of_bounds_is_refused_before_anything_starts() -> None:
    parameters = default_parameters(STAGE_FORMS[0], Site())
    parameters["recipe"]["dedup"]["rows"] = 0
    with pytest.raises(jsonschema.ValidationError, match="less than the minimum"):
        jsonschema.validate(parameters, form("flows/deployed.py:pipeline"))


def test_the_default_recipe_names_no_folder_of_the_machine_that_deployed() -> None:
    for entry in STAGE_FORMS:
        recipe = default_parameters(entry, Site(store="s3://bucket/lm"))["recipe"]
        assert recipe["base"] == "flows/recipes"
        assert recipe["store"]["root"] == "s3://bucket/lm"
        assert str(INSTALLATION) not in str(recipe)
    (house,) = [e for e in FILE["deployments"] if e["name"] == "housekeeping"]
    assert default_parameters(house, Site(store="s3://bucket/lm"))["store"] == "s3://bucket/lm"
    assert default_parameters(house, Site())["store"] == ""


def test_containers_pull_from_the_image_and_processes_from_the_folder() -> None:
    site = Site(folder=INSTALLATION.parent)
    for entry in FILE["deployments"]:
        wanted = deployment(entry, POOLS, site)
        folder = wanted["pull_steps"][0]["prefect.deployments.steps.set_working_directory"]
        in_image = POOLS[wanted["work_pool_name"]]["type"] == "docker"
        expected = "/opt/lmpipe" if in_image else str(INSTALLATION.parent)
        assert folder["directory"] == expected, entry["name"]


def test_a_machine_without_docker_gets_its_gpu_work_as_processes() -> None:
    site = Site(gpu_pool="gpu-process")
    wanted = [deployment(entry, POOLS, site) for entry in FILE["deployments"]]
    assert {w["work_pool_name"] for w in wanted} == {"cpu", "gpu-process"}
    assert not any(w["job_variables"] for w in wanted)


def test_the_image_and_the_server_are_filled_in() -> None:
    (evaluate,) = [entry for entry in FILE["deployments"] if entry["name"] == "evaluate"]
    variables = deployment(evaluate, POOLS, Site())["job_variables"]
    assert variables["image"] == "registry/lmpipe:gpu"
    assert variables["env"]["PREFECT_API_URL"] == "http://host/api"
