"""A crawl that was unmounted: what is in the store can still be planned, and go on."""

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli.local import run_locally
from flows.recipe import RECIPES, PipelineConfig, load_recipe
from flows.run import plan_run
from flows.terminal import Terminal
from lmpipe.errors import InputError
from tasks.plan import Step
from tasks.selection import Selection

EXTRACT = Selection(until_stage="extract")


@pytest.fixture
def crawl(tmp_path: Path) -> Path:
    folder = tmp_path / "mount" / "crawl"
    folder.mkdir(parents=True)
    shutil.copy(RECIPES / "demo_data" / "warc" / "docs-00000.warc.gz", folder)
    return folder


def recipe_of(tmp_path: Path, name: str = "mine", more: str = "") -> PipelineConfig:
    file = tmp_path / f"{name}.yaml"
    crawl = "sources: {crawl: {paths: ['mount/crawl/*.warc.gz']" + more + "}}"
    file.write_text(f"extends: demo\nname: {name}\nstore: {{root: s}}\n{crawl}\n")
    return load_recipe(str(file))


def run(recipe: PipelineConfig, selection: Selection = EXTRACT) -> dict[str, str]:
    terminal = Terminal(Console())
    run_locally("curate", recipe, selection, terminal)
    return {step.name: step.status for step in terminal.steps}


def planned(recipe: PipelineConfig, selection: Selection = EXTRACT) -> dict[str, Step]:
    return {step.name: step for step in plan_run("curate", recipe, selection)}


def test_what_needs_none_of_an_unmounted_crawls_bytes_is_planned_and_run(
    tmp_path: Path, crawl: Path, prefect_server: None
) -> None:
    recipe = recipe_of(tmp_path)
    with_files = run(recipe)
    assert with_files["source[crawl]"] == with_files["extract"] == "RUN"
    source = planned(recipe)["source[crawl]"]
    shutil.rmtree(crawl.parent)
    for same_paths in (recipe, recipe_of(tmp_path, "other")):
        steps = planned(same_paths, Selection())
        assert steps["source[crawl]"].artifact == source.artifact
        assert "as run before, its files were not looked at" in steps["source[crawl]"].reason
        assert "matches no file" in steps["source[crawl]"].reason
        assert steps["extract"].status == "HIT" and steps["select"].status == "PENDING"
        whole = {step.name: step.status for step in plan_run("pipeline", same_paths, Selection())}
        assert whole["report"] == "PENDING"  # it reads what is known of the crawl, not its files
    found = run(recipe)
    assert found["source[crawl]"] == found["extract"] == "HIT"
    for selection in (Selection(force=("extract",)), Selection(force=("source[crawl]",))):
        with pytest.raises(InputError, match=r"has to read files that are away: source\[crawl\]: "):
            planned(recipe, selection)


def test_copied_files_serve_where_the_crawl_is_away(
    tmp_path: Path, crawl: Path, prefect_server: None
) -> None:
    recipe = recipe_of(tmp_path, more=", copy_files: true")
    run(recipe, Selection(until_stage="source[crawl]"))
    shutil.rmtree(crawl)
    assert planned(recipe)["extract"].status == "RUN"
    assert run(recipe)["extract"] == "RUN"


def test_paths_that_no_run_has_pinned_are_an_error_as_before(tmp_path: Path, crawl: Path) -> None:
    recipe = recipe_of(tmp_path)
    shutil.rmtree(crawl)
    with pytest.raises(InputError, match="matches no file"):
        planned(recipe)
