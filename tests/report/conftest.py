"""One fake run and its report, shared by the tests of this folder."""

from pathlib import Path

import pytest

from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Artifact, Report
from lmpipe.report.config import ReportConfig
from lmpipe.report.report import report
from lmpipe.runtime import Runtime
from tests.report.fake_run import make_run


@pytest.fixture(scope="session")
def store_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def artifacts(store_root: Path) -> list[Artifact]:
    return make_run(store_root)


@pytest.fixture(scope="session")
def made(store_root: Path, artifacts: list[Artifact]) -> Report:
    return build(
        report, ReportConfig(), {"everything": artifacts}, store=Store(str(store_root)),
        runtime=Runtime(),
    )  # fmt: skip


@pytest.fixture(scope="session")
def html(made: Report) -> str:
    return made.read_bytes("report.html").decode()


@pytest.fixture(scope="session")
def markdown(made: Report) -> str:
    return made.read_bytes("report.md").decode()
