"""docker/compose.yaml is one docker-compose takes, keeps to loopback, and holds no secret."""

import os
import subprocess
from typing import Any

import pytest
import yaml

from tests.services.prefect_server import REPOSITORY

SECRETS = {
    "LMPIPE_AUTH_STRING": "lmpipe:auth-secret",
    "LMPIPE_POSTGRES_PASSWORD": "postgres-secret",
    "LMPIPE_REDIS_PASSWORD": "redis-secret",
    "LMPIPE_S3_KEY": "s3-key",
    "LMPIPE_S3_SECRET": "s3-secret",
}
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
    assert set(services) == {
        "postgres", "redis", "seaweedfs", "server", "services", "worker-cpu", "worker-gpu",
    }  # fmt: skip
    assert all(service["image"].startswith("own/") for service in services.values())


@pytest.mark.parametrize("missing", SECRETS)
def test_nothing_starts_without_a_secret(missing: str) -> None:
    done = _config({name: value for name, value in SECRETS.items() if name != missing})
    assert done.returncode != 0
    assert missing in done.stderr


def test_every_server_binds_to_loopback_and_publishes_no_port() -> None:
    services = _services(SECRETS)
    for name in ("postgres", "redis", "seaweedfs", "server"):
        assert "127.0.0.1" in " ".join(services[name]["command"]), name
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
    for name in ("postgres", "redis", "seaweedfs", "server"):
        command = " ".join(services[name]["command"])
        assert "127.0.0.9" in command, name
        assert "127.0.0.1" not in command, name
    assert services["worker-cpu"]["environment"]["PREFECT_API_URL"].startswith("http://127.0.0.9:")
