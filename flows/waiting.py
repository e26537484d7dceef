"""What a queued run waits for, said in its own log.

A run whose pool has no worker is `Late` in the UI and nothing more: no process has it in hand that
could say why. So every worker of ours looks after the runs of all pools: each 20 s it reads which
runs of our deployments are overdue, works out from pool, queue, workers and limits what holds them,
and writes a line into their log when that is new. Automations were the alternative: their action
would have to be a run itself, which waits for a worker as well. Where there is no worker at all,
`lmpipe run --remote` says so when it queues the run.

    python -m flows.waiting worker start --pool cpu    # Prefect's worker, with the watch in it
"""

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect.client.orchestration import get_client

Json = dict[str, Any]

LOGGER = "lmpipe.waiting"
EVERY_SECONDS = 20.0
OVERDUE_SECONDS = 15.0  # a worker polls every 5 s
MOST_RUNS = 200  # what the server lists in one answer
WARNING = 30
SLOT = "AwaitingConcurrencySlot"  # how Prefect names the state of a run that its deployment holds
BUSY = ["PENDING", "RUNNING", "CANCELLING"]


class Watch:
    """Explains waiting runs on one server, each reason once.

    Args:
        client: Prefect's synchronous client.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._said: dict[str, str] = {}

    def look(self) -> None:
        """Write into the log of each overdue run what it waits for, if that is new."""
        now = datetime.now(UTC)
        latest = now - timedelta(seconds=OVERDUE_SECONDS)
        overdue = {
            "state": {"type": {"any_": ["SCHEDULED"]}},
            "expected_start_time": {
                "before_": (now - timedelta(seconds=OVERDUE_SECONDS)).isoformat()
            },
            "tags": {"all_": ["lmpipe"]},
        }
        body = {"flow_runs": overdue, "limit": MOST_RUNS, "sort": "EXPECTED_START_TIME_ASC"}
        runs = [run for run in self._post("/flow_runs/filter", body) if _is_due(run, latest)]
        self._said = {run["id"]: self._said.get(run["id"], "") for run in runs}
        for run in runs:
            reason = "; ".join(self._reasons(run))
            if reason and reason != self._said[run["id"]]:
                self._say(run["id"], f"waits: {reason}")
                self._said[run["id"]] = reason

    def _reasons(self, run: Json) -> list[str]:
        if run["state_name"] == SLOT:
            return [self._deployment_is_full(run)]
        pool, queue = run["work_pool_name"], run["work_queue_name"]
        if not pool:
            return ["its deployment has no work pool; run `lmpipe deploy`"]
        return obstacles(self._client, pool, queue) or [
            f"the workers of pool {pool} are busy with {self._busy({'work_pools': _named(pool)})}"
        ]

    def _deployment_is_full(self, run: Json) -> str:
        deployment = {"id": {"any_": [run["deployment_id"]]}}
        names = self._busy({"deployments": deployment})
        return f"the limit of its deployment is full, with {names}"

    def _busy(self, where: Json) -> str:
        body = {"flow_runs": {"state": {"type": {"any_": BUSY}}}, "limit": 4} | where
        names = [run["name"] for run in self._post("/flow_runs/filter", body)]
        more = ["others"] * (len(names) == 4)
        return ", ".join([*names[:3], *more]) or "runs of other deployments"

    def _say(self, run: str, message: str) -> None:
        """Log a line for a run, unless another worker has just done so."""
        latest = {
            "logs": {"flow_run_id": {"any_": [run]}},
            "sort": "TIMESTAMP_DESC",
            "limit": 20,
        }
        before = [log for log in self._post("/logs/filter", latest) if log["name"] == LOGGER]
        if before and before[0]["message"] == message:
            return
        line = {"name": LOGGER, "level": WARNING, "message": message, "flow_run_id": run}
        self._client.request(
            "POST", "/logs/", json=[line | {"timestamp": datetime.now(UTC).isoformat()}]
        )

    def _post(self, path: str, body: Json) -> Any:
        return self._client.request("POST", path, json=body).json()


def obstacles(client: Any, pool: str, queue: str | None) -> list[str]:
    """Return what keeps any run from being taken from a pool's queue; [] if nothing does."""
    found = client.request("GET", f"/work_pools/{pool}").json()
    reasons = []
    if found["is_paused"]:
        reasons.append(f"pool {pool} is paused; resume it under Work Pools")
    if not online_workers(client, pool):
        reasons.append(f"no worker is online in pool {pool}; start one by `lmpipe worker {pool}`")
    where = {"work_pools": _named(pool)}
    reasons += _full(client, f"the limit of pool {pool}", found["concurrency_limit"], where)
    if queue:
        details = client.request("GET", f"/work_pools/{pool}/queues/{queue}").json()
        if details["is_paused"]:
            reasons.append(f"queue {queue} of pool {pool} is paused; resume it under Work Pools")
        where = where | {"work_pool_queues": _named(queue)}
        what = f"the limit of queue {queue} of pool {pool}"
        reasons += _full(client, what, details["concurrency_limit"], where)
    return reasons


def online_workers(client: Any, pool: str) -> list[str]:
    """Return the names of a pool's workers that the server hears of."""
    body = {"workers": {"status": {"any_": ["ONLINE"]}}}
    path = f"/work_pools/{pool}/workers/filter"
    return [worker["name"] for worker in client.request("POST", path, json=body).json()]


def start_watch() -> None:
    """Watch the server in a thread of this process for as long as it lives."""
    threading.Thread(target=_watch, name="waiting-watch", daemon=True).start()


def _watch() -> None:
    while True:
        try:
            with get_client(sync_client=True) as client:
                watch = Watch(client)
                while True:
                    time.sleep(EVERY_SECONDS)
                    watch.look()
        except Exception as error:  # a server that is away costs the explanation, not the worker
            print(f"waiting runs could not be looked at: {type(error).__name__}: {error}")
            time.sleep(EVERY_SECONDS)


def _full(client: Any, what: str, limit: int | None, where: Json) -> list[str]:
    if limit is None:
        return []
    body = {"flow_runs": {"state": {"type": {"any_": BUSY}}}} | where
    count = client.request("POST", "/flow_runs/count", json=body).json()
    return [f"{what} is full: {count} of {limit}"] if count >= limit else []


def _named(name: str) -> Json:
    return {"name": {"any_": [name]}}


def _is_due(run: Json, latest: datetime) -> bool:
    """Whether a run is overdue, and not put off on purpose, as one that is to be retried."""
    due = run["next_scheduled_start_time"]
    if due is None or run["state_name"] == SLOT:
        return True
    return datetime.fromisoformat(due) < latest


if __name__ == "__main__":
    from prefect.cli import app

    start_watch()
    app()
