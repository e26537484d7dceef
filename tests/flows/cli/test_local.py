"""A run in a terminal hands its last log lines in before its server ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    temporary_settings,
)
from typer.testing import CliRunner

from flows.cli import app as cli
from flows.cli import local
from flows.recipe import load_recipe
from lmpipe.errors import ConfigError, LmpipeError
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


def test_the_ephemeral_server_is_out_of_the_reach_of_a_ctrl_c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a terminal every process of the group gets it; the server must outlive the run's end."""
    started: list[dict[str, object]] = []
    monkeypatch.setattr(local.SubprocessASGIServer, "_instances", {})
    monkeypatch.setattr(subprocess, "Popen", lambda **options: started.append(options))
    local._Server(port=1)._run_uvicorn_command()
    assert [options["start_new_session"] for options in started] == [True]


def test_a_home_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    local._check_home(tmp_path / "new" / "home")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written .*set PREFECT_HOME"):
        local._check_home(tmp_path / "file" / "home")


def test_a_run_says_that_it_starts_a_server_and_that_the_first_start_takes_longer(
    tmp_path: Path,
) -> None:
    mode = {PREFECT_API_URL: None, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True}
    with temporary_settings({**mode, PREFECT_HOME: tmp_path}):
        assert local.server_to_start() == (
            "starting Prefect's server, which makes its database first"
        )
        (tmp_path / "prefect.db").touch()
        assert local.server_to_start() == "starting Prefect's server"
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:4200/api"}):
        assert local.server_to_start() == ""


def test_a_server_that_does_not_start_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(self: object, timeout: int) -> None:
        raise RuntimeError("Timed out.")

    # other tests of this process may have one that runs, which Prefect then hands out
    monkeypatch.setattr(local.SubprocessASGIServer, "_instances", {})
    monkeypatch.setattr(local._Server, "start", silent)
    with (
        temporary_settings({PREFECT_API_URL: None, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True}),
        pytest.raises(LmpipeError, match=r"did not answer within .*STARTUP_TIMEOUT_SECONDS"),
        local._ephemeral_server(),
    ):
        pass


def test_ctrl_c_ends_a_run_with_one_line_and_the_shells_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "run_locally", interrupted)
    monkeypatch.setattr(cli, "_prepare_prefect", lambda: None)
    result = CliRunner().invoke(cli.app, ["run", "demo", "--set", f"store.root={tmp_path}"])
    assert result.exit_code == 130
    assert "interrupted: finished stages, shards and checkpoints are kept" in " ".join(
        result.output.split()
    )


PROGRAM = """
from flows.cli.app import _prepare_prefect
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
