"""Document stages: conservation and guards hold for whoever uses the protocol."""

import ast
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.documents.stage import StoredPart, map_documents
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime
from tests.architecture.modules import REPOSITORY, stages
from tests.curation.given import given, kept, removed, shards

ANIMALS = {"a": "one two three", "b": "one", "c": "one two three four", "d": "one two"}


class CarelessConfig(StageConfig):
    """None."""


def lose_a_document(part: StoredPart) -> None:
    for batch in part.batches():
        part.settle(batch, batch.slice(1))


def skip_a_batch(part: StoredPart) -> None:
    next(part.batches())


@stage(version=1, kind="exact")
def loses(
    out: Output[Documents], config: CarelessConfig, documents: Documents, *, runtime: Runtime
) -> Documents:
    return map_documents(out, documents, lose_a_document, runtime).finish()


@stage(version=1, kind="exact")
def skips(
    out: Output[Documents], config: CarelessConfig, documents: Documents, *, runtime: Runtime
) -> Documents:
    return map_documents(out, documents, skip_a_batch, runtime).finish()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store((tmp_path / "store").as_uri())


def animals(store: Store) -> Documents:
    return build(given, shards(ANIMALS), {}, store=store, runtime=Runtime())


def test_a_document_that_is_neither_kept_nor_in_the_ledger_ends_the_stage(store: Store) -> None:
    with pytest.raises(AssertionError, match=r"part 00000: kept 3 \+ removed 0 != input 4"):
        build(
            loses, CarelessConfig(), {"documents": animals(store)}, store=store, runtime=Runtime()
        )


def test_a_batch_that_is_never_settled_ends_the_stage(store: Store) -> None:
    with pytest.raises(AssertionError, match="skips settled 0 of 4 documents"):
        build(
            skips, CarelessConfig(), {"documents": animals(store)}, store=store, runtime=Runtime()
        )


def example() -> str:
    """Return the stage that CONTRIBUTING shows, as one file."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    (block,) = re.findall(r"```python\n(.*?drop_short.*?)```", text, flags=re.DOTALL)
    return block


@pytest.fixture
def own_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the stage of CONTRIBUTING from a file of a person's own."""
    path = tmp_path / "drop_short.py"
    path.write_text(example())
    spec = importlib.util.spec_from_file_location("drop_short", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "drop_short", module)
    spec.loader.exec_module(module)
    return module


def test_the_stage_of_contributing_is_one_short_file() -> None:
    assert len(example().splitlines()) <= 60


def test_the_stage_of_contributing_runs(own_stage: ModuleType, store: Store) -> None:
    config = own_stage.DropShortConfig(min_words=3)
    made = build(
        own_stage.drop_short,
        config,
        {"documents": animals(store)},
        store=store,
        runtime=Runtime(),
    )
    assert sorted(kept(made).values()) == ["one two three", "one two three four"]
    assert {(row["reason"], row["score"], row["threshold"]) for row in removed(made).values()} == {
        ("too_few_words", 1.0, 3.0),
        ("too_few_words", 2.0, 3.0),
    }
    assert (made.metrics["input"], made.metrics["kept"]) == (4, 2)


@pytest.mark.parametrize(
    ("min_words", "runtime", "message"),
    [
        (9, {}, "drop_short keeps none of 4 documents; removed for too_few_words: 4"),
        (3, {"stop_kept_below": 0.9}, "drop_short stops: it keeps 2 of 4 documents"),
        (3, {"stop_host_documents": 2, "stop_host_lost_fraction": 0.4}, "a.example: 2 of 4 kept"),
    ],
)
def test_every_stage_of_documents_has_the_guards(
    own_stage: ModuleType, store: Store, min_words: int, runtime: dict[str, Any], message: str
) -> None:
    config = own_stage.DropShortConfig(min_words=min_words)
    with pytest.raises(InputError, match=message):
        build(
            own_stage.drop_short,
            config,
            {"documents": animals(store)},
            store=store,
            runtime=Runtime(**runtime),
        )


def document_stages() -> dict[str, str]:
    """Return every stage that makes documents, with its module."""
    found = {}
    for name, module in stages().items():
        declared = getattr(importlib.import_module(module), name)
        if declared.output_type is Documents:
            found[name] = module
    return found


@pytest.mark.parametrize("name", sorted(document_stages()))
def test_every_stage_that_makes_documents_goes_through_the_protocol(name: str) -> None:
    declared = getattr(importlib.import_module(document_stages()[name]), name)
    calls = {
        node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        for node in ast.walk(ast.parse(inspect.getsource(declared.function)))
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))
    }
    assert calls & {"map_documents", "make_documents"}
    assert "finish" in calls
    assert not calls & {"commit", "run_shards", "gather_parts", "check_retention", "check_hosts"}


def test_the_stages_that_make_documents_are_found() -> None:
    assert {"extract", "import_documents", "select", "dedup", "mask"} <= set(document_stages())
