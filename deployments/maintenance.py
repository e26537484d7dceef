"""Housekeeping: runs that Prefect's database need not remember, and a store's garbage.

Prefect's own vacuum (`PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED=events,flow_runs`, on in
docker/compose.yaml) drops every run 90 days after its end, and what hangs on it. This flow is not a
second one: it is for what that setting cannot say (other ages by tag, name or state, such as sweep
points after a week), and for a server without it, as `lmpipe up` has. It deletes through the API,
so it needs neither the database's address nor its password, and works on PostgreSQL and SQLite.

A run is deleted by a condition that the server checks in the same transaction (final state, ended
before the cutoff), so one that somebody resumes meanwhile stays. What is left of a run whose
deletion was interrupted, its artifacts, is what Prefect's vacuum calls orphans.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.artifacts import gc
from lmpipe.artifacts.retention import RetentionPolicy
from lmpipe.artifacts.store import Store

BATCH = 50  # the most that the server deletes in one transaction
PAGE = 200  # the most that it lists in one answer


class FinalState(StrEnum):
    """A state that a run never leaves by itself."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CRASHED = "CRASHED"
    CANCELLED = "CANCELLED"


class RunRetention(BaseModel):
    """Which flow runs are deleted, with their task runs, logs and artifacts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    days: float = Field(
        30.0, ge=0, le=3650, description="Runs that ended more than so many days ago go."
    )
    states: tuple[FinalState, ...] = Field(
        tuple(FinalState), min_length=1, description="States of the runs that go."
    )
    tags: tuple[str, ...] = Field(
        (), max_length=50, description="Only runs with all of these tags; empty: any."
    )
    name: str = Field(
        "", max_length=200, description="Only runs whose name contains this; empty: any."
    )
    at_most: int = Field(
        10_000, ge=0, le=1_000_000, description="No more runs than this at a time; 0: none."
    )


@dataclass
class Swept:
    """What was deleted, or would be."""

    runs: int = 0
    artifacts: int = 0
    by_state: dict[str, int] = field(default_factory=dict)


def run_filter(retention: RunRetention, now: datetime) -> dict[str, Any]:
    """Return the server's filter of the runs that go; subflow runs go after their parents."""
    wanted: dict[str, Any] = {
        "state": {"type": {"any_": [state.value for state in retention.states]}},
        "end_time": {"before_": (now - timedelta(days=retention.days)).isoformat()},
        "parent_task_run_id": {"is_null_": True},
    }
    if retention.tags:
        wanted["tags"] = {"all_": list(retention.tags)}
    if retention.name:
        wanted["name"] = {"like_": retention.name}
    return wanted


def sweep_runs(
    client: Any,
    retention: RunRetention,
    *,
    preview: bool = False,
    now: datetime | None = None,
) -> Swept:
    """Delete what the retention lets go, in batches, and say how many.

    Args:
        client: Prefect's synchronous client.
        preview: count only.
        now: the time from which ages count; None: this moment.
    """
    wanted, swept = run_filter(retention, now or datetime.now(UTC)), Swept()
    if preview:
        swept.runs = min(
            retention.at_most, _post(client, "/flow_runs/count", {"flow_runs": wanted})
        )
        return swept
    while swept.runs < retention.at_most:
        limit = min(BATCH, retention.at_most - swept.runs)
        found = _post(client, "/flow_runs/filter", {"flow_runs": wanted, "limit": limit})
        states = {run["id"]: run["state_type"] for run in found}
        # the ids with the condition again: of what changed meanwhile nothing is deleted
        body = {"flow_runs": wanted | {"id": {"any_": list(states)}}, "limit": limit}
        deleted = _post(client, "/flow_runs/bulk_delete", body)["deleted"] if states else []
        if not deleted:
            break
        swept.runs += len(deleted)
        for run in deleted:
            state = states.get(run, "")
            swept.by_state[state] = swept.by_state.get(state, 0) + 1
        swept.artifacts += _delete_artifacts(client, deleted)
    return swept


def _delete_artifacts(client: Any, runs: list[str]) -> int:
    """Delete the artifacts of runs; deleting a run deletes its logs, but leaves these."""
    from prefect.exceptions import ObjectNotFound

    deleted = 0
    while True:
        body = {"artifacts": {"flow_run_id": {"any_": runs}}, "limit": PAGE}
        page = _post(client, "/artifacts/filter", body)
        if not page:
            return deleted
        for artifact in page:
            try:
                client.request("DELETE", f"/artifacts/{artifact['id']}")
            except ObjectNotFound:
                continue  # the server's own vacuum was faster
            deleted += 1


def keep_house(
    runs: RunRetention, store: str, artifacts: RetentionPolicy, preview: bool
) -> list[dict[str, Any]]:
    """Sweep runs, and collect a store's garbage if one is named; return what to show.

    Returns:
        Rows of a table: what, how many went (or would), and how many bytes.
    """
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        swept = sweep_runs(client, runs, preview=preview)
    rows: list[dict[str, Any]] = [
        {"what": "flow runs", "deleted": swept.runs, "bytes": None},
        *(
            {"what": f"flow runs: {state}", "deleted": number, "bytes": None}
            for state, number in sorted(swept.by_state.items())
        ),
        {"what": "their artifacts in Prefect", "deleted": swept.artifacts, "bytes": None},
    ]
    return rows + (_collect(store, artifacts, preview) if store else [])


def _collect(root: str, policy: RetentionPolicy, preview: bool) -> list[dict[str, Any]]:
    store = Store(root)
    if preview:
        going = [verdict for verdict in gc.preview(store, policy) if verdict.freed]
        freed = sum(verdict.freed for verdict in going)
        return [{"what": f"artifacts in {root}", "deleted": len(going), "bytes": freed}]
    done = gc.collect(store, policy, say=print)
    return [{"what": f"artifacts in {root}", "deleted": done.artifacts, "bytes": done.bytes}]


def _post(client: Any, path: str, body: dict[str, Any]) -> Any:
    return client.request("POST", path, json=body).json()
