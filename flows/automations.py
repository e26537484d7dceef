"""What the server does by itself, as its API takes it."""

from typing import Any

# Three heartbeats at Prefect's default of 180 s, and one minute for a server that was away: to mark
# a run of three days as crashed for one late message costs more than ten minutes of waiting.
ZOMBIE_SECONDS = 600.0


def crash_zombies(within_seconds: float = ZOMBIE_SECONDS) -> dict[str, Any]:
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


AUTOMATIONS = [crash_zombies()]
