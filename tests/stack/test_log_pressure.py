"""A stage that shouts neither stalls its run nor floods the server."""

import time
from pathlib import Path

from lmpipe.artifacts.lookup import home, identify
from lmpipe.artifacts.store import Store
from tests.services.prefect_server import PrefectServer, ProcessWorker
from tests.stack.stages import LoudConfig, loud

LINES = 1_000_000


def test_a_million_lines_are_stored_whole_and_shown_thinned(
    prefect_server: PrefectServer, process_worker: ProcessWorker, tmp_path: Path
) -> None:
    deployment = prefect_server.create_deployment("tests/stack/stage_flows.py:run_loud", pool="cpu")
    run = prefect_server.submit(deployment, store=str(tmp_path), lines=LINES)
    prefect_server.wait_for(run, frozenset({"RUNNING"}), timeout_seconds=120)
    started = time.monotonic()
    assert prefect_server.wait_for(run, timeout_seconds=90) == "COMPLETED"
    seconds = time.monotonic() - started
    print(f"{LINES:,} lines in {seconds:.0f} s")
    assert seconds < 60

    store = Store(str(tmp_path))
    folder = f"{home('loud', identify(loud, LoudConfig(lines=LINES), {}))}/logs"
    (name,) = store.children(folder)
    stored = (store.read(f"{folder}/{name}") or b"").splitlines()
    assert len(stored) == LINES
    assert stored[0] == b"line 0 of native output"
    assert stored[-1] == f"line {LINES - 1} of native output".encode()

    time.sleep(5)  # the run's logger hands the rest over after the end
    shown = messages(prefect_server, run)
    print(f"{len(shown):,} lines in the API")
    assert len(shown) < 5000
    assert "line 0 of native output" in shown
    left_out = [line for line in shown if "lines left out here; the stored log has all" in line]
    counted = sum(int(line.split()[1]) for line in left_out)
    assert counted + sum("of native output" in line for line in shown) == LINES


def messages(server: PrefectServer, run: str) -> list[str]:
    """Return all of a run's log; the API gives 200 lines at a time."""
    found: list[str] = []
    while True:
        body = {
            "logs": {"flow_run_id": {"any_": [run]}},
            "sort": "TIMESTAMP_ASC",
            "limit": 200,
            "offset": len(found),
        }
        rows = server.request("POST", "/logs/filter", body)
        found += [row["message"] for row in rows]
        if len(rows) < 200:
            return found
