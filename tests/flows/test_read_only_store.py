"""A store that may only be read serves a run that finds everything, and no other."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from flows import run
from flows.recipe import PipelineConfig, load_recipe
from lmpipe.artifacts import store as store_module
from lmpipe.artifacts.build import build, find
from lmpipe.artifacts.events import Event
from lmpipe.artifacts.leases import RunLeases
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.tombstone import Tombstone, write_tombstone
from lmpipe.errors import StoreRefused
from lmpipe.runtime import Runtime
from tasks.bridge import as_task
from tasks.selection import Selection
from tests.artifacts.stages import CopyConfig, CountConfig, copy, count


class Heard(run.Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, name: str, event: Event) -> None:
        self.events.append(event)


def compose(recipe: PipelineConfig) -> None:
    as_task(copy)(CopyConfig(), as_task(count)(CountConfig()))


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineConfig:
    monkeypatch.setitem(run.COMPOSITIONS, "pipeline", compose)
    monkeypatch.setattr(run, "prefect_name", lambda: "")
    return load_recipe("demo", [f"store.root={tmp_path}/store"])


def fill(store: Store) -> None:
    documents = build(count, CountConfig(), {}, store=store, runtime=Runtime())
    build(copy, CopyConfig(), {"documents": documents}, store=store, runtime=Runtime())


def refuse_writes(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Have the file system refuse every write as a read-only mount or foreign folder does."""
    tried: list[str] = []

    def refuse(self: Any, full: str, data: bytes) -> Any:
        tried.append(full)
        raise OSError(number, os.strerror(number), full)

    monkeypatch.setattr(store_module._FileWrites, "_written", refuse)
    return tried


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_run_that_finds_everything_works_and_says_that_its_use_is_not_recorded(
    recipe: PipelineConfig, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = recipe.settings().store
    fill(store)
    before = store.sizes("")
    refuse_writes(monkeypatch, number)
    heard = Heard()
    steps = run.execute("pipeline", recipe, Selection(), heard)
    assert [step.status for step in steps] == ["HIT", "HIT"]
    (said,) = heard.events
    assert said["level"] == "warning" and "is not recorded" in said["message"]
    assert os.strerror(number) in said["message"] and store.sizes("") == before


def test_a_run_that_must_build_is_refused_before_anything_runs(
    recipe: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = recipe.settings().store
    build(count, CountConfig(), {}, store=store, runtime=Runtime())
    tried = refuse_writes(monkeypatch, errno.EROFS)
    with pytest.raises(StoreRefused, match=r"nothing was run: .*Read-only.* must build copy"):
        run.execute("pipeline", recipe, Selection())
    assert len(tried) == 1  # the record of its use, and nothing of a stage


def test_what_gc_is_about_to_take_is_not_there_for_who_may_not_take_it_back(
    recipe: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = recipe.settings().store
    made = build(count, CountConfig(), {}, store=store, runtime=Runtime())
    condemned = Tombstone(condemned=(made.manifest.attempt,))
    write_tombstone(store, f"count/{made.id}", condemned, None)
    with monkeypatch.context() as read_only:
        refuse_writes(read_only, errno.EROFS)
        assert find(count, made.id, store, Runtime()) is None
    assert find(count, made.id, store, Runtime()) is not None


def test_a_bucket_that_denies_writes_is_told_from_one_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Denied:
        def create(self, full: str, data: bytes) -> str:
            raise PermissionError("Access Denied")  # as s3fs says AccessDenied

    store = Store("s3://bucket/prefix")
    monkeypatch.setattr(store, "_conditional", Denied())
    with RunLeases(store, "a run") as leases:
        leases.take("count", "1" * 24)
    assert "Access Denied" in leases.refusal and "s3://bucket/prefix/uses/" in leases.refusal
