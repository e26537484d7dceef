"""The laptop's stack: its secret, a port that is taken, and its children, without a server."""

import io
import itertools
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from deployments import stack
from deployments.stack import Children, auth_string_file, up
from lmpipe.errors import ConfigError, LmpipeError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING", raising=False)
    return tmp_path / "home"


def test_a_secret_is_made_once_for_its_owner_only(home: Path) -> None:
    path = auth_string_file()
    secret = path.read_text()
    assert path.parent == home
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    user, _, password = secret.partition(":")
    assert user == "lmpipe"
    assert len(password) >= 32
    assert auth_string_file().read_text() == secret


def test_a_secret_from_the_environment_takes_its_place(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth_string_file()
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "me:my-own")
    path = auth_string_file()
    assert path.read_text() == "me:my-own"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in home.iterdir()] == [path.name]


def test_another_server_on_the_port_is_not_taken_for_ours(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}: Address already in use"):
            up(Console(), port, "")
    assert not home.exists()


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children(Console(file=io.StringIO()))
    try:
        yield made
    finally:
        made.end()


def printed(children: Children) -> str:
    shown = children._console.file
    assert isinstance(shown, io.StringIO)
    return shown.getvalue()


def check_until(children: Children, times: int) -> None:
    """Look after the children until one has been put off so many times."""
    deadline = time.monotonic() + 60
    while printed(children).count("is started again") < times:
        assert time.monotonic() < deadline, printed(children)
        children.check()
        time.sleep(0.02)


def test_a_worker_that_keeps_ending_is_started_again_after_longer_and_longer_pauses(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(stack, "LONGEST_PAUSE_SECONDS", 0.3)
    starts = tmp_path / "starts"
    code = f"import time; print(time.monotonic(), file=open({str(starts)!r}, 'a')); exit(3)"
    children.start("cpu worker", ["-c", code], os.environ, is_worker=True)
    children.start("server", ["-c", "import time; time.sleep(600)"], os.environ)
    check_until(children, times=4)
    pauses = re.findall(
        r"ended with exit code 3; the server goes on, cpu worker is started again "
        r"in (\S+) s",
        printed(children),
    )
    assert pauses == ["0.1", "0.2", "0.3", "0.3"]
    times = [float(line) for line in starts.read_text().split()]
    assert len(times) == 4 and all(b - a > 0.1 for a, b in itertools.pairwise(times))


def test_a_worker_that_ran_long_is_started_again_at_once(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "STEADY_SECONDS", 0.0)
    children.start("cpu worker", ["-c", "import time; time.sleep(0.1)"], os.environ, is_worker=True)
    check_until(children, times=2)
    assert re.findall(r"again in (\S+) s", printed(children)) == ["1", "1"]


def test_without_a_server_nothing_goes_on(children: Children) -> None:
    children.start("server", ["-c", "exit(1)"], os.environ)
    with pytest.raises(LmpipeError, match="server ended with exit code 1"):
        check_until(children, times=1)


def test_the_keeper_forgets_a_process_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id may be another process's by the time the keeper acts."""
    ended: list[list[int]] = []
    monkeypatch.setattr(stack, "end_trees", lambda pids, grace: ended.append(list(pids)))
    stack.keep(["11\n", "12\n", "-11\n", "13\n"])
    assert ended == [[12, 13]]
