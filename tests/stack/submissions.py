"""Submit forms to a server on SQLite, many at once, and count those that it refuses.

    python -m tests.stack.submissions 10 50 [--prefects-own]

As browsers do: one request each, none tried again. Meanwhile four clients write logs and states, as
so many runs do. `--prefects-own` starts the server by Prefect's command, else by that of
`lmpipe up`.
"""

import argparse
import collections
import concurrent.futures
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.services.prefect_server import PrefectServer

REQUESTS_EACH = 5
NUM_RUNS = 4


def submit_at_once(server: PrefectServer, deployment: str, num_clients: int) -> list[float]:
    """Return the seconds of each submission that was taken; all are printed by their code."""
    path = f"{server.api_url}/deployments/{deployment}/create_flow_run"
    together = threading.Barrier(num_clients)

    def submit(_: int) -> list[tuple[int, float]]:
        together.wait()
        answers = []
        for _ in range(REQUESTS_EACH):
            began = time.monotonic()
            body = {"state": {"type": "SCHEDULED"}}
            answer = httpx.post(path, json=body, auth=server._auth, timeout=120)
            answers.append((answer.status_code, time.monotonic() - began))
        return answers

    with concurrent.futures.ThreadPoolExecutor(num_clients) as pool:
        answers = [answer for client in pool.map(submit, range(num_clients)) for answer in client]
    print(dict(collections.Counter(code for code, _ in answers)), flush=True)
    return [seconds for code, seconds in answers if code == 201]


@contextmanager
def running(server: PrefectServer, deployment: str) -> Iterator[None]:
    """Have runs that write logs and change states meanwhile."""
    done = threading.Event()

    def post(path: str, body: Any) -> httpx.Response:
        return httpx.post(server.api_url + path, json=body, auth=server._auth, timeout=120)

    def run() -> None:
        while not done.is_set():
            made = post(f"/deployments/{deployment}/create_flow_run", {})
            if made.status_code != 201:
                continue
            run_id = made.json()["id"]
            for state in ("PENDING", "RUNNING", "COMPLETED"):
                post(f"/flow_runs/{run_id}/set_state", {"state": {"type": state}, "force": True})
                line = {"name": "stage", "level": 20, "message": "x" * 200}
                line |= {"timestamp": "2026-01-01T00:00:00Z", "flow_run_id": run_id}
                post("/logs/", [line] * 50)

    threads = [threading.Thread(target=run) for _ in range(NUM_RUNS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def measure(server: PrefectServer, num_clients: int) -> tuple[int, int]:
    """Return how many submissions were taken, and of how many."""
    deployment = server.create_deployment("tests/stack/sample_flows.py:greet", pool="idle")
    with running(server, deployment):
        seconds = submit_at_once(server, deployment, num_clients)
    num_sent = num_clients * REQUESTS_EACH
    median, longest = statistics.median(seconds or [0.0]), max(seconds, default=0.0)
    refused = f"{num_sent - len(seconds)} of {num_sent} refused"
    print(
        f"{num_clients} at once: {refused}; median {median:.2f} s, longest {longest:.2f} s",
        flush=True,
    )
    return len(seconds), num_sent


def main() -> None:
    """Measure for each number of clients given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("clients", type=int, nargs="+")
    parser.add_argument("--prefects-own", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = PrefectServer(Path(folder), prefects_own=arguments.prefects_own)
        try:
            server.start()
            server.create_pool("idle")
            for num_clients in arguments.clients:
                measure(server, num_clients)
        finally:
            server.process.stop()


if __name__ == "__main__":
    main()
