"""One answer to which store a command looks into, from wherever it is given."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deployments.cli import app
from flows.recipe import load_recipe, parse_recipe
from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.errors import ConfigError
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CountConfig, count


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("LMPIPE_STORE", raising=False)
    return folder


def own(tmp_path: Path, text: str = "", name: str = "mine") -> str:
    (tmp_path / "project").mkdir(exist_ok=True)
    path = tmp_path / "project" / f"{name}.yaml"
    path.write_text(f"extends: demo\nname: {name}\n{text}")
    return str(path)


def root_of(recipe: str, *changes: str) -> str:
    return load_recipe(recipe, list(changes)).settings().store.root


def test_a_recipe_files_store_starts_from_its_folder_wherever_the_command_is_run(
    tmp_path: Path,
) -> None:
    project = f"file://{tmp_path}/project"
    assert root_of(own(tmp_path, "store: {root: data/store}")) == f"{project}/data/store"
    assert root_of(own(tmp_path)) == f"{project}/artifacts"
    assert root_of(own(tmp_path, "store: {root: 's3://bucket/prefix'}")) == "s3://bucket/prefix"
    assert root_of(own(tmp_path, f"store: {{root: {tmp_path}/abs}}")) == f"file://{tmp_path}/abs"


def test_what_no_file_names_starts_from_the_working_directory(
    tmp_path: Path, elsewhere: Path
) -> None:
    assert root_of("demo") == f"file://{elsewhere}/artifacts"
    assert root_of(own(tmp_path), "store.root=x") == f"file://{elsewhere}/x"
    given = parse_recipe("extends: demo\nname: form\n")
    assert given.settings().store.root == f"file://{elsewhere}/artifacts"


def test_an_inherited_place_starts_from_the_file_that_names_it(tmp_path: Path) -> None:
    parent = own(tmp_path, "store: {root: s}\nruntime: {hostfile: hosts, scratch: tmp}\n")
    (tmp_path / "sub").mkdir()
    child = tmp_path / "sub" / "child.yaml"
    child.write_text(f"extends: {parent}\nname: child\nstage_runtime: {{sft: {{scratch: t}}}}\n")
    recipe = load_recipe(str(child))
    assert recipe.store.root == f"{tmp_path}/project/s"
    assert recipe.runtime.hostfile == f"{tmp_path}/project/hosts"
    assert recipe.runtime.scratch == f"{tmp_path}/project/tmp"
    assert recipe.stage_runtime["sft"]["scratch"] == f"{tmp_path}/sub/t"


def test_the_variable_is_the_store_of_recipes_and_commands_that_name_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMPIPE_STORE", f"{tmp_path}/shared")
    assert root_of("demo") == root_of(own(tmp_path)) == f"file://{tmp_path}/shared"
    assert root_of(own(tmp_path, "store: {root: s}")) == f"file://{tmp_path}/project/s"


COMMANDS = [
    ["ls"],
    ["show", "ID"],
    ["diff", "ID", "ID"],
    ["verify"],
    ["why", "0" * 32],
    ["trace", "0" * 32],
    ["alias"],
    ["gc"],
    ["accounting"],
    ["export", "ID", "out"],
    ["whatif", "ID", "--set", "max_nsfw=1"],
    ["dedup-index", "crawls"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_every_store_command_takes_option_recipe_and_variable(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"{tmp_path}/project/s"
    recipe = own(tmp_path, "store: {root: s}")
    made = build(count, CountConfig(), {}, store=Store(root), runtime=Runtime())
    arguments = [made.id if word == "ID" else word for word in arguments]

    def said(*more: str) -> str:
        result = CliRunner().invoke(app, [*arguments, *more])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            return repr(result.exception)  # what it says of the store is all that counts here
        return result.output

    by_option, by_recipe, nowhere = said("--store", root), said("--recipe", recipe), said()
    monkeypatch.setenv("LMPIPE_STORE", root)
    assert by_option == by_recipe == said()
    assert by_option != nowhere or arguments[0] in ("alias", "dedup-index")
    with pytest.raises(ConfigError, match="give either --store or a recipe"):
        CliRunner().invoke(
            app, [*arguments, "--store", root, "--recipe", recipe], catch_exceptions=False
        )


def test_report_takes_its_recipe_either_way(tmp_path: Path) -> None:
    recipe = own(tmp_path)
    for arguments in ([recipe], ["--recipe", recipe]):
        with pytest.raises(ConfigError, match=f"no run of 'mine' in file://{tmp_path}/project"):
            CliRunner().invoke(app, ["report", *arguments], catch_exceptions=False)
    with pytest.raises(ConfigError, match=f"no run of 'mine' in file://{tmp_path}/other"):
        CliRunner().invoke(
            app, ["report", recipe, "--store", f"{tmp_path}/other"], catch_exceptions=False
        )
    with pytest.raises(ConfigError, match="give a recipe"):
        CliRunner().invoke(app, ["report"], catch_exceptions=False)


def test_show_reads_the_store_of_a_recipe(tmp_path: Path) -> None:
    recipe = own(tmp_path)
    made = build(
        count, CountConfig(), {}, store=Store(f"{tmp_path}/project/artifacts"), runtime=Runtime()
    )
    result = CliRunner().invoke(app, ["show", made.id[:9], "--recipe", recipe])
    assert json.loads(result.output)["id"] == made.id
