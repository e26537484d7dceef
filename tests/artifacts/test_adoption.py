"""What an operator says serves is found; what is not said, or not so, is refused with reasons."""

import os
import time
from typing import Any

import pytest

from lmpipe.artifacts.adoption import adopt
from lmpipe.artifacts.build import build, find
from lmpipe.artifacts.gc import collect
from lmpipe.artifacts.lookup import identify
from lmpipe.artifacts.manifest import Manifest
from lmpipe.artifacts.retention import RetentionPolicy
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.errors import ConfigError, StoreError
from lmpipe.runtime import Runtime
from tasks.bridge import as_task
from tasks.conductor import Settings
from tasks.plan import calls_with_inputs, plan
from tasks.selection import Selection
from tests.artifacts.stages import CopyConfig, CountConfig, TrainConfig, copy, count, train

NOW = TrainConfig(steps=4)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def documents(store: Store) -> Documents:
    return build(count, CountConfig(), {}, store=store, runtime=Runtime())


@pytest.fixture
def old(store: Store, documents: Documents) -> Manifest:
    inputs: Any = {"documents": documents}
    return build(train, TrainConfig(), inputs, store=store, runtime=Runtime()).manifest


def serve(
    old: Manifest, store: Store, documents: Documents, *fields: str, **given: Any
) -> Manifest:
    given = {"stage": train, "config": NOW, "reason": "the fourth step is empty", **given}
    stage, config = given.pop("stage"), given.pop("config")
    inputs: Any = {"documents": documents}
    return adopt(old, stage, config, inputs, store=store, fields=fields, **given)


def test_an_adopted_artifact_is_found_with_the_old_bytes_and_digest_and_says_so(
    store: Store, documents: Documents, old: Manifest
) -> None:
    made = serve(old, store, documents, "config.steps")
    found = find(train, identify(train, NOW, {"documents": documents}), store, Runtime())
    assert found is not None and found.digest == old.digest
    assert found.read_json("meta.json") == {"steps": 3} and found.manifest.config["steps"] == 4
    assert made.adopted is not None
    assert made.adopted.model_dump() == {
        "stage": "train", "id": old.id, "fields": {"config.steps": [3, 4]}
    }  # fmt: skip
    assert made.provenance.reason == "the fourth step is empty"

    def compose() -> None:
        as_task(train)(NOW, as_task(count)(CountConfig()))

    steps = plan(compose, Settings(store, Runtime()), Selection())
    assert steps[1].status == "HIT"
    assert steps[1].reason.startswith(f"adopted from {old.id[:12]} but for config.steps")
    calls = calls_with_inputs(compose, Settings(store, Runtime()))
    assert [call.name for call, _ in calls] == ["count", "train"]


def test_a_field_that_differs_must_be_named_and_one_that_does_not_must_not(
    store: Store, documents: Documents, old: Manifest
) -> None:
    with pytest.raises(ConfigError, match=r"config.steps: 3 → 4.*--but 'config.steps'"):
        serve(old, store, documents)
    with pytest.raises(ConfigError, match=r"'config.mode': the two do not differ in it"):
        serve(old, store, documents, "config.steps", "config.mode")
    other = build(count, CountConfig(lines=7), {}, store=store, runtime=Runtime())
    with pytest.raises(ConfigError, match=r"--but 'input.documents'"):
        serve(old, store, other, "config.steps")
    assert find(train, identify(train, NOW, {"documents": documents}), store, Runtime()) is None


def test_another_stage_no_reason_a_hit_and_a_damaged_artifact_are_refused(
    store: Store, documents: Documents, old: Manifest
) -> None:
    copied: Any = {"stage": copy, "config": CopyConfig()}
    for fields, given, message in (
        ((), copied, "is no copy"),
        (("config.steps",), {"reason": " "}, "--reason"),
        ((), {"config": TrainConfig()}, "finds .* already"),
    ):
        with pytest.raises(ConfigError, match=message):
            serve(old, store, documents, *fields, **given)
    store.delete(old.outputs[0].path)
    with pytest.raises(StoreError, match="cannot serve: it has lost"):
        serve(old, store, documents, "config.steps")


def test_gc_keeps_the_objects_of_what_serves_as_something_that_it_keeps(
    store: Store, documents: Documents, old: Manifest
) -> None:
    serve(old, store, documents, "config.steps")
    past = time.time() - 30 * 86400
    for path in store.sizes(""):
        os.utime(store.full(path), (past, past))
    collect(store, RetentionPolicy(last=1, best=()))
    found = find(train, identify(train, NOW, {"documents": documents}), store, Runtime())
    assert found is not None and found.missing() == []
