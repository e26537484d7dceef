"""A run in a terminal hands its last log lines in before its server ends."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flows import local
from flows.recipe import load_recipe
from tasks.selection import Selection


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
