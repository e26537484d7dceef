"""Old flow runs go from Prefect's database (SQLite here), and nothing else does."""

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prefect.client.orchestration import get_client

from deployments.maintenance import RunRetention, run_filter, sweep_runs

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def client() -> Iterator[Any]:
    with get_client(sync_client=True) as opened:
        yield opened


def post(client: Any, path: str, body: dict[str, Any]) -> Any:
    return client.request("POST", path, json=body).json()


def make_run(client: Any, tag: str, state: str, *, artifacts: int = 0) -> str:
    flow = post(client, "/flows/", {"name": "swept"})
    body = {
        "flow_id": flow["id"],
        "name": f"{tag}-{state.lower()}",
        "tags": [tag, "lmpipe"],
        "state": {"type": state},
    }
    run: str = post(client, "/flow_runs/", body)["id"]
    for number in range(artifacts):
        post(client, "/artifacts/", {"key": f"a{number}", "type": "markdown", "flow_run_id": run})
    return run


def exists(client: Any, run: str) -> bool:
    return bool(post(client, "/flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}}))


def test_final_runs_go_with_their_artifacts_and_running_and_other_ones_stay(client: Any) -> None:
    tag = secrets.token_hex(4)
    states = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    final = [make_run(client, tag, state, artifacts=2) for state in states]
    staying = [make_run(client, tag, state) for state in ("RUNNING", "SCHEDULED", "PAUSED")]
    other = make_run(client, secrets.token_hex(4), "COMPLETED", artifacts=1)
    retention = RunRetention(days=0, tags=(tag,))
    assert sweep_runs(client, retention, preview=True).runs == 4
    assert all(exists(client, run) for run in final)
    swept = sweep_runs(client, retention)
    assert (swept.runs, swept.artifacts) == (4, 8)
    assert swept.by_state == dict.fromkeys(states, 1)
    assert not any(exists(client, run) for run in final)
    assert all(exists(client, run) for run in [*staying, other])
    left = post(client, "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": final}}})
    assert left == []
    assert sweep_runs(client, retention).runs == 0


def test_age_state_name_and_the_most_at_a_time_limit_what_goes(client: Any) -> None:
    tag = secrets.token_hex(4)
    run = make_run(client, tag, "FAILED")
    later = datetime.now(UTC) + timedelta(days=31)

    def swept(**limits: Any) -> int:
        return sweep_runs(client, RunRetention(days=30, tags=(tag,), **limits), now=later).runs

    assert sweep_runs(client, RunRetention(days=30, tags=(tag,))).runs == 0
    assert swept(at_most=0) == swept(states=("COMPLETED",)) == swept(name="no such") == 0
    assert exists(client, run)
    assert swept(name=tag) == 1
    assert not exists(client, run)


def test_more_runs_than_one_batch_go_and_no_more_than_asked_for(client: Any) -> None:
    tag = secrets.token_hex(4)
    for _ in range(57):
        make_run(client, tag, "COMPLETED")
    assert sweep_runs(client, RunRetention(days=0, tags=(tag,), at_most=55)).runs == 55
    assert sweep_runs(client, RunRetention(days=0, tags=(tag,))).runs == 2


def test_a_run_that_is_resumed_between_look_and_deletion_stays(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = secrets.token_hex(4)
    run = make_run(client, tag, "FAILED")
    real = client.request

    def resume_first(method: str, path: str, **options: Any) -> Any:
        if path == "/flow_runs/bulk_delete":
            body = {"state": {"type": "SCHEDULED"}, "force": True}
            real("POST", f"/flow_runs/{run}/set_state", json=body)
        return real(method, path, **options)

    monkeypatch.setattr(client, "request", resume_first)
    assert sweep_runs(client, RunRetention(days=0, tags=(tag,))).runs == 0
    assert exists(client, run)


def test_a_subflow_run_is_not_taken_from_under_its_parent() -> None:
    wanted = run_filter(RunRetention(), datetime(2026, 1, 31, tzinfo=UTC))
    assert wanted["parent_task_run_id"] == {"is_null_": True}
    assert wanted["end_time"] == {"before_": "2026-01-01T00:00:00+00:00"}
