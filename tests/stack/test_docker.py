"""The cpu image is built from Debian and Python packages; a queued run completes inside it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.docker_engine import DockerEngine
from tests.services.prefect_server import REPOSITORY, PrefectServer, ProcessWorker
from tests.services.processes import wait_until

pytestmark = pytest.mark.timeout(1800)  # the build alone takes minutes on two cores


@pytest.fixture(scope="module")
def docker_worker(
    docker_engine: DockerEngine,
    prefect_server: PrefectServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProcessWorker]:
    prefect_server.create_pool("docker", "docker")
    worker = ProcessWorker(
        prefect_server,
        tmp_path_factory.mktemp("docker-worker"),
        "docker",
        worker_type="docker",
        environment=docker_engine.environment,
    )
    try:
        worker.start()
        yield worker
    finally:
        worker.process.stop()


def test_the_image_holds_the_pinned_packages_and_the_cpu_build_of_torch(
    docker_engine: DockerEngine, cpu_image: str
) -> None:
    code = (
        "import importlib.metadata as m, json, torch;"
        "print(json.dumps([torch.__version__, {d.name: d.version for d in m.distributions()}]))"
    )
    output = docker_engine.docker("run", "--rm", "--network=host", cpu_image, "python", "-c", code)
    torch_version, installed = json.loads(output.splitlines()[-1])
    assert torch_version.endswith("+cpu")

    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = (REPOSITORY / "constraints.txt").read_text().split()
    pinned = dict(line.split("==") for line in lines)
    versions = {normal(name): version.split("+")[0] for name, version in installed.items()}
    unpinned = set(versions) - set(pinned) - {"lmpipe", "pip"}
    assert not unpinned, f"installed but not in constraints.txt: {sorted(unpinned)}"
    assert {name: versions[name] for name in versions.keys() & pinned.keys()} == {
        name: pinned[name] for name in versions.keys() & pinned.keys()
    }


def test_the_image_runs_as_a_user_who_cannot_write_the_code(
    docker_engine: DockerEngine, cpu_image: str
) -> None:
    script = (
        "id -u; if test -w /opt/lmpipe/lmpipe; then echo writable; fi;"
        "python -c 'import lmpipe, flows, tasks'"
    )
    output = docker_engine.docker(
        "run", "--rm", "--network=host", "--workdir=/tmp", cpu_image, "sh", "-c", script
    )
    assert output.split() == ["1000"]


def test_a_queued_run_completes_inside_the_container_and_its_log_comes_back(
    cpu_image: str, prefect_server: PrefectServer, docker_worker: ProcessWorker
) -> None:
    deployment = prefect_server.create_deployment(
        "sample_flows.py:greet",
        pool="docker",
        directory="/opt/sample",
        job_variables={
            "image": cpu_image,
            "image_pull_policy": "Never",
            "network_mode": "host",
            "volumes": [f"{Path(__file__).parent}:/opt/sample:ro"],
            # the worker hands its own PREFECT_* on: its home does not exist in there
            "env": {
                "PREFECT_API_URL": prefect_server.api_url,
                "PREFECT_HOME": "/home/lmpipe/.prefect",
            },
            "container_create_kwargs": {"healthcheck": {"test": ["NONE"]}},
        },
    )
    run = prefect_server.submit(deployment, name="container")
    assert prefect_server.wait_for(run, timeout_seconds=240) == "COMPLETED"
    wait_until(
        lambda: any("hello container" in line for line in prefect_server.logs(run)),
        timeout_seconds=20,
        what="the run's line in the log",
    )
    assert prefect_server.request("GET", f"/flow_runs/{run}")["infrastructure_pid"]
