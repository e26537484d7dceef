from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmpipe.artifacts import shards as executors
from lmpipe.artifacts.build import build
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.stage import Stage, StageConfig
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Artifact, Source
from lmpipe.runtime import Runtime

WARC = Path(__file__).parents[1] / "data" / "warc"


class Workbench:
    """A store of its own, and short ways to pin sources and run stages in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store(f"file://{root / 'store'}")
        self.events: list[dict[str, Any]] = []
        self.runtime: dict[str, Any] = {}

    def source(self, name: str, *paths: Path | str) -> Source:
        pinned = pin(name, SourceSpec(paths=tuple(str(path) for path in paths)), self.root)
        runtime = Runtime(locations=pinned.locations)
        return build(source, pinned.config, {}, store=self.store, runtime=runtime)

    def files(self, name: str, **files: str | bytes) -> Source:
        """Pin files by content; a double underscore in a name stands for a dot."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        for file, data in files.items():
            path = folder / file.replace("__", ".")
            path.write_bytes(data.encode() if isinstance(data, str) else data)
        return self.source(name, folder / "*")

    def run(
        self, stage: Stage[Any], config: StageConfig, *inputs: Artifact | None, workers: int = 1
    ) -> Any:
        return build(
            stage,
            config,
            stage.bind(inputs),
            store=self.store,
            runtime=Runtime(workers=workers, **self.runtime),
            sink=self.events.append,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return Workbench(tmp_path)


@pytest.fixture
def new_bench(tmp_path: Path) -> Callable[[str], Workbench]:
    def make(name: str) -> Workbench:
        (tmp_path / name).mkdir()
        return Workbench(tmp_path / name)

    return make


class InThisProcess:
    """Stands for an executor of many workers: runs each task here, in another order."""

    def __init__(self, task: executors.ShardTask, tasks: int) -> None:
        self.task, self.tasks = task, tasks

    def run(self) -> None:
        for rank in reversed(range(self.tasks)):
            key = self.task._keys[rank]
            executors.ShardTask(self.task._store, self.task._prefix, [key], self.task._work)(None)


@pytest.fixture
def other_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(task: executors.ShardTask, tasks: int, *rest: object) -> InThisProcess:
        return InThisProcess(task, tasks)

    monkeypatch.setattr(executors, "_executor", make)
