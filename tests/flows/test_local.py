"""A run in a terminal hands its last log lines in before its server ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows import local
from flows.recipe import load_recipe
from tasks.selection import Selection
from tests.architecture.modules import REPOSITORY


class Failure(Exception):
    """What the run ends with."""


@pytest.mark.parametrize("fails", [False, True])
def test_log_lines_are_handed_in_before_the_server_ends(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    @contextmanager
    def server() -> Iterator[None]:
        try:
            yield
        finally:
            happened.append("server ends")

    def run(*_: object) -> list[object]:
        happened.append("run")
        if fails:
            raise Failure
        return []

    monkeypatch.setattr(local, "_ephemeral_server", server)
    monkeypatch.setattr(local, "flow", lambda **_: lambda function: run)
    monkeypatch.setattr(
        local.APILogWorker, "drain_all", lambda timeout: happened.append("lines handed in")
    )
    try:
        local.run_locally("curate", load_recipe("demo", []), Selection(), None)
    except Failure:
        assert fails
    assert happened == ["run", "lines handed in", "server ends"]


PROGRAM = """
from flows.cli import _prepare_prefect
from lmpipe.artifacts.process import build_in_child
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CountConfig, count

_prepare_prefect()
where = {"store": Store("store"), "runtime": Runtime()}
made = build_in_child(count, CountConfig(), {}, sink=lambda event: None, line_sink=print, **where)
assert made.missing() == []
"""


def test_modules_in_the_folder_that_a_run_starts_from_replace_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "fsspec.py").write_text("raise RuntimeError('the module of the user')")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, "-P", "-c", PROGRAM]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
