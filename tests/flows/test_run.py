"""The record of a run, and a store that is away when it is to be written."""

from pathlib import Path

import pytest

from flows import run
from flows.recipe import PipelineConfig, load_recipe
from lmpipe.artifacts.store import Store
from lmpipe.errors import InputError, StoreUnavailable
from tasks.plan import Step
from tasks.selection import Selection


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineConfig:
    monkeypatch.setattr(run, "plan_run", lambda *_: [Step("a", "a", "RUN", "")])
    return load_recipe("demo", [f"store.root={tmp_path}"])


def lose_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    create = Store.create

    def refuse(self: Store, path: str, data: bytes) -> str | None:
        if path.startswith("runs/"):
            raise StoreUnavailable("no answer")
        return create(self, path, data)

    monkeypatch.setattr(Store, "create", refuse)


def fail(recipe: PipelineConfig) -> None:
    raise InputError("record 7 is broken")


def test_a_failed_run_is_written_down_and_keeps_its_error(
    recipe: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.COMPOSITIONS, "pipeline", fail)
    with pytest.raises(InputError, match="record 7"):
        run.execute("pipeline", recipe, Selection())
    assert len(recipe.settings().store.children("runs/demo")) == 1
    lose_the_store(monkeypatch)
    with pytest.raises(InputError, match="record 7"):
        run.execute("pipeline", recipe, Selection())


def test_a_run_whose_record_cannot_be_written_is_no_success(
    recipe: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.COMPOSITIONS, "pipeline", lambda recipe: None)
    lose_the_store(monkeypatch)
    with pytest.raises(StoreUnavailable):
        run.execute("pipeline", recipe, Selection())
