"""The cpu image is built from Debian and Python packages; a queued run completes inside it."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.docker_engine import DockerEngine
from tests.services.prefect_server import REPOSITORY, PrefectServer
from tests.services.processes import ServiceProcess
from tests.services.seaweedfs import SECRET, SeaweedFS

BUCKET = "container"

pytestmark = pytest.mark.timeout(1800)  # the build alone takes minutes on two cores


@pytest.fixture(scope="module")
def in_containers(
    deployed: PrefectServer, seaweedfs: SeaweedFS, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrefectServer]:
    """The server, with all that we deploy going to containers without a GPU."""
    folder = tmp_path_factory.mktemp("deploy")
    store = seaweedfs.create_bucket(BUCKET)
    pools = ["--cpu-pool", "cpu-docker", "--gpu-pool", "cpu-docker"]
    deployed.lmpipe(folder, "deploy", *pools, "--store", store)
    yield deployed
    deployed.lmpipe(folder, "deploy", "--folder", str(REPOSITORY))


@pytest.fixture(scope="module")
def docker_worker(
    docker_engine: DockerEngine,
    in_containers: PrefectServer,
    seaweedfs: SeaweedFS,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServiceProcess]:
    """`lmpipe worker cpu-docker`, with the keys of the store in its environment."""
    process = ServiceProcess(
        "lmpipe-worker",
        [sys.executable, "-m", "deployments.cli", "worker", "cpu-docker"],
        tmp_path_factory.mktemp("worker"),
        environment=in_containers.environment
        | docker_engine.environment
        | seaweedfs.environment
        | {"PREFECT_WORKER_QUERY_SECONDS": "2"},
    )
    try:
        process.start(lambda: "started!" in process.log_tail(), timeout_seconds=90)
        yield process
    finally:
        process.stop()


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


def test_a_queued_run_of_the_pipeline_completes_in_a_container_and_writes_to_s3(
    cpu_image: str,
    in_containers: PrefectServer,
    docker_worker: ServiceProcess,
    seaweedfs: SeaweedFS,
    tmp_path: Path,
) -> None:
    """Recipe, image, pool and keys are what a user would have: none is the test's own."""
    curate = in_containers.request("GET", "/deployments/name/curate/curate")
    assert (curate["work_pool_name"], curate["job_variables"]["image"]) == ("cpu-docker", cpu_image)
    few = {"sources": {"crawl": {"paths": ["demo_data/warc/common-crawl.warc.gz"]}}}
    settings = curate["parameters"]["settings"] | few
    selection = {"until_stage": "extract"}
    run = in_containers.submit(curate["id"], settings=settings, selection=selection)
    assert in_containers.wait_for(run, timeout_seconds=300) == "COMPLETED"
    assert "docker" in in_containers.request("GET", f"/flow_runs/{run}")["infrastructure_pid"]

    store = ["--store", f"s3://{BUCKET}"]
    listed = in_containers.lmpipe(tmp_path, "ls", *store, **seaweedfs.environment)
    assert {"source", "extract"} <= set(listed.split())
    verified = in_containers.lmpipe(tmp_path, "verify", *store, **seaweedfs.environment)
    assert re.search(r"^\d+ artifacts, 0 bad objects$", verified, re.MULTILINE)

    shown = json.dumps([curate, in_containers.request("GET", f"/flow_runs/{run}")])
    assert SECRET not in shown
    assert SECRET not in docker_worker.log_path.read_text()
