"""What a queued run is sent."""

import pytest
import yaml

from flows.recipe import INSTALLATION, load_recipe, parse_recipe
from flows.remote import deployed_parameters, require_server
from lmpipe.errors import ConfigError
from tasks.selection import Selection


def test_a_recipe_comes_by_name_or_whole_or_as_an_extension() -> None:
    demo = load_recipe("demo")
    assert parse_recipe("demo") == demo
    assert parse_recipe(yaml.safe_dump(demo.model_dump(mode="json"))) == demo
    extended = parse_recipe("extends: demo\nname: mine\ndedup: {rows: 4}\n")
    assert (extended.name, extended.dedup.rows) == ("mine", 4)
    assert extended.base == demo.base


def test_a_wrong_key_in_a_form_is_named_with_its_likely_spelling() -> None:
    with pytest.raises(ConfigError, match="did you mean 'rows'"):
        parse_recipe("extends: demo\ndedup: {row: 4}\n")


def test_a_shipped_recipe_names_its_files_from_the_root_of_an_installation() -> None:
    shipped = load_recipe("demo").portable()
    assert shipped.base == "flows/recipes"
    assert (INSTALLATION / shipped.base / "demo_data").is_dir()
    elsewhere = shipped.model_copy(update={"base": "/data/crawl"})
    assert elsewhere.portable() == elsewhere


def test_a_queued_run_takes_leases_on_gpus_unless_it_names_a_limit_of_its_own() -> None:
    demo = load_recipe("demo")
    sent = deployed_parameters(demo, Selection())["recipe"]["runtime"]
    assert sent["gpu_limit"] == "gpu"
    own = load_recipe("demo", ["runtime.gpu_limit=h200"])
    assert deployed_parameters(own, Selection())["recipe"]["runtime"]["gpu_limit"] == "h200"


def test_without_a_server_nothing_is_queued() -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with (
        temporary_settings(restore_defaults={PREFECT_API_URL}),
        pytest.raises(ConfigError, match="PREFECT_API_URL"),
    ):
        require_server()
