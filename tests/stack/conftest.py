"""Real services: each starts once a session, on loopback, and ends what it started."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.docker_engine import DockerEngine
from tests.services.postgres import Postgres
from tests.services.prefect_server import REPOSITORY, PrefectServer, ProcessWorker
from tests.services.processes import ServiceProcess
from tests.services.redis import Redis
from tests.services.seaweedfs import SeaweedFS

STACK = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder, so that no test of a service slips into `make test`.

    The first test that asks for a session's service also pays for its start: 50 s for a server, 50
    s for a base image.
    """
    for item in items:
        if STACK in item.path.parents:
            item.add_marker(pytest.mark.stack)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(420))


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """An S3 server; make a bucket of your own in it."""
    service = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    try:
        service.start()
        yield service
    finally:
        service.process.stop(
            grace_seconds=3
        )  # its own shutdown takes 15 s; the data are thrown away


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL; make a database of your own in it."""
    service = Postgres()
    try:
        service.start()
        yield service
    finally:
        service.delete()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis on a socket that only we may open."""
    service = Redis(tmp_path_factory.mktemp("redis") / "data")
    try:
        service.start()
        yield service
    finally:
        service.delete()


@pytest.fixture(scope="session")
def prefect_server(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis: Redis
) -> Iterator[PrefectServer]:
    """The Prefect server as in production, on PostgreSQL and Redis, with a `cpu` process pool."""
    service = PrefectServer(tmp_path_factory.mktemp("prefect"), postgres=postgres, redis=redis)
    try:
        service.start()
        service.create_pool("cpu")
        yield service
    finally:
        service.process.stop()


@pytest.fixture(scope="session")
def process_worker(
    tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer
) -> Iterator[ProcessWorker]:
    """A worker of the `cpu` pool; a test that ends its worker makes one of its own."""
    worker = ProcessWorker(prefect_server, tmp_path_factory.mktemp("worker"), "cpu")
    try:
        worker.start()
        yield worker
    finally:
        worker.process.stop()


@pytest.fixture(scope="session")
def deployed(
    prefect_server: PrefectServer, tmp_path_factory: pytest.TempPathFactory
) -> PrefectServer:
    """The server, with our deployments and automations, of which none notifies anyone."""
    from tests.stack.test_deploy import lmpipe

    folder = tmp_path_factory.mktemp("deploy")
    printed = lmpipe(prefect_server, folder, "deploy", "--folder", str(REPOSITORY))
    assert "deployment rerun/rerun: created" in printed
    assert "notified of failures and alarms: nobody" in printed
    return prefect_server


@pytest.fixture(scope="session")
def lmpipe_worker(
    deployed: PrefectServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """`lmpipe worker cpu`, started only by the tests that ask for it."""
    process = ServiceProcess(
        "lmpipe-worker",
        [sys.executable, "-m", "deployments.cli", "worker", "cpu"],
        tmp_path_factory.mktemp("worker"),
        environment=deployed.environment | {"PREFECT_WORKER_QUERY_SECONDS": "2"},
    )
    try:
        process.start(lambda: "started!" in process.log_tail(), timeout_seconds=90)
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[DockerEngine]:
    """A Docker engine with the base image `lmpipe-base:bookworm`."""
    engine = DockerEngine()
    try:
        engine.start()
        yield engine
    finally:
        engine.delete()


@pytest.fixture(scope="session")
def cpu_image(docker_engine: DockerEngine) -> str:
    """Our cpu image, built once: minutes on two cores."""
    tag = "lmpipe:cpu"
    docker_engine.build(REPOSITORY, "docker/Dockerfile", "--target=cpu", tag=tag)
    return tag
