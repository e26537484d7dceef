"""What the server does by itself: it tells of failures and alarms, and of nothing else."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deployments.automations import ALARMS
from tests.services.prefect_server import REPOSITORY, PrefectServer, ProcessWorker
from tests.services.processes import wait_until
from tests.services.receiver import Receiver
from tests.stack.test_deploy import lmpipe

FLOWS = "tests/stack/ops_flows.py"


@dataclass
class Office:
    """The server, with both kinds of blocks pointing at a receiver."""

    server: PrefectServer
    receiver: Receiver
    printed: str
    token: str
    webhook: str = "/webhook"
    slack: str = "/hooks"

    def __post_init__(self) -> None:
        self.webhook += f"/{self.token}"
        self.slack += f"/{self.token}"

    def told(self, text: str, flow_run: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Wait for the messages about a run on both channels: webhook, Slack."""
        name = self.server.request("GET", f"/flow_runs/{flow_run}")["name"]

        def on(path: str) -> list[dict[str, Any]]:
            return [post for post in self.receiver.at(path, text) if name in json.dumps(post)]

        return (
            self.receiver.wait(lambda: on(self.webhook), f"{text!r} of {name} to the webhook"),
            self.receiver.wait(lambda: on(self.slack), f"{text!r} of {name} to Slack"),
        )

    def run_in_state(self, deployment: str, *states: str) -> str:
        """Make a run and lead it through states, as a worker and an engine do."""
        run = self.server.submit(deployment)
        for state in states:
            self.set_state(run, state)
        return run

    def wait_until_queued(self, run: str) -> None:
        wait_until(
            lambda: self.server.state(run) == "SCHEDULED",
            timeout_seconds=45,
            what="the requeue of a crashed run",
        )

    def set_state(self, run: str, state: str) -> None:
        body = {"state": {"type": state, "message": "set by the test"}, "force": False}
        answer = self.server.request("POST", f"/flow_runs/{run}/set_state", body)
        assert answer["status"] == "ACCEPT", answer


@pytest.fixture(scope="module")
def office(deployed: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """Deploy with the URLs of a receiver; remove blocks and automations afterwards.

    Slack's block takes no host but Slack's own, except through Apprise's other schemes. Mattermost,
    which takes messages in Slack's format, stands in: same block type, same action, plain HTTP.
    What the block sends to Slack itself is in tests/deployments/test_notifications.py.
    """
    receiver, token = Receiver(), secrets.token_hex(13)
    urls = {
        "LMPIPE_NOTIFY_WEBHOOK_URL": f"http://127.0.0.1:{receiver.port}/webhook/{token}",
        "LMPIPE_NOTIFY_SLACK_URL": f"mmost://127.0.0.1:{receiver.port}/{token}",
    }
    folder = tmp_path_factory.mktemp("office")
    options = ["deploy", "--folder", str(REPOSITORY)]
    printed = lmpipe(deployed, folder, *options, environment=urls)
    try:
        yield Office(deployed, receiver, printed, token)
    finally:
        for automation in notifications(deployed):
            deployed.request("DELETE", f"/automations/{automation['id']}")
        for block in blocks(deployed):
            deployed.request("DELETE", f"/block_documents/{block['id']}")
        receiver.stop()


def notifications(server: PrefectServer) -> list[dict[str, Any]]:
    found = server.request("POST", "/automations/filter", {})
    return [automation for automation in found if automation["name"].startswith("Notify of")]


def blocks(server: PrefectServer) -> list[dict[str, Any]]:
    found = server.request("POST", "/block_documents/filter", {"include_secrets": False})
    return [block for block in found if block["name"] == "lmpipe"]


@pytest.fixture(scope="module")
def idle(office: Office) -> str:
    """A deployment whose runs nobody takes: its pool has no worker."""
    office.server.create_pool("idle")
    return office.server.create_deployment(f"{FLOWS}:wait_for_ever", pool="idle", tags=("lmpipe",))


def test_deploy_makes_blocks_and_automations_and_shows_no_url(
    office: Office, tmp_path: Path
) -> None:
    assert "block webhook/lmpipe: created" in office.printed
    assert "notified of failures and alarms: webhook/lmpipe, slack-webhook/lmpipe" in office.printed
    made = notifications(office.server)
    assert {a["name"] for a in made} == {"Notify of failed and crashed runs", *ALARMS.values()}
    again = lmpipe(office.server, tmp_path, "deploy", "--folder", str(REPOSITORY))
    assert again.splitlines()[-1] == "0 changes", again
    assert [a["id"] for a in notifications(office.server)] == [a["id"] for a in made]
    shown = office.printed + again + json.dumps(made) + json.dumps(blocks(office.server))
    assert office.token not in shown
    assert "*****" in json.dumps(blocks(office.server))


def test_a_failed_run_and_each_alarm_are_told_with_their_numbers(
    office: Office, process_worker: ProcessWorker, tmp_path: Path
) -> None:
    deployment = office.server.create_deployment(
        f"{FLOWS}:run_alarming", pool="cpu", tags=("lmpipe",)
    )
    run = office.server.submit(deployment, store=str(tmp_path / "store"))
    assert office.server.wait_for(run) == "FAILED"
    webhook, slack = office.told("fails on purpose", run)
    assert webhook["subject"].endswith(": Failed")
    assert webhook["flow_run"] == run and webhook["event"] == "prefect.flow-run.Failed"
    assert run in webhook["text"], "a link, or the id where the server knows no address of the UI"
    assert webhook["subject"] in slack["text"] and run in slack["text"]

    expected = {
        "lmpipe.training.spike": {"step": 70, "loss": 9.0, "median": 2.0, "deviation": 0.01},
        "lmpipe.curation.low-yield": {"documents": 1000, "kept": 3, "limit": 0.02},
        "lmpipe.curation.contamination": {"documents": 100, "flagged": 30, "limit": 0.05},
    }
    for event, values in expected.items():
        webhook, slack = office.told(event, run)
        assert webhook["values"] == values
        assert webhook["subject"] == f"{event} in alarming"
        assert webhook["text"].splitlines()[0] in slack["text"]
    assert office.server.request("GET", f"/flow_runs/{run}")["run_count"] == 1
    wait_until(
        lambda: sum("ALARM" in line for line in office.server.logs(run)) == 3,
        timeout_seconds=20,
        what="three warnings in the run's log",
    )


def test_a_crashed_run_is_told_and_queued_again_at_most_twice(office: Office, idle: str) -> None:
    server = office.server
    run = office.run_in_state(idle)
    for number in (1, 2, 3):
        office.set_state(run, "PENDING")
        office.set_state(run, "RUNNING")
        office.set_state(run, "CRASHED")
        webhook, _ = office.told(f"Try {number} of", run)
        assert webhook["event"] == "prefect.flow-run.Crashed"
        if number < 3:
            office.wait_until_queued(run)
            state = server.request("GET", f"/flow_runs/{run}")["state"]
            assert state["name"] == "AwaitingRetry" and "at most 2 times" in state["message"]
    end_of_queue(office, idle)
    assert server.state(run) == "CRASHED"
    assert server.request("GET", f"/flow_runs/{run}")["run_count"] == 3


def end_of_queue(office: Office, idle: str) -> None:
    """Wait until the server has acted on all events so far: it takes them in order."""
    last = office.run_in_state(idle, "PENDING", "RUNNING", "CRASHED")
    office.told("set by the test", last)
    office.wait_until_queued(last)
    office.server.request("DELETE", f"/flow_runs/{last}")


def test_a_cancelled_or_failed_run_is_not_queued_again_and_a_cancelled_one_tells_nobody(
    office: Office, idle: str, process_worker: ProcessWorker, tmp_path: Path
) -> None:
    server = office.server
    failed = office.run_in_state(idle, "PENDING", "RUNNING", "FAILED")
    deployment = server.create_deployment(f"{FLOWS}:wait_for_ever", pool="cpu", tags=("lmpipe",))
    cancelled = server.submit(deployment, started=str(tmp_path / "started"))
    wait_until((tmp_path / "started").exists, timeout_seconds=90, what="the start")
    server.cancel(cancelled)
    assert server.wait_for(cancelled, timeout_seconds=60) == "CANCELLED"
    end_of_queue(office, idle)
    assert (server.state(failed), server.state(cancelled)) == ("FAILED", "CANCELLED")
    office.told("set by the test", failed)
    name = server.request("GET", f"/flow_runs/{cancelled}")["name"]
    assert not [post for post in office.receiver.posts if name in json.dumps(post)]


def test_the_run_of_another_team_is_neither_told_nor_queued_again(
    office: Office, idle: str
) -> None:
    server = office.server
    foreign = server.create_deployment(f"{FLOWS}:wait_for_ever", pool="idle")
    run = office.run_in_state(foreign, "PENDING", "RUNNING", "CRASHED")
    end_of_queue(office, idle)
    assert server.state(run) == "CRASHED"
    name = server.request("GET", f"/flow_runs/{run}")["name"]
    assert not [post for post in office.receiver.posts if name in json.dumps(post)]


def test_the_url_is_in_no_log_and_no_event(office: Office) -> None:
    assert office.receiver.posts, "messages were sent"
    assert office.token not in office.server.process.log_path.read_text()
    events = office.server.request("POST", "/events/filter", {"limit": 50})
    assert office.token not in json.dumps(events)
