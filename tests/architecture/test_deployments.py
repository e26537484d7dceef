"""deployments/prefect.yaml names what exists, and says what Prefect gets wrong when unsaid."""

import importlib
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml
from prefect import Flow

from tests.architecture.modules import REPOSITORY

SPEC: dict[str, Any] = yaml.safe_load((REPOSITORY / "deployments" / "prefect.yaml").read_text())
DEPLOYMENTS: list[dict[str, Any]] = SPEC["deployments"]
POOLS: dict[str, dict[str, Any]] = SPEC["definitions"]["pools"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_the_entrypoint_is_a_flow_of_the_deployment_s_name(deployment: dict[str, Any]) -> None:
    file, _, name = deployment["entrypoint"].partition(":")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    assert isinstance(getattr(module, name), Flow)
    assert getattr(module, name).name == deployment["name"]


def test_every_flow_of_the_pipeline_has_a_deployment() -> None:
    names = {deployment["name"] for deployment in DEPLOYMENTS}
    assert names >= {"pipeline", "curate", "tokenize", "pretrain", "align", "evaluate", "scale"}
    assert len(names) == len(DEPLOYMENTS)


def test_every_deployment_pulls_from_an_absolute_folder() -> None:
    for deployment in DEPLOYMENTS:
        (step,) = deployment["pull"]
        directory = step["prefect.deployments.steps.set_working_directory"]["directory"]
        assert PurePosixPath(directory).is_absolute(), deployment["name"]


def test_every_deployment_goes_to_a_pool_and_queue_that_are_declared() -> None:
    for deployment in DEPLOYMENTS:
        pool = deployment["work_pool"]
        assert pool["work_queue_name"] in POOLS[pool["name"]]["queues"], deployment["name"]


def test_schedules_are_off_until_someone_turns_them_on() -> None:
    schedules = [schedule for d in DEPLOYMENTS for schedule in d.get("schedules", [])]
    assert len(schedules) >= 2
    assert not any(schedule["active"] for schedule in schedules)


def test_an_urgent_evaluation_goes_before_a_sweep() -> None:
    for pool in POOLS.values():
        queues = pool["queues"]
        assert queues["interactive"]["priority"] < queues["eval"]["priority"]
        assert queues["eval"]["priority"] < queues["pretrain"]["priority"]
        assert queues["pretrain"]["priority"] < queues["sweep"]["priority"]
        assert queues["sweep"]["concurrency_limit"] >= 1


def test_a_container_gets_its_gpus_shared_memory_and_no_secret() -> None:
    containers = [
        d["work_pool"]["job_variables"] for d in DEPLOYMENTS if d["work_pool"]["name"] == "gpu"
    ]
    assert containers
    for variables in containers:
        arguments = variables["container_create_kwargs"]
        assert arguments["device_requests"] == [{"count": -1, "capabilities": [["gpu"]]}]
        assert {"shm_size", "ipc_mode", "ulimits"} <= set(arguments)
        assert "command" not in variables, "a command of our own would end cancellation of groups"
        shown = [
            name for name in variables["env"] if "AUTH" in name or "KEY" in name or "SECRET" in name
        ]
        assert not shown, f"job variables show in the UI: {shown}"
