"""A gate stands before what is found as it does before what is built."""

from typing import Any

import pytest
from pydantic import Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Checkpoint, Documents
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from tasks.bridge import as_task
from tasks.conductor import Settings
from tasks.plan import Step, check_runnable, plan
from tasks.selection import Selection


class SearchConfig(StageConfig):
    """What a search is said to have found."""

    leaked: int = Field(0, description="Passages.")


@stage(version=1, kind="exact")
def search(out: Output[Documents], config: SearchConfig, *, runtime: Runtime) -> Documents:
    """Write the same bytes whatever was found."""
    out.write_bytes("kept/0", b"text")
    out.metric("leaked", config.leaked)
    return out.commit()


class LearnConfig(StageConfig):
    """No settings."""


def no_leaks(config: LearnConfig, documents: Documents) -> None:
    if documents.metrics["leaked"]:
        raise InputError(f"learn refuses {documents.metrics['leaked']} leaked passages")


@stage(version=1, kind="statistical", gate=no_leaks)
def learn(
    out: Output[Checkpoint], config: LearnConfig, documents: Documents, *, runtime: Runtime
) -> Checkpoint:
    """Learn nothing."""
    out.write_json("meta.json", {})
    return out.commit()


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(str(tmp_path / "store"))


def make(store: Store, leaked: int) -> Any:
    def one(stage: Any, config: StageConfig, *inputs: Any) -> Any:
        return build(stage, config, stage.bind(inputs), store=store, runtime=Runtime())

    return one(learn, LearnConfig(), one(search, SearchConfig(leaked=leaked)))


def planned(store: Store, leaked: int, selection: Selection) -> list[Step]:
    def compose() -> None:
        documents = as_task(search)(SearchConfig(leaked=leaked))
        model = as_task(learn)(LearnConfig(), documents)
        as_task(learn)(LearnConfig(), documents, label="again")
        assert model is not None

    return plan(compose, Settings(store, Runtime()), selection)


def test_a_model_that_is_found_is_refused_for_data_that_the_gate_refuses(store: Store) -> None:
    make(store, 0)
    with pytest.raises(InputError, match="learn refuses 20 leaked passages"):
        make(store, 20)


def test_a_plan_shows_the_refusal_of_a_hit_and_a_run_ends_before_it_begins(store: Store) -> None:
    make(store, 0)
    build(search, SearchConfig(leaked=20), {}, store=store, runtime=Runtime())
    clean = planned(store, 0, Selection())
    assert [step.status for step in clean] == ["HIT"] * 3
    steps = planned(store, 20, Selection())
    assert [step.status for step in steps] == ["HIT", "REFUSED", "REFUSED"]
    assert "20 leaked passages" in steps[1].reason
    with pytest.raises(InputError, match="20 leaked passages"):
        check_runnable(steps, Selection())


def test_nobody_asks_a_gate_after_the_last_stage_asked_for(store: Store) -> None:
    make(store, 0)
    build(search, SearchConfig(leaked=20), {}, store=store, runtime=Runtime())
    selection = Selection(until_stage="search")
    steps = planned(store, 20, selection)
    assert [step.status for step in steps] == ["HIT", "REFUSED", "REFUSED"]
    check_runnable(steps, selection)
