"""Every command that the documents name can be given as it stands there; none is carried out."""

import importlib.util
import re
import shlex
from functools import partial
from typing import Any

import pytest
import typer

from deployments.cli import app
from flows.recipe import load_recipe
from flows.run import COMPOSITIONS
from tasks.plan import step_names
from tasks.selection import Selection
from tests.architecture.modules import REPOSITORY

DOCUMENTS = (
    *("README.md", "COURSE.md", "CONTRIBUTING.md"),
    *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")),
)
INDENTED = re.compile(r"^    (.*\blmpipe (?!:).*)$", re.MULTILINE)
QUOTED = re.compile(r"`([^`]*\b(?:lmpipe|pytest) [^`]*)`")


def named_commands(text: str) -> list[str]:
    """Return what a document says after `lmpipe` or `pytest`, each alternative by itself."""
    found = []
    for line in INDENTED.findall(text) + QUOTED.findall(text):
        words = re.split(r"\s#\s|\s{2,}", line.strip())[0].replace("[", "").replace("]", "")
        match = re.search(r"(?:^|[\s/])(lmpipe|pytest) (.*)$", words)
        if match and not re.search(r"-t lmpipe:|docker build", words):
            found += [f"{match[1]} {part.strip()}" for part in match[2].split(" | ")]
    return sorted(set(found))


COMMANDS = sorted(
    {c for name in DOCUMENTS for c in named_commands((REPOSITORY / name).read_text())}
)


def test_the_commands_of_the_documents_are_found() -> None:
    assert len(COMMANDS) > 45
    for expected in ("lmpipe diff A B", "lmpipe bench encode", "lmpipe gc demo --list --delete"):
        assert expected in COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_a_document_is_one_that_can_be_given(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "pytest":
        assert all((REPOSITORY / word).exists() for word in words)
        return
    name, given = parsed(words)
    if name == "bench" and given["name"]:
        assert importlib.util.find_spec(f"lmpipe.bench.{given['name']}")
    if name in ("run", "plan"):
        recipe = load_recipe(given["recipe"], given["changes"])
        selection = Selection(
            from_stage=given["from_stage"],
            until_stage=given["until"],
            only=given["only"],
            force=tuple(given["force"] or ()),
        )
        selection.allowed(step_names(partial(COMPOSITIONS[given["flow"]], recipe)))


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the innermost command that the words name, and the values they give it."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("lmpipe", words)
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return str(context.info_name), context.params


def test_a_command_that_cannot_be_given_is_noticed() -> None:
    for wrong in ("lmpipe run demo --onyl dedup", "lmpipe nothing", "lmpipe diff A"):
        with pytest.raises(BaseException, match=r"onyl|nothing|Missing|new"):
            test_a_command_in_a_document_is_one_that_can_be_given(wrong)
    with pytest.raises(AssertionError):
        test_a_command_in_a_document_is_one_that_can_be_given("lmpipe bench nothing")
