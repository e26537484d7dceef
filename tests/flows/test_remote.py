"""What a queued run is sent."""

import json

import pytest
import yaml

from flows.recipe import INSTALLATION, load_recipe, parse_recipe
from flows.remote import deployed_parameters, require_server, with_gpu_limit
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


def test_settings_lie_over_the_recipe_section_by_section() -> None:
    changed = parse_recipe("demo", {"dedup": {"rows": 4}, "sources": {"perplexity_model": None}})
    assert (changed.dedup.rows, changed.sources.perplexity_model) == (4, None)
    assert changed.sources.crawl == load_recipe("demo").sources.crawl
    with pytest.raises(ConfigError, match=r"demo.yaml with settings.*\n.*dedup.row: unknown key"):
        parse_recipe("demo", {"dedup": {"row": 4}})


def test_settings_with_a_base_of_their_own_leave_the_recipe_s_files_where_they_are() -> None:
    moved = parse_recipe("demo", {"base": "/data", "sources": {"crawl": {"paths": ["a.warc.gz"]}}})
    assert (moved.base, moved.sources.crawl.paths) == ("/data", ("a.warc.gz",))
    assert moved.sources.benchmarks.paths[0].startswith(str(INSTALLATION))


def test_what_is_sent_says_what_the_recipe_says_and_makes_the_same_recipe() -> None:
    for recipe in (load_recipe("demo"), load_recipe("demo", ["dedup.rows=4", "mask={}"])):
        sent = deployed_parameters(recipe, Selection())
        shipped = parse_recipe(sent["recipe"], sent["settings"])
        assert shipped == recipe.portable()
        assert (INSTALLATION / shipped.base / "demo_data").is_dir()
        assert len(json.dumps(sent["settings"], indent=2).splitlines()) < 150, "fits the form"


def test_a_folder_outside_the_installation_is_shipped_as_it_is() -> None:
    elsewhere = load_recipe("demo").model_copy(update={"base": "/data/crawl"})
    assert elsewhere.portable() == elsewhere


def test_a_deployed_run_takes_leases_on_gpus_unless_it_names_a_limit_of_its_own() -> None:
    demo = load_recipe("demo")
    assert with_gpu_limit(demo).runtime.gpu_limit == "gpu"
    own = load_recipe("demo", ["runtime.gpu_limit=h200"])
    assert with_gpu_limit(own) == own


def test_without_a_server_nothing_is_queued() -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with (
        temporary_settings(restore_defaults={PREFECT_API_URL}),
        pytest.raises(ConfigError, match="PREFECT_API_URL"),
    ):
        require_server()
