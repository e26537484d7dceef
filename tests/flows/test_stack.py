"""The laptop's stack before anything starts: its secret, and a port that is taken."""

import socket
import stat
from pathlib import Path

import pytest
from rich.console import Console

from flows.stack import auth_string_file, up
from lmpipe.errors import ConfigError


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
