"""What a container of the docker pools is asked for, down to the request to the engine."""

import asyncio
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from docker.models.containers import _create_container_args
from prefect.client.schemas.objects import FlowRun

from deployments.deploy import Site, deployment, read_file
from deployments.docker_worker import ContainerWithStore, DockerWorkerWithStore

VALUES = {
    "LMPIPE_IMAGE": "registry/lmpipe:cpu",
    "LMPIPE_GPU_IMAGE": "registry/lmpipe:gpu",
    "LMPIPE_API_URL": "http://prefect.example/api",
}
SECRETS = {"AWS_ACCESS_KEY_ID": "the-key", "AWS_SECRET_ACCESS_KEY": "the-secret"}


def job_variables(flow: str, site: Site) -> dict[str, Any]:
    file = read_file(VALUES)
    (entry,) = [entry for entry in file["deployments"] if entry["name"] == flow]
    variables: dict[str, Any] = deployment(entry, file["definitions"]["pools"], site)[
        "job_variables"
    ]
    return variables


def request(variables: dict[str, Any]) -> dict[str, Any]:
    """Return what the engine is asked to create, as the worker renders it."""
    template = DockerWorkerWithStore.get_default_base_job_template()
    configuration = asyncio.run(
        ContainerWithStore.from_template_and_values(template, variables, client=Mock())
    )
    configuration.prepare_for_flow_run(FlowRun(id=uuid4(), flow_id=uuid4(), name="some-run"))
    client = Mock(version=lambda: {"Version": "24.0.0"})
    settings = DockerWorkerWithStore._build_container_settings(Mock(), client, configuration)
    settings.pop("auto_remove")
    rendered: dict[str, Any] = _create_container_args({**settings, "version": "1.41"})
    return rendered


@pytest.fixture(autouse=True)
def environment_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CA_BUNDLE", "/etc/ca-of-this-machine.pem")


def test_a_container_of_the_gpu_pool_gets_all_gpus_and_room_for_nccl() -> None:
    asked = request(job_variables("pretrain", Site()))
    assert asked["image"] == "registry/lmpipe:gpu"
    assert asked["command"] == "prefect flow-run execute"
    assert asked["healthcheck"] == {"test": ["NONE"]}
    every_gpu = {"Count": -1, "Capabilities": [["gpu"]]}
    assert asked["host_config"] == {
        "DeviceRequests": [every_gpu | {"Driver": "", "DeviceIDs": [], "Options": {}}],
        "IpcMode": "host",
        "NetworkMode": "host",
        "ShmSize": 16 * 2**30,
        "Ulimits": [
            {"Name": "memlock", "Soft": -1, "Hard": -1},
            {"Name": "stack", "Soft": 2**26, "Hard": 2**26},
        ],
    }


def test_a_machine_without_a_gpu_runs_everything_in_containers_without_devices() -> None:
    site = Site(cpu_pool="cpu-docker", gpu_pool="cpu-docker")
    for flow in ("curate", "pretrain"):
        asked = request(job_variables(flow, site))
        assert asked["image"] == "registry/lmpipe:cpu"
        assert asked["host_config"] == {"NetworkMode": "host", "ShmSize": 2 * 2**30}


def test_a_container_gets_the_workers_keys_and_no_job_variable_holds_them() -> None:
    variables = job_variables("pretrain", Site())
    assert not any(secret in str(variables) for secret in SECRETS.values())
    environment = request(variables)["environment"]
    assert environment.items() >= SECRETS.items()
    assert environment["PREFECT_API_URL"] == "http://prefect.example/api"
    assert environment["PREFECT_HOME"] == "/home/lmpipe/.prefect"
    assert "AWS_CA_BUNDLE" not in environment, "a path of the worker's machine"


def test_what_a_job_variable_sets_wins_over_the_workers_environment() -> None:
    variables = job_variables("pretrain", Site())
    variables["env"] = variables["env"] | {"AWS_ENDPOINT_URL": "http://near.example"}
    assert request(variables)["environment"]["AWS_ENDPOINT_URL"] == "http://near.example"
