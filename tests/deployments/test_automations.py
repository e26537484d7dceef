"""What the server is told to do by itself."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.server.events.actions import CallWebhook, ServerActionTypes
from prefect.server.events.jinja_filters import all_filters
from prefect.server.events.schemas.automations import AutomationCore
from prefect.server.utilities.user_templates import (
    register_user_template_filters,
    render_user_template_sync,
)
from pydantic import TypeAdapter

from deployments.automations import ALARMS, Channel, crash_zombies, notify, requeue_crashed

CHANNELS = [
    Channel("webhook/lmpipe", "00000000-0000-0000-0000-000000000001", takes_json=True),
    Channel("slack-webhook/lmpipe", "00000000-0000-0000-0000-000000000002", takes_json=False),
]


def render(template: str, event: str, payload: dict[str, Any]) -> str:
    """Render as the server does, for an event of a run with an awkward name."""
    register_user_template_filters(all_filters)
    resource = {
        "prefect.resource.name": 'select["a"]',
        "prefect.state-name": "Failed",
        "prefect.state-message": 'said "no"\nand <left>',
        "prefect.run-count": "2",
    }
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    context = {
        "event": SimpleNamespace(event=event, resource=resource, payload=payload, occurred=moment),
        "flow": SimpleNamespace(name="pipeline"),
        "flow_run": SimpleNamespace(name='the "best"', id="4711"),
    }
    return render_user_template_sync(template, context)


@pytest.mark.parametrize(
    "automation", [crash_zombies(), requeue_crashed(), *notify(CHANNELS)], ids=lambda a: a["name"]
)
def test_the_server_takes_each_automation(automation: dict[str, Any]) -> None:
    AutomationCore.model_validate(automation)
    for action in automation["actions"]:
        TypeAdapter(ServerActionTypes).validate_python(action)


def test_a_run_is_queued_again_only_after_a_crash_and_only_so_many_times() -> None:
    trigger = requeue_crashed(3)["trigger"]
    assert trigger["match"] == {
        "prefect.state-type": "CRASHED",
        "prefect.run-count": ["1", "2", "3"],
    }
    assert trigger["match_related"] == {"prefect.resource.id": "prefect.tag.lmpipe"}


def test_without_a_channel_nobody_is_notified() -> None:
    assert notify([]) == []


def test_every_notification_goes_to_every_channel() -> None:
    made = notify(CHANNELS)
    assert len(made) == 1 + len(ALARMS)
    for automation in made:
        kinds = [action["type"] for action in automation["actions"]]
        assert kinds == ["call-webhook", "send-notification"]


@pytest.mark.parametrize("number", range(1 + len(ALARMS)))
def test_the_json_for_a_webhook_holds_any_text(number: int) -> None:
    (action, _) = notify(CHANNELS)[number]["actions"]
    payload = CallWebhook.model_validate(action).payload
    message = 'kept "3" of 9\n\\ {{ event }} <b>'
    text = render(payload, "lmpipe.x", {"message": message, "values": {"kept": 3, "limit": 0.5}})
    body = json.loads(text)
    assert body["event"] == "lmpipe.x" and body["flow_run"] == "4711"
    assert body["occurred"] == "2026-01-02T00:00:00+00:00"
    assert body["values"] == {"kept": 3, "limit": 0.5}
    if number == 0:
        assert body["subject"] == 'pipeline the "best": Failed'
        assert body["text"].startswith('said "no"\nand <left>\nTry 2 of pipeline the "best": ')
    else:
        assert body["subject"] == 'lmpipe.x in select["a"]'
        assert body["text"].startswith(message)


def test_a_failure_has_no_values_and_is_still_json() -> None:
    (action, _) = notify(CHANNELS)[0]["actions"]
    assert json.loads(render(action["payload"], "prefect.flow-run.Failed", {}))["values"] == {}
