"""A command that a message or a comment names is one that exists."""

import re

import pytest
import typer

from deployments.cli import app
from tests.architecture.modules import REPOSITORY

NAMED = re.compile(r"`(?:\.venv/bin/)?lmpipe ([a-z-]+)")


def named_in_sources() -> set[tuple[str, str]]:
    """Return the first word after `lmpipe` in backquotes, and the file that says it."""
    found = set()
    for package in ("lmpipe", "tasks", "flows"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            text = re.sub(r'"\s*\n\s*f?r?"', "", path.read_text("utf-8"))  # joined literals
            found |= {(word, path.name) for word in NAMED.findall(text)}
    return found


def test_every_command_that_the_sources_name_exists() -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    named = named_in_sources()
    assert len(named) > 20
    assert not {(word, file) for word, file in named if word not in known}


@pytest.mark.parametrize("text", ['"see `lmpipe lst`"', '"see `lmpipe "\n    "lst`"'])
def test_a_command_that_does_not_exist_is_noticed(text: str) -> None:
    joined = re.sub(r'"\s*\n\s*f?r?"', "", text)
    assert NAMED.findall(joined) == ["lst"]
