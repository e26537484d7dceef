"""A flow run in this process, under Prefect's ephemeral server or whichever the profile names."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from prefect import flow
from prefect.logging.handlers import APILogWorker
from prefect.runtime import flow_run
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings

from flows.naming import describe, run_name
from flows.recipe import PipelineConfig
from flows.remote import in_short
from flows.run import execute
from lmpipe.errors import ConfigError, LmpipeError
from tasks.bridge import Listener
from tasks.plan import Step
from tasks.selection import Selection

DRAIN_SECONDS = 600.0


class _Server(SubprocessASGIServer):
    """The ephemeral server in a session of its own, out of the reach of a Ctrl-C in the terminal.

    It has to take down how the run ended. Ended together with it, it left the run waiting for an
    answer for minutes. Prefect has no option for that.
    """

    def _run_uvicorn_command(self) -> "subprocess.Popen[Any]":
        detached = partial(subprocess.Popen, start_new_session=True)
        with patch.object(subprocess, "Popen", detached):
            return super()._run_uvicorn_command()


def run_locally(
    name: str, recipe: PipelineConfig, selection: Selection, listener: Listener
) -> list[Step]:
    """Run a composition as a flow run of the same name as its deployment has."""

    title = run_name(recipe.name, describe(name, selection), due=datetime.now(UTC))

    @flow(name=name, flow_run_name=lambda: title, validate_parameters=False)
    def local(recipe: PipelineConfig, selection: Selection) -> list[Step]:
        """Run the whole recipe; its parameter is what the UI shows of it."""
        return execute(name, whole, selection, listener, flow_run.get_id() or "")

    whole = recipe
    with _ephemeral_server():
        try:
            return local(in_short(recipe), selection)
        finally:
            # Lines that meet a stopped server are lost, and trying them again kept a run of 25,000
            # lines from ending for 157 s; the server takes about 400 a second.
            APILogWorker.drain_all(timeout=DRAIN_SECONDS)


def server_to_start() -> str:
    """Say which server a run is about to start, if any: the first start makes a database, 40 s."""
    settings = get_current_settings()
    if settings.api.url or not settings.server.ephemeral.enabled:
        return ""
    is_new = not (settings.home / "prefect.db").exists()
    return "starting Prefect's server" + ", which makes its database first" * is_new


@contextmanager
def _ephemeral_server() -> Iterator[None]:
    """Have the ephemeral server, where one is used, end with this process even after `kill -9`.

    Prefect stops it by atexit, which a killed process never reaches. The guard is a shell that
    waits for the end of its input, which the kernel closes for us in any case.
    """
    settings = get_current_settings()
    if settings.api.url or not settings.server.ephemeral.enabled:
        yield
        return
    seconds = settings.server.ephemeral.startup_timeout_seconds
    _check_home(settings.home)
    server = _Server()  # the one instance that Prefect's own clients take too
    try:
        server.start(timeout=seconds)
    except RuntimeError as error:
        raise LmpipeError(
            f"Prefect's own server, whose data lie in {settings.home}, did not answer within "
            f"{seconds} s: {error} On a slow machine raise "
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
        ) from error
    assert server.server_process is not None
    guard = subprocess.Popen(
        ["sh", "-c", f"read line; kill {server.server_process.pid} 2> /dev/null"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def _check_home(home: Path) -> None:
    """Refuse a home in which the server cannot keep its database: it would be tried for minutes."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise ConfigError(
            f"Prefect keeps its data in {home}, which cannot be written ({error.strerror}); set "
            "PREFECT_HOME to a folder that can, or PREFECT_API_URL to a server"
        ) from error
