import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from deployments.cli import app
from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Artifact
from lmpipe.errors import ConfigError
from lmpipe.runtime import Runtime
from tasks.bridge import as_task
from tasks.conductor import Settings
from tasks.plan import plan
from tasks.selection import Selection
from tests.artifacts.stages import CopyConfig, CountConfig, copy, count

OPTIONS = ("--last", "0", "--days", "0")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def documents(store: Store) -> Artifact:
    return build(count, CountConfig(), {}, store=store, runtime=Runtime())


def command(store: Store, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--store", store.root], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_an_alias_is_set_listed_used_and_dropped(store: Store, documents: Artifact) -> None:
    assert f"production → count/{documents.id}" in command(
        store, "alias", "production", documents.id[:8]
    )
    assert "production → count/" in command(store, "alias")
    assert json.loads(command(store, "show", "production"))["id"] == documents.id
    with pytest.raises(ConfigError, match="lacks the artifact"):
        command(store, "alias", "other")
    command(store, "alias", "production", "--drop")
    assert command(store, "alias") == ""


def test_gc_shows_first_and_deletes_only_when_told(store: Store, documents: Artifact) -> None:
    build(copy, CopyConfig(), {"documents": documents}, store=store, runtime=Runtime())
    command(store, "alias", "production", documents.id)
    text = command(store, "gc", *OPTIONS, "--list")
    assert "nothing was deleted" in text and f"count/{documents.id} stays: alias production" in text
    assert documents.missing() == []
    assert "deleted 2 objects" in command(store, "gc", *OPTIONS, "--delete")
    assert "0 B would go" in command(store, "gc", *OPTIONS)
    assert command(store, "ls", "copy").endswith("gone")
    assert "2 artifacts, 0 bad objects, 1 collected by gc" in command(store, "verify")
    assert json.loads(command(store, "show", "copy"))["stage"] == "copy"


def test_a_plan_says_that_objects_were_collected(store: Store, documents: Artifact) -> None:
    command(store, "gc", *OPTIONS, "--delete")
    counted = as_task(count)
    (step,) = plan(lambda: counted(CountConfig()), Settings(store, Runtime()), Selection())
    assert step.status == "RUN"
    assert step.reason.startswith("its objects were collected by gc on 20")


def test_a_best_that_cannot_be_read_is_refused_with_an_example(store: Store) -> None:
    for bad in ("pretrain", "pretrain:loss", "pretrain:loss:lowest", ":loss:low"):
        with pytest.raises(ConfigError, match="pretrain:bits_per_byte:low"):
            command(store, "gc", "--best", bad)
    build(count, CountConfig(lines=1), {}, store=store, runtime=Runtime())
    text = command(store, "gc", *OPTIONS, "--best", "count:lines:high", "--list")
    assert "stays: highest lines" in text


def test_accounting_writes_a_table_and_a_page(
    store: Store, documents: Artifact, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("{currency: CHF, cpu_hour: 3600}")
    folder = tmp_path / "out"
    text = command(store, "accounting", "--to", str(folder), "--prices", str(prices))
    assert text.startswith("1 attempts:")
    (row,) = pq.read_table(folder / "accounting.parquet").to_pylist()
    assert (row["artifact"], row["currency"]) == (documents.id, "CHF")
    assert row["cost"] == pytest.approx(row["cpu_hours"] * 3600)
    assert "CHF" in (folder / "accounting.html").read_text()


def test_the_commands_are_known_without_loading_what_they_need() -> None:
    code = (
        "import sys, deployments.cli; "
        "print([m for m in ('pyarrow', 'prefect', 'fsspec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
