"""Housekeeping as a queued run on the real server: PostgreSQL, Redis, and a process worker."""

import secrets
from pathlib import Path
from typing import Any

from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from tests.artifacts.stages import CountConfig, count
from tests.services.prefect_server import PrefectServer, ProcessWorker
from tests.services.processes import wait_until


def make_run(server: PrefectServer, tag: str, state: str) -> str:
    """Make a run with a log line and an artifact."""
    flow = server.request("POST", "/flows/", {"name": "swept"})
    body = {"flow_id": flow["id"], "tags": [tag], "state": {"type": state}}
    run: str = server.request("POST", "/flow_runs/", body)["id"]
    line = {
        "name": "test", "level": 20, "message": "hello", "flow_run_id": run,
        "timestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    server.request("POST", "/logs/", [line])  # type: ignore[arg-type]
    artifact = {"key": f"note-{tag}", "type": "markdown", "data": "x", "flow_run_id": run}
    server.request("POST", "/artifacts/", artifact)
    return run


def count_of(server: PrefectServer, kind: str, runs: list[str]) -> int:
    field = {"flow_runs": "id", "logs": "flow_run_id", "artifacts": "flow_run_id"}[kind]
    body: dict[str, Any] = {kind: {field: {"any_": runs}}}
    return len(server.request("POST", f"/{kind}/filter", body))


def test_old_runs_go_with_logs_and_artifacts_and_a_store_is_collected(
    prefect_server: PrefectServer, process_worker: ProcessWorker, tmp_path: Path
) -> None:
    server, tag, other = prefect_server, secrets.token_hex(4), secrets.token_hex(4)
    final = [make_run(server, tag, state) for state in ("COMPLETED", "FAILED", "CANCELLED")]
    staying = [make_run(server, tag, "RUNNING"), make_run(server, other, "COMPLETED")]
    assert [count_of(server, kind, final) for kind in ("logs", "artifacts")] == [3, 3]
    store = Store(str(tmp_path / "store"))
    made = build(count, CountConfig(), {}, store=store, runtime=Runtime())

    deployment = server.create_deployment("deployments/deployed.py:housekeeping", pool="cpu")
    run = server.submit(
        deployment,
        runs={"days": 0, "tags": [tag]},
        store=store.root,
        artifacts={"last": 0, "days": 0, "best": []},
    )
    assert server.wait_for(run) == "COMPLETED"

    assert process_worker.process.running
    assert count_of(server, "flow_runs", final) == count_of(server, "artifacts", final) == 0
    wait_until(
        lambda: count_of(server, "logs", final) == 0,
        timeout_seconds=30,
        what="the deletion of logs, which the server queues",
    )
    for kind in ("flow_runs", "logs", "artifacts"):
        assert count_of(server, kind, staying) == 2
    assert len(made.missing()) == 2
    shown = server.request("POST", "/artifacts/filter", _table_of(run))[0]["data"]
    assert '"deleted": "3"' in shown and "FAILED" in shown and store.root in shown
    for left in staying:
        server.request("DELETE", f"/flow_runs/{left}")


def _table_of(run: str) -> dict[str, Any]:
    return {"artifacts": {"flow_run_id": {"any_": [run]}, "key": {"any_": ["housekeeping"]}}}
