"""docker/compose.yaml brought up, on free ports, with images from Debian and PyPI."""

import os
import random
import secrets
import socket
import subprocess
from pathlib import Path
from typing import Any

import boto3
import httpx
import psutil

from tests.services.docker_engine import DockerEngine
from tests.services.prefect_server import REPOSITORY, PrefectServer
from tests.services.processes import ServiceError, wait_until

FILE = REPOSITORY / "docker" / "compose.yaml"
SERVICES = {"postgres", "redis", "seaweedfs", "server", "services", "worker-cpu"}
WITH_SECOND_PORT = ("S3", "S3_MASTER", "S3_VOLUME", "S3_FILER")
BIND = "127.0.0.9"  # a head node's own address is given as this one is, and 127.0.0.1 is none of it
PORTS = ("SERVER", "POSTGRES", *WITH_SECOND_PORT, "CPU_WORKER")


class Compose(PrefectServer):
    """The shared stack in containers; asked for runs as any other Prefect server."""

    def __init__(self, engine: DockerEngine, folder: Path, service_image: str) -> None:
        self.engine, self.folder = engine, folder
        self.project = f"lmpipe{secrets.token_hex(4)}"
        self.ports = dict(zip(PORTS, _free_pairs(len(PORTS)), strict=True))
        self.port = self.ports["SERVER"]
        self.api_url = f"http://{BIND}:{self.port}/api"
        self.auth_string = f"lmpipe:{secrets.token_hex(16)}"
        self.secrets = {
            "LMPIPE_AUTH_STRING": self.auth_string,
            "LMPIPE_POSTGRES_PASSWORD": secrets.token_hex(16),
            "LMPIPE_S3_KEY": secrets.token_hex(8),
            "LMPIPE_S3_SECRET": secrets.token_hex(16),
        }
        named = {f"LMPIPE_{name}_PORT": str(port) for name, port in self.ports.items()}
        foreign = ("POSTGRES", "REDIS", "SEAWEEDFS")
        overridden = {f"LMPIPE_{name}_IMAGE": service_image for name in foreign}
        self._variables = self.secrets | named | overridden | {"LMPIPE_BIND": BIND}

    def compose(self, *arguments: str, timeout_seconds: float = 240) -> str:
        """Run docker-compose on the stack and return its output."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LMPIPE_")}
        done = subprocess.run(
            ["docker-compose", "--file", str(FILE), "--project-name", self.project, *arguments],
            env=clean | self.engine.environment | self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_seconds,
        )
        if done.returncode != 0:
            raise ServiceError(f"docker-compose {' '.join(arguments)}:\n{done.stdout[-6000:]}")
        return done.stdout

    def up(self) -> None:
        """Start all services; compose itself waits for those that others depend on."""
        self.compose("up", "--detach")
        self.wait_until_well(timeout_seconds=240)  # services that died are started again in 90 s

    def start_in_reverse(self) -> None:
        """Start the stopped containers one by one, what others need last, as a booting host may."""
        for service in ("worker-cpu", "services", "server", "seaweedfs", "redis", "postgres"):
            self.engine.docker("start", self.container(service))

    def wait_until_well(self, timeout_seconds: float) -> None:
        """Return once server and worker answer and no service of the server's is dead."""
        wait_until(self.healthy, timeout_seconds=timeout_seconds, what="an answer of the API")
        wait_until(
            self._worker_answers, timeout_seconds=timeout_seconds, what="the worker's health"
        )
        wait_until(
            lambda: self.health("services") == "healthy",
            timeout_seconds=timeout_seconds,
            what="the health of the server's services",
            every_seconds=1,
        )

    def container(self, service: str) -> str:
        """Return the name of a service's container."""
        return f"{self.project}_{service}_1"

    def health(self, service: str) -> str:
        """Return what a container's health check says: starting, healthy or unhealthy."""
        show = "--format={{.State.Health.Status}}"
        return self.engine.docker("inspect", show, self.container(service)).strip()

    def requeued(self, run: str) -> bool:
        """Whether the server has queued a crashed run again."""
        states = self.request("GET", f"/flow_run_states/?flow_run_id={run}")
        return "AwaitingRetry" in [state["name"] for state in states]

    def _worker_answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.ports['CPU_WORKER']}/health").is_success
        except httpx.TransportError:
            return False

    def down(self) -> None:
        """End the stack, delete its data, and make sure that nothing of it is left."""
        self.compose("down", "--volumes")
        ours = f"--filter=label=com.docker.compose.project={self.project}"
        left = self.engine.docker("ps", "--all", "--quiet", ours).split()
        left += self.engine.docker("volume", "ls", "--quiet", ours).split()
        left += [str(port) for port in self.ports.values() if not _is_free(port)]
        assert not left, f"left after down: {left}"

    def task_state(self, run: str, task: str) -> str:
        """Return the state of a run's task, "" before it has one."""
        body = {"flow_runs": {"id": {"any_": [run]}}, "task_runs": {"name": {"any_": [task]}}}
        found = self.request("POST", "/task_runs/filter", body)
        return str(found[0]["state_type"]) if found else ""

    def processes(self) -> list[psutil.Process]:
        """Return every process of every container, as the host sees them."""
        found = []
        for container in self.engine.docker("ps", "--quiet").split():
            pid = int(self.engine.docker("inspect", "--format={{.State.Pid}}", container))
            first = psutil.Process(pid)
            found += [first, *first.children(recursive=True)]
        return found

    @property
    def store_environment(self) -> dict[str, str]:
        """Variables by which a client finds and enters the stack's S3."""
        return {
            "AWS_ENDPOINT_URL": f"http://{BIND}:{self.ports['S3']}",
            "AWS_ACCESS_KEY_ID": self.secrets["LMPIPE_S3_KEY"],
            "AWS_SECRET_ACCESS_KEY": self.secrets["LMPIPE_S3_SECRET"],
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def s3(self, secret: str | None = None) -> Any:
        """Return a boto3 client of the stack's S3."""
        environment = self.store_environment
        return boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=secret or environment["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        )


def _free_pairs(count: int) -> list[int]:
    """Return ports that are free together with the one 10000 higher, which SeaweedFS takes."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(20000, 30000)
        if _is_free(port) and _is_free(port + 10000):
            found.add(port)
    return sorted(found)


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections linger
        try:
            listener.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True
