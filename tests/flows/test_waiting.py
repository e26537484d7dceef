"""What a waiting run is said to wait for; the server is a stand-in, tests/stack has a real one."""

from typing import Any

import pytest

from flows.waiting import LOGGER, Watch, obstacles

Json = dict[str, Any]
FREE: Json = {"is_paused": False, "concurrency_limit": None}
RUN = {
    "id": "r1",
    "state_name": "Late",
    "work_pool_name": "gpu",
    "work_queue_name": "sweep",
    "deployment_id": "d1",
    "next_scheduled_start_time": "2020-01-01T00:00:00+00:00",
}


class Server:
    """Answers as Prefect's client does, and keeps the lines that were logged."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            "/work_pools/gpu": FREE,
            "/work_pools/gpu/queues/sweep": FREE,
            "/work_pools/gpu/workers/filter": [{"name": "w"}],
            "/flow_runs/count": 0,
            "/logs/filter": [],
            "/flow_runs/filter": [RUN],
        } | answers
        self.lines: list[str] = []

    def request(self, method: str, path: str, json: Any = None) -> Any:
        if path == "/logs/":
            self.lines += [line["message"] for line in json]
        answer = self.answers.get(path)
        if path == "/flow_runs/filter" and "RUNNING" in str(json):
            answer = [{"name": "demo · pipeline"}]
        return type("Response", (), {"json": staticmethod(lambda: answer)})

    def said(self) -> list[str]:
        watch = Watch(self)
        watch.look()
        watch.look()
        return self.lines


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"/work_pools/gpu/workers/filter": []}, "no worker is online in pool gpu; start one"),
        ({"/work_pools/gpu": FREE | {"is_paused": True}}, "pool gpu is paused; resume it"),
        (
            {"/work_pools/gpu/queues/sweep": FREE | {"is_paused": True}},
            "queue sweep of pool gpu is",
        ),
        (
            {
                "/work_pools/gpu/queues/sweep": FREE | {"concurrency_limit": 2},
                "/flow_runs/count": 2,
            },
            "the limit of queue sweep of pool gpu is full: 2 of 2",
        ),
        (
            {"/work_pools/gpu": FREE | {"concurrency_limit": 1}, "/flow_runs/count": 1},
            "the limit of pool gpu is full: 1 of 1",
        ),
        ({}, "the workers of pool gpu are busy with demo · pipeline"),
        (
            {"/flow_runs/filter": [RUN | {"state_name": "AwaitingConcurrencySlot"}]},
            "the limit of its deployment is full, with demo · pipeline",
        ),
        (
            {"/flow_runs/filter": [RUN | {"work_pool_name": None}]},
            "its deployment has no work pool",
        ),
    ],
)
def test_a_waiting_run_is_told_once_for_what(answers: Json, reason: str) -> None:
    (line,) = Server(**answers).said()
    assert line.startswith(f"waits: {reason}")


def test_a_run_put_off_on_purpose_is_told_nothing() -> None:
    later = RUN | {"state_name": "AwaitingRetry"}
    later["next_scheduled_start_time"] = "2999-01-01T00:00:00+00:00"
    assert Server(**{"/flow_runs/filter": [later]}).said() == []


def test_what_another_worker_has_just_said_is_not_said_again() -> None:
    reason = "waits: no worker is online in pool gpu; start one by `lmpipe worker gpu`"
    server = Server(
        **{"/work_pools/gpu/workers/filter": []},
        **{"/logs/filter": [{"name": LOGGER, "message": reason}]},
    )
    assert server.said() == []


def test_nothing_holds_a_run_where_a_worker_is_free() -> None:
    assert obstacles(Server(), "gpu", "sweep") == []
