"""The forms in the UI: what they open with is valid, they are short, and all fields are named."""

import copy
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from prefect.utilities.schema_tools.validation import ValidationError, validate

from deployments import deployed
from deployments.deploy import Site, default_parameters, deployment, read_file
from deployments.form import form, stage_choices
from flows.recipe import INSTALLATION, load_recipe, parse_recipe
from flows.remote import deployed_parameters
from flows.run import COMPOSITIONS
from tasks.plan import step_names
from tasks.selection import Selection

VALUES = {"LMPIPE_IMAGE": "registry/lmpipe:cpu", "LMPIPE_GPU_IMAGE": "registry/lmpipe:gpu"}
FILE = read_file(VALUES | {"LMPIPE_API_URL": "http://host/api"})
POOLS = FILE["definitions"]["pools"]
ENTRIES = pytest.mark.parametrize("entry", FILE["deployments"], ids=lambda entry: entry["name"])
STAGE_FORMS = [e for e in FILE["deployments"] if e["name"] not in ("rerun", "housekeeping")]
PIPELINE = form("deployments/deployed.py:pipeline")


def check(**parameters: Any) -> None:
    """Check parameters as the server does before it queues a run."""
    validate(parameters, PIPELINE, raise_on_error=True)


def drawn(schema: dict[str, Any], holder: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every field that the UI draws: it follows references, and knows no if and then."""
    for name, field in holder.get("properties", {}).items():
        yield name, field
        inner = field.get("items", field)
        reference = inner.get("$ref", "").rpartition("/")[2]
        if reference:
            yield from drawn(schema, schema["definitions"][reference])


@ENTRIES
def test_what_a_form_opens_with_is_valid(entry: dict[str, Any]) -> None:
    parameters = default_parameters(entry, Site(store="s3://bucket/lm"))
    validate(parameters, form(entry["entrypoint"]), raise_on_error=True)
    flow = getattr(deployed, entry["name"])
    flow.validate_parameters(copy.deepcopy(parameters))


@ENTRIES
def test_a_form_has_few_fields_each_with_a_title_a_description_and_a_place(
    entry: dict[str, Any],
) -> None:
    schema = form(entry["entrypoint"])
    fields = list(drawn(schema, schema))
    assert len(fields) <= 17
    for name, field in fields:
        assert (
            re.fullmatch("[A-Z][a-z]*( [A-Za-z][a-z]*)*", field["title"])
            and field["title"] != "Field"
        ), name
        assert field["description"], name
        assert not {"anyOf", "oneOf"} & set(field), f"{name} is drawn as tabs"
        assert "position" in field, f"{name}: PostgreSQL forgets the order of keys"


@ENTRIES
def test_the_stages_come_first(entry: dict[str, Any]) -> None:
    places = {name: f["position"] for name, f in form(entry["entrypoint"])["properties"].items()}
    if "selection" in places:
        assert places["selection"] < places["recipe"] < places["settings"]


def test_the_stages_of_the_demo_are_there_to_choose_from() -> None:
    fields = PIPELINE["definitions"]["Selection"]["properties"]
    for flow in COMPOSITIONS.values():
        steps = step_names(partial(flow, load_recipe("demo")))
        assert set(steps) <= set(stage_choices())
        assert {step.partition("[")[0] for step in steps} <= set(fields["only"]["enum"])
    assert fields["force"]["items"]["enum"] == stage_choices()
    with pytest.raises(ValidationError, match=r"selection.only.*'dedupe' is not one of"):
        check(selection={"only": "dedupe"})
    check(selection={"only": "", "force": ["dedup", "evaluate[grpo]"]})


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"dedup": {"rows": 0}}, "'settings.dedup.rows'.*0 is less than the minimum of 1"),
        ({"dedup": {"row": 4}}, "'settings.dedup'.*'row' was unexpected"),
        ({"dedupe": {}}, "'settings'.*'dedupe' was unexpected"),
        ({"runtime": {"executor": "cloud"}}, "'settings.runtime.executor'.*not one of"),
        ({"pretrain": {"model": {"d_model": "wide"}}}, "'settings.pretrain.model.d_model'"),
    ],
)
def test_a_wrong_setting_is_named_by_its_key_before_anything_starts(
    settings: dict[str, Any], error: str
) -> None:
    with pytest.raises(ValidationError, match=error):
        check(recipe="demo", settings=settings)


def test_settings_may_be_a_part_of_a_recipe_or_all_of_it() -> None:
    check(recipe="demo", settings={"dedup_passages": {"unit": "sentences"}})
    changed = parse_recipe("demo", {"dedup_passages": {"unit": "sentences"}})
    assert changed.dedup_passages is not None and changed.dedup_passages.length == 3
    assert changed.tokenizer.vocab_size == 4096
    check(**deployed_parameters(changed, Selection(force=("dedup",))))


def test_flows_to_choose_from_are_those_with_a_deployment() -> None:
    flows = form("deployments/deployed.py:rerun")["properties"]["flow"]["enum"]
    assert set(flows) == {entry["name"] for entry in STAGE_FORMS} == set(COMPOSITIONS)


def test_what_a_form_opens_with_names_no_folder_of_the_machine_that_deployed() -> None:
    for entry in FILE["deployments"]:
        given = default_parameters(entry, Site(store="s3://bucket/lm"))
        assert str(INSTALLATION) not in str(given)
        assert given.get("store") or given["settings"] == {"store": {"root": "s3://bucket/lm"}}
    (house,) = [e for e in FILE["deployments"] if e["name"] == "housekeeping"]
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
