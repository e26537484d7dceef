"""docker/compose.yaml is one docker-compose takes, keeps to loopback and secrets, and works."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from botocore.exceptions import ClientError

from tests.services.browser import browser
from tests.services.compose import BIND, SERVICES, WITH_SECOND_PORT, Compose
from tests.services.docker_engine import DockerEngine
from tests.services.prefect_server import REPOSITORY
from tests.services.processes import ServiceProcess, wait_until

pytestmark = pytest.mark.timeout(1800)  # the first test of a session that wants the image builds it

SECRETS = {
    "LMPIPE_AUTH_STRING": "lmpipe:auth-secret",
    "LMPIPE_POSTGRES_PASSWORD": "postgres-secret",
    "LMPIPE_S3_KEY": "s3-key",
    "LMPIPE_S3_SECRET": "s3-secret",
}
STORE = "s3://lmpipe/store"
SMALL_FILES = ("common-crawl", "heritrix-2008")
IMAGES = {
    "LMPIPE_IMAGE": "own/lmpipe",
    "LMPIPE_GPU_IMAGE": "own/lmpipe-gpu",
    "LMPIPE_POSTGRES_IMAGE": "own/postgres",
    "LMPIPE_REDIS_IMAGE": "own/redis",
    "LMPIPE_SEAWEEDFS_IMAGE": "own/seaweedfs",
}


def _config(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LMPIPE_")}
    file = REPOSITORY / "docker" / "compose.yaml"
    command = ["docker-compose", "--file", str(file), "--profile", "gpu", "config"]
    return subprocess.run(command, env=clean | variables, capture_output=True, text=True)


def _services(variables: dict[str, str]) -> dict[str, Any]:
    done = _config(variables)
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return services


def test_docker_compose_takes_the_file_and_every_image_can_be_overridden() -> None:
    services = _services(SECRETS | IMAGES)
    assert set(services) == SERVICES | {"bucket", "migrate", "worker-gpu"}
    assert all(service["image"].startswith("own/") for service in services.values())


@pytest.mark.parametrize("missing", SECRETS)
def test_nothing_starts_without_a_secret(missing: str) -> None:
    done = _config({name: value for name, value in SECRETS.items() if name != missing})
    assert done.returncode != 0
    assert missing in done.stderr


def test_every_server_binds_to_loopback_and_publishes_no_port() -> None:
    services = _services(SECRETS)
    for name in ("postgres", "seaweedfs", "server"):
        assert "127.0.0.1" in " ".join(services[name]["command"]), name
    assert "--port 0" in " ".join(services["redis"]["command"])
    for service in services.values():
        assert service["network_mode"] == "host"
        assert "ports" not in service
    assert "0.0.0.0" not in yaml.safe_dump(services)


def test_no_secret_stands_in_a_command_line() -> None:
    for name, service in _services(SECRETS).items():
        exposed = [secret for secret in SECRETS.values() if secret in " ".join(service["command"])]
        assert not exposed, f"{name} shows {exposed} in the process list"


def test_the_bind_address_reaches_every_service() -> None:
    """A worker elsewhere needs another address: one variable moves all of them."""
    services = _services(SECRETS | {"LMPIPE_BIND": "127.0.0.9"})
    for name in ("postgres", "seaweedfs", "server"):
        command = " ".join(services[name]["command"])
        assert "127.0.0.9" in command, name
        assert "127.0.0.1" not in command, name
    assert services["worker-cpu"]["environment"]["PREFECT_API_URL"].startswith("http://127.0.0.9:")


@pytest.fixture(scope="module")
def stack(
    docker_engine: DockerEngine, cpu_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compose]:
    """The stack, up; its worker has no deployments yet."""
    compose = Compose(
        docker_engine, tmp_path_factory.mktemp("compose"), docker_engine.build_services()
    )
    try:
        compose.up()
        yield compose
    finally:
        compose.down()


@pytest.fixture(scope="module")
def deployed_stack(stack: Compose) -> Compose:
    """The stack with our deployments, made by the documents' command."""
    printed = stack.compose("exec", "-T", "worker-cpu", "lmpipe", "deploy", "--store", STORE)
    assert "deployment curate/curate: created" in printed
    return stack


def test_every_service_comes_up_and_listens_on_the_address_it_was_given(stack: Compose) -> None:
    running = stack.compose("ps", "--services", "--filter", "status=running").split()
    assert set(running) >= SERVICES
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for process in stack.processes()
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    # The worker's health, and a second listener of SeaweedFS, are for this machine alone.
    assert {ip for ip, _ in listening} == {BIND, "127.0.0.1"}
    ours = set(stack.ports.values()) | {stack.ports[name] + 10000 for name in WITH_SECOND_PORT}
    ours -= {stack.ports["CPU_WORKER"]}
    assert {port for ip, port in listening if ip == BIND} >= ours


def test_nobody_enters_without_a_secret(stack: Compose) -> None:
    api = f"{stack.api_url}/flows/filter"
    assert httpx.post(api, json={}).status_code == 401
    assert httpx.post(api, json={}, auth=("lmpipe", "wrong")).status_code == 401
    assert httpx.post(api, json={}, auth=stack._auth).status_code == 200
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        stack.s3(secret="wrong").list_buckets()
    buckets = [bucket["Name"] for bucket in stack.s3().list_buckets()["Buckets"]]
    assert buckets == ["lmpipe"]
    anonymous = httpx.get(stack.store_environment["AWS_ENDPOINT_URL"] + "/lmpipe?list-type=2")
    assert anonymous.status_code == 403


def test_a_person_gets_the_ui_and_enters_it(stack: Compose, tmp_path: Path) -> None:
    root = stack.api_url.removesuffix("/api")
    found = httpx.get(root, headers={"accept": "text/html"}, follow_redirects=True)
    assert found.status_code == 200
    (script,) = re.findall(r'<script type="module"[^>]* src="([^"]+)"', found.text)
    loaded = httpx.get(found.url.join(script))
    assert loaded.is_success and "javascript" in loaded.headers["content-type"]
    with browser(tmp_path) as opened:
        opened.log_in(f"{root}/v2/dashboard", stack.auth_string)
        opened.screenshot("compose-ui")


def test_the_ui_is_served_by_any_user_from_a_read_only_root(
    docker_engine: DockerEngine, cpu_image: str
) -> None:
    """docker/ui.py refuses unless both versions of the UI are laid out, or can be."""
    options = ["--rm", "--network=host", "--read-only", "--tmpfs=/tmp", "--user=4321:4321"]
    options += ["--env=PREFECT_HOME=/tmp", "--entrypoint=python"]
    docker_engine.docker("run", *options, cpu_image, "docker/ui.py")


def test_a_queued_run_is_taken_by_the_composed_worker_and_its_artifacts_lie_in_s3(
    deployed_stack: Compose, tmp_path: Path
) -> None:
    stack = deployed_stack
    curate = stack.request("GET", "/deployments/name/curate/curate")
    settings = few_pages(curate["parameters"]["settings"])
    run = stack.submit(curate["id"], settings=settings, selection={"until_stage": "signals"})
    assert stack.wait_for(run, timeout_seconds=400) == "COMPLETED"
    done = stack.lmpipe(tmp_path, "verify", "--store", STORE, **stack.store_environment)
    assert re.search(r"^\d+ artifacts, 0 bad objects$", done, re.MULTILINE)
    listed = stack.lmpipe(tmp_path, "ls", "--store", STORE, **stack.store_environment)
    assert {"extract", "signals"} <= set(listed.split())


def few_pages(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the default settings, and 27 of the demo's pages."""
    crawl = {"paths": [f"demo_data/warc/{name}.warc.gz" for name in SMALL_FILES]}
    return settings | {"sources": {"crawl": crawl}, "runtime": {"workers": 1}}


@pytest.fixture
def node(deployed_stack: Compose, tmp_path: Path) -> Iterator[Compose]:
    """A node of a cluster: a worker with docs/clusters.md's variables, in containers."""
    stack = deployed_stack
    deploy = ("exec", "-T", "worker-cpu", "lmpipe", "deploy", "--store", STORE)
    stack.compose(*deploy, "--cpu-pool", "cpu-docker", "--gpu-pool", "cpu-docker", "--gpus", "32")
    worker = ServiceProcess(
        "node-worker",
        [sys.executable, "-m", "deployments.cli", "worker", "cpu-docker"],
        tmp_path,
        environment=stack.environment | stack.store_environment | stack.engine.environment,
    )
    try:
        worker.start(lambda: "started!" in worker.log_tail(), timeout_seconds=90)
        yield stack
    finally:
        worker.stop()
        stack.compose(*deploy)


def test_a_node_takes_a_run_from_the_head_node_by_its_address(
    node: Compose, tmp_path: Path
) -> None:
    """The commands of docs/clusters.md, with containers that ask for no GPU."""
    curate = node.request("GET", "/deployments/name/curate/curate")
    assert curate["work_pool_name"] == "cpu-docker"
    assert node.request("GET", "/v2/concurrency_limits/gpu")["limit"] == 32
    settings = few_pages(curate["parameters"]["settings"])
    run = node.submit(curate["id"], settings=settings, selection={"until_stage": "select"})
    assert node.wait_for(run, timeout_seconds=300) == "COMPLETED"
    assert "docker" in node.request("GET", f"/flow_runs/{run}")["infrastructure_pid"]
    listed = node.lmpipe(tmp_path, "ls", "--store", STORE, **node.store_environment)
    assert "select" in listed.split()


def test_a_run_whose_worker_is_stopped_goes_on_after_a_start_in_any_order(
    deployed_stack: Compose,
) -> None:
    stack = deployed_stack
    curate = stack.request("GET", "/deployments/name/curate/curate")
    run = stack.submit(curate["id"], selection={"until_stage": "extract"})
    wait_until(
        lambda: stack.task_state(run, "extract") == "RUNNING",
        timeout_seconds=240,
        what="the extract task of the run",
    )
    started = time.monotonic()
    stack.compose("stop", "worker-cpu")
    took = time.monotonic() - started
    container = stack.container("worker-cpu")
    assert stack.engine.docker("inspect", "--format={{.State.ExitCode}}", container).strip() == "0"
    assert took < 55
    states = stack.request("GET", f"/flow_run_states/?flow_run_id={run}")
    assert "CRASHED" in [state["type"] for state in states], states
    wait_until(lambda: stack.requeued(run), timeout_seconds=60, what="the requeue of the run")

    stack.compose("stop")
    stack.start_in_reverse()
    stack.wait_until_well(timeout_seconds=300)
    assert stack.wait_for(run, timeout_seconds=400) == "COMPLETED"
    assert stack.request("GET", f"/flow_runs/{run}")["run_count"] == 2
