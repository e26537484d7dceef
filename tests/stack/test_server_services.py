"""docker/services.py: the services of Prefect's server, watched, whatever was started when."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client

from deployments.automations import requeue_crashed
from tests.services.postgres import Postgres
from tests.services.prefect_server import REPOSITORY, PrefectServer, redis_settings
from tests.services.processes import ServiceProcess, wait_until
from tests.services.redis import Redis

SERVICES = [sys.executable, str(REPOSITORY / "docker" / "services.py")]
PATIENCE_SECONDS = "25"


def check(environment: dict[str, str]) -> tuple[int, str]:
    """Run the container's health check."""
    command = [*SERVICES, "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert not done.stderr
    return done.returncode, done.stdout


class Head:
    """The part of the shared stack that keeps runs, in processes instead of containers."""

    def __init__(self, folder: Path) -> None:
        self.postgres, self.redis = Postgres(), Redis(folder / "redis")
        self.postgres.start()
        self.redis.start()
        self.api = PrefectServer(folder, postgres=self.postgres, redis=self.redis, services=False)
        self.environment = self.api.server_environment
        self.environment["PREFECT_API_DATABASE_MIGRATE_ON_START"] = "false"
        command = [*SERVICES, "--patience", PATIENCE_SECONDS]
        self.services = ServiceProcess("services", command, folder, environment=self.environment)

    def migrate(self) -> None:
        """Do what the service `migrate` does."""
        command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
        subprocess.run(command, env=self.environment, check=True, capture_output=True, timeout=170)

    def start_services(self) -> None:
        """Start them and return once they are well."""
        self.services.start(lambda: check(self.environment)[0] == 0, timeout_seconds=120)

    def services_give_up(self) -> str:
        """Start the services and return what they end with."""
        self.services.start(lambda: True, timeout_seconds=1)
        wait_until(lambda: not self.services.running, timeout_seconds=120, what="their end")
        assert self.services._process is not None and self.services._process.returncode == 1
        return self.services.log_tail()

    def crash(self, deployment: str) -> str:
        """Lead a run into a crash, as a worker and an engine do."""
        run = self.api.submit(deployment)
        for state in ("PENDING", "RUNNING", "CRASHED"):
            body = {"state": {"type": state}, "force": False}
            self.api.request("POST", f"/flow_runs/{run}/set_state", body)
        return run

    def wait_until_queued_again(self, run: str) -> None:
        wait_until(
            lambda: (
                self.api.request("GET", f"/flow_runs/{run}")["state"]["name"] == "AwaitingRetry"
            ),
            timeout_seconds=60,
            what="the requeue of a crashed run",
        )

    def delete(self) -> None:
        self.services.stop(grace_seconds=3)
        self.api.process.stop(grace_seconds=5)
        self.redis.delete()
        self.postgres.delete()


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    made = Head(tmp_path)
    try:
        yield made
    finally:
        made.delete()


def test_services_that_came_too_early_end_and_work_when_started_again(head: Head) -> None:
    """Before the migration, then before the database; Prefect's own command lives on, dead."""
    assert "reactive-triggers: the consumer group is missing" in head.services_give_up()
    assert "reactive-triggers" in check(head.environment)[1]
    head.migrate()
    head.postgres.stop()
    assert "reactive-triggers: the consumer group is missing" in head.services_give_up()
    head.postgres.start()

    head.start_services()
    head.api.start()
    head.api.create_pool("idle")
    head.api.request("POST", "/automations/", requeue_crashed())
    deployment = head.api.create_deployment(
        "tests/stack/ops_flows.py:wait_for_ever", pool="idle", tags=("lmpipe",)
    )
    head.wait_until_queued_again(head.crash(deployment))

    head.redis.process.kill()
    assert check(head.environment)[1].startswith("Redis: ")
    head.redis.start()  # and has forgotten every group
    wait_until(
        lambda: check(head.environment)[0] == 0, timeout_seconds=60, what="their return to Redis"
    )
    head.wait_until_queued_again(head.crash(deployment))
    assert head.services.running, "it took no new start"


@pytest.fixture
def known(redis: Redis) -> Iterator[tuple[Any, dict[str, str]]]:
    """An emptied pair of databases in which all is well, and the check's environment."""
    settings = redis_settings(redis.url(8), docket_url=redis.url(9))
    with (
        redis_client.from_url(redis.url(8)) as events,
        redis_client.from_url(redis.url(9)) as docket,
    ):
        for name in ("event-persister", "reactive-triggers", "task-run-recorder"):
            events.xgroup_create("events", name, mkstream=True)
        events.xgroup_create("actions", "actions", mkstream=True)
        for stream in ("events", "actions"):
            events.xadd(stream, {"data": "1"})
            for group in events.xinfo_groups(stream):
                events.xreadgroup(group["name"], "living", {stream: ">"})
        task = "prefect:task-workers:evaluate_proactive_triggers_periodic"
        docket.zadd(task, {"host#7": time.time()})
        yield (events, docket), settings
        events.flushdb()
        docket.flushdb()


def test_a_missing_group_an_unread_message_and_a_silent_docket_are_each_named(
    known: tuple[Any, dict[str, str]],
) -> None:
    (events, docket), environment = known
    assert check(environment) == (0, "\n")
    events.xgroup_destroy("events", "reactive-triggers")
    assert check(environment) == (1, "reactive-triggers: the consumer group is missing\n")
    events.xgroup_create("events", "reactive-triggers", id="$")
    events.xreadgroup("reactive-triggers", "living", {"events": ">"}, block=1)
    events.delete("actions")
    assert check(environment) == (1, "actions: its stream is missing\n")
    events.xgroup_create("actions", "actions", mkstream=True)
    events.xadd("actions", {"data": "2"}, id=f"{int(time.time() - 40) * 1000}-0")
    assert check(environment) == (1, "actions: no consumer has read for 30 s\n")
    events.xreadgroup("actions", "living", {"actions": ">"})
    docket.zadd("prefect:task-workers:evaluate_proactive_triggers_periodic", {"host#7": 1.0})
    assert check(environment) == (1, "docket: no worker has reported for 30 s\n")


def test_every_service_of_prefect_that_reads_events_is_watched() -> None:
    """A new one in another version of Prefect would be left out unnoticed."""
    from prefect.server.services.base import RunInWebservers, Service

    reading = {
        service.__name__
        for service in Service.enabled_services()
        if not issubclass(service, RunInWebservers)
    }
    assert reading == {"Actions", "EventPersister", "ReactiveTriggers", "TaskRunRecorder"}
