"""A real Prefect server and its process workers, each a process of its own on loopback."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from deployments.worker import WORKER_SETTINGS
from tests.services.postgres import Postgres
from tests.services.processes import ServiceProcess, free_port
from tests.services.redis import Redis

REPOSITORY = Path(__file__).parents[2]
FINAL_STATES = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})


def _clean_environment(home: Path) -> dict[str, str]:
    """Return our environment less every Prefect setting, with a Prefect home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return kept | {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLI_PROMPT": "false",
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",
    }


class PrefectServer:
    """`prefect server start` on SQLite, or on PostgreSQL with Redis as in production.

    Args:
        services: whether it runs the server's services too; docker/compose.yaml has them apart.
        prefects_own: whether it is started by Prefect's own command, else by that of `lmpipe up`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        postgres: Postgres | None = None,
        redis: Redis | None = None,
        services: bool = True,
        prefects_own: bool = True,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.api_url = f"http://127.0.0.1:{self.port}/api"
        self.auth_string = f"lmpipe:{secrets.token_hex(16)}"
        home = folder / "server-home"
        home.mkdir(parents=True)
        environment = _clean_environment(home) | {
            "PREFECT_SERVER_API_AUTH_STRING": self.auth_string,
            "PREFECT_SERVER_UI_API_URL": self.api_url,  # --port alone leaves the pages at 4200
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        }
        if postgres is not None:
            database = postgres.create_database(f"prefect_{secrets.token_hex(4)}")
            environment["PREFECT_API_DATABASE_CONNECTION_URL"] = database
        if redis is not None:
            environment |= redis_settings(redis.url(0), docket_url=redis.url(1))
        self.server_environment = environment
        options = ["--host", "127.0.0.1", "--port", str(self.port)]
        options += [] if services else ["--no-services"]
        self.process = ServiceProcess(
            "prefect-server",
            [
                *(sys.executable, "-m", "prefect" if prefects_own else "deployments.sqlite_server"),
                *("server", "start", *options),
            ],
            folder,
            environment=environment,
        )

    @property
    def environment(self) -> dict[str, str]:
        """Full environment for a client process: CLI, worker or script."""
        home = self.folder / "client-home"
        home.mkdir(exist_ok=True)
        return _clean_environment(home) | {
            "PREFECT_API_URL": self.api_url,
            "PREFECT_API_AUTH_STRING": self.auth_string,
        }

    def start(self) -> None:
        """Start, or start again over the same database; a fresh one takes up to 50 s."""
        self.process.start(self.healthy, timeout_seconds=170)

    def healthy(self) -> bool:
        """Whether the API answers and takes our auth string."""
        try:
            return httpx.get(f"{self.api_url}/admin/version", auth=self._auth, timeout=5).is_success
        except httpx.TransportError:
            return False

    @property
    def _auth(self) -> tuple[str, str]:
        user, password = self.auth_string.split(":")
        return user, password

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call the REST API and return its JSON; raises httpx.HTTPStatusError on a refusal.

        The tests speak HTTP rather than use Prefect's client: its settings are global to a
        process, and a test run has several servers.
        """
        response = httpx.request(
            method, f"{self.api_url}{path}", json=body, auth=self._auth, timeout=30
        )
        response.raise_for_status()
        return response.json() if response.content else None

    def create_pool(self, name: str, pool_type: str = "process") -> None:
        """Make a work pool; its worker may come later."""
        self.request("POST", "/work_pools/", {"name": name, "type": pool_type})

    def create_deployment(
        self,
        entrypoint: str,
        *,
        pool: str,
        directory: str = str(REPOSITORY),
        job_variables: Mapping[str, Any] | None = None,
        tags: tuple[str, ...] = (),
    ) -> str:
        """Register `path.py:function` and return the deployment's id.

        Args:
            directory: Where the code lies for the process that runs the flow, absolute: the pull
            step.
            tags: `lmpipe` puts its runs under our automations.
        """
        flow = self.request("POST", "/flows/", {"name": entrypoint.rpartition(":")[2]})
        step = {"prefect.deployments.steps.set_working_directory": {"directory": directory}}
        body = {
            "name": f"test-{secrets.token_hex(4)}",
            "flow_id": flow["id"],
            "entrypoint": entrypoint,
            "work_pool_name": pool,
            "pull_steps": [step],
            "job_variables": dict(job_variables or {}),
            "tags": list(tags),
            "enforce_parameter_schema": False,
        }
        deployment_id: str = self.request("POST", "/deployments/", body)["id"]
        return deployment_id

    def submit(self, deployment_id: str, **parameters: Any) -> str:
        """Queue a run of a deployment and return the run's id."""
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        path = f"/deployments/{deployment_id}/create_flow_run"
        run_id: str = self.request("POST", path, body)["id"]
        return run_id

    def state(self, run_id: str) -> str:
        """Return the type of the run's state, such as RUNNING."""
        state: str = self.request("GET", f"/flow_runs/{run_id}")["state_type"]
        return state

    def wait_for(
        self, run_id: str, states: frozenset[str] = FINAL_STATES, *, timeout_seconds: float = 120
    ) -> str:
        """Return the run's state once it is one of `states`; else fail with the run's log."""
        deadline = time.monotonic() + timeout_seconds
        while (state := self.state(run_id)) not in states:
            if time.monotonic() > deadline or state in FINAL_STATES:
                wanted = ", ".join(sorted(states))
                log = "\n".join(self.logs(run_id))
                raise TimeoutError(f"run is {state}, waited for {wanted}; its log:\n{log}")
            time.sleep(0.5)
        return state

    def logs(self, run_id: str) -> list[str]:
        """Return the messages of the run's log, in order."""
        body = {
            "logs": {"flow_run_id": {"any_": [run_id]}},
            "sort": "TIMESTAMP_ASC",
            "limit": 200,
        }
        return [row["message"] for row in self.request("POST", "/logs/filter", body)]

    def queued_by(self, run_id: str) -> str:
        """Return the id of the run that a run of `rerun` has queued."""
        body = {"artifacts": {"flow_run_id": {"any_": [run_id]}, "key": {"any_": ["queued-run"]}}}
        (link,) = self.request("POST", "/artifacts/filter", body)
        queued: str = link["data"].rpartition("/")[2].rstrip(")")
        return queued

    def lmpipe(self, folder: Path, *arguments: str, **environment: str) -> str:
        """Run the command `lmpipe` as a client of the server and return what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "deployments.cli", *arguments],
            env=self.environment | environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def cancel(self, run_id: str) -> None:
        """Ask for cancellation as UI and CLI do; whoever runs the flow does the rest."""
        body = {"state": {"type": "CANCELLING"}, "force": False}
        self.request("POST", f"/flow_runs/{run_id}/set_state", body)


def redis_settings(url: str, *, docket_url: str) -> dict[str, str]:
    """Return what moves messaging, causal ordering, leases and docket from memory to Redis."""
    return {
        "PREFECT_MESSAGING_BROKER": "prefect_redis.messaging",
        "PREFECT_MESSAGING_CACHE": "prefect_redis.messaging",
        "PREFECT_SERVER_EVENTS_CAUSAL_ORDERING": "prefect_redis.ordering",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect_redis.lease_storage",
        "PREFECT_REDIS_MESSAGING_URL": url,
        "PREFECT_SERVER_DOCKET_URL": docket_url,
    }


class ProcessWorker:
    """A worker of one pool, with the settings of `lmpipe worker`.

    Of the type `process`, or any other type whose package is installed.
    """

    def __init__(
        self,
        server: PrefectServer,
        folder: Path,
        pool: str,
        *,
        worker_type: str = "process",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = f"{pool}-{secrets.token_hex(4)}"
        self._server = server
        self._pool = pool
        settings = (
            server.environment
            | WORKER_SETTINGS
            | {"PREFECT_WORKER_QUERY_SECONDS": "2"}
            | dict(environment or {})
        )
        options = ["--pool", pool, "--type", worker_type, "--name", self.name]
        self.process = ServiceProcess(
            f"worker-{self.name}",
            [sys.executable, "-m", "prefect", "worker", "start", *options],
            folder,
            environment=settings,
        )

    def start(self) -> None:
        """Start and return once the server has had the first heartbeat."""
        self.process.start(self._online, timeout_seconds=90)

    def _online(self) -> bool:
        path = f"/work_pools/{self._pool}/workers/filter"
        return any(row["name"] == self.name for row in self._server.request("POST", path, {}))
