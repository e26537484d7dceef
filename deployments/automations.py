"""What the server does by itself, as its API takes it.

A crashed run goes back to Scheduled under its own id, so that the UI shows one run with its whole
history, and parameters, queue and job variables stay. A new run of the deployment, the alternative,
copies its default parameters and not the run's. Because artifacts are addressed by content, the run
finds what it had finished, and a training stage goes on from its newest checkpoint.

The number of tries needs no counter of ours: Prefect counts how often a run has been Running, the
event of its crash carries that count, and the automation matches the counts that may go on. Failed
and Cancelled runs do not match, nor do runs without a deployment, as those in a terminal.
"""

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

# Three heartbeats at Prefect's default of 180 s, and one minute for a server that was away: to mark
# a run of three days as crashed for one late message costs more than ten minutes of waiting.
ZOMBIE_SECONDS = 600.0
# On a server that others use too, only runs of our deployments; every deployment has this tag.
OURS = {"prefect.resource.id": "prefect.tag.lmpipe"}

# A server that was not told PREFECT_UI_URL knows no link.
_RUN = "{{ flow.name }} {{ flow_run.name }}: {{ (flow_run|ui_url) or flow_run.id }}"
_FAILURE = (
    "{{ flow.name }} {{ flow_run.name }}: {{ event.resource['prefect.state-name'] }}",
    "{{ event.resource['prefect.state-message'] }}\nTry {{ event.resource['prefect.run-count'] }} "
    "of " + _RUN,
)
_ALARM = (
    "{{ event.event }} in {{ event.resource['prefect.resource.name'] }}",
    "{{ event.payload['message'] }}\n" + _RUN,
)
ALARMS = {
    "lmpipe.training.spike": "Notify of loss spikes",
    "lmpipe.curation.contamination": "Notify of contamination",
    "lmpipe.curation.low-yield": "Notify of low yield",
}


@dataclass(frozen=True)
class Channel:
    """A block that messages go to.

    Args:
        name: type and name of the block, such as webhook/lmpipe.
        block: id of its document.
        takes_json: whether it takes JSON, as a Webhook block; else a subject and a text.
    """

    name: str
    block: str
    takes_json: bool


def crash_zombies(within_seconds: float = ZOMBIE_SECONDS) -> Json:
    """Return the automation that marks a run as crashed when its heartbeats end.

    A run sends heartbeats until its last event. Without this a run whose machine has gone stays
    Running for ever, and holds the slots of its pool and its deployment.
    """
    return {
        "name": "Crash flow runs without heartbeat",
        "description": f"A run silent for {within_seconds:g} s is marked Crashed.",
        "enabled": True,
        "trigger": {
            "type": "event",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "after": ["prefect.flow-run.heartbeat"],
            "expect": ["prefect.flow-run.*"],
            "for_each": ["prefect.resource.id"],
            "posture": "Proactive",
            "threshold": 1,
            "within": within_seconds,
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "state": "CRASHED",
                "name": "Crashed",
                "message": f"No heartbeat for {within_seconds:g} s.",
            }
        ],
    }


def requeue_crashed(max_requeues: int = 2) -> Json:
    """Return the automation that queues a crashed run again, at most so many times."""
    tries = [str(number) for number in range(1, max_requeues + 1)]
    match = {"prefect.state-type": "CRASHED", "prefect.run-count": tries}
    message = f"Queued again after a crash; at most {max_requeues} times."
    return {
        "name": "Requeue crashed flow runs",
        "description": f"A crashed run goes on, at most {max_requeues} times; see lmpipe deploy.",
        "enabled": True,
        "trigger": _on(["prefect.flow-run.*"], match),
        "actions": [
            {
                "type": "change-flow-run-state",
                "state": "SCHEDULED",
                "name": "AwaitingRetry",
                "message": message,
            }
        ],
    }


def notify(channels: list[Channel]) -> list[Json]:
    """Return the automations that tell the channels of failures and alarms; none without one.

    A cancelled run is neither failed nor crashed and says nothing.
    """
    if not channels:
        return []
    ended = {"prefect.state-type": ["FAILED", "CRASHED"]}
    failed = _on(["prefect.flow-run.*"], ended)
    alarms = [
        _notification(name, _on([event], {}), _ALARM, channels) for event, name in ALARMS.items()
    ]
    return [_notification("Notify of failed and crashed runs", failed, _FAILURE, channels), *alarms]


def _notification(name: str, trigger: Json, text: tuple[str, str], channels: list[Channel]) -> Json:
    return {
        "name": name,
        "description": f"To {', '.join(channel.name for channel in channels)}.",
        "enabled": True,
        "trigger": trigger,
        "actions": [_message(channel, *text) for channel in channels],
    }


def _on(events: list[str], match: Json) -> Json:
    """Return a trigger that fires at once, for each such event of our deployments' runs."""
    return {
        "type": "event",
        "match": match,
        "match_related": OURS,
        "expect": events,
        "for_each": ["prefect.resource.id"],
        "posture": "Reactive",
        "threshold": 1,
        "within": 0,
    }


def _message(channel: Channel, subject: str, text: str) -> Json:
    if not channel.takes_json:
        block = {"type": "send-notification", "block_document_id": channel.block}
        return block | {"subject": subject, "body": text}
    fields = {
        "subject": "subject",
        "text": "text",
        "event": "event.event",
        "occurred": "event.occurred.isoformat()",
        "flow_run": "flow_run.id|string",
        "values": "event.payload.get('values', {})",
    }
    body = ", ".join(f'"{name}": {{{{ {value}|tojson }}}}' for name, value in fields.items())
    payload = (
        f"{{% set subject %}}{subject}{{% endset %}}{{% set text %}}{text}{{% endset %}}{{{body}}}"
    )
    return {
        "type": "call-webhook",
        "block_document_id": channel.block,
        "payload": payload,
    }
