"""No secret reaches what Prefect or the store keeps, from a stage that says all it knows."""

import base64
import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from tests.services.postgres import Postgres
from tests.services.prefect_server import PrefectServer, ProcessWorker
from tests.services.processes import wait_until
from tests.services.seaweedfs import SECRET, SeaweedFS
from tests.stack.leaky_stage import URL_PASSWORD

BUCKET = "secrets"
# What the API lists, each with its own filter; `events` is asked apart.
LISTS = (
    "flows", "flow_runs", "task_runs", "logs", "artifacts", "deployments", "work_pools",
    "block_documents", "automations", "variables", "v2/concurrency_limits",
)  # fmt: skip


@pytest.fixture(scope="module")
def known(prefect_server: PrefectServer, postgres: Postgres) -> dict[str, str]:
    """All secrets of the stack."""
    return {
        "auth string": prefect_server.auth_string,
        "auth password": prefect_server.auth_string.partition(":")[2],
        "S3 secret": SECRET,
        "PostgreSQL password": postgres.password,
        "password in a URL": URL_PASSWORD,
    }


@pytest.fixture(scope="module")
def worker(
    prefect_server: PrefectServer,
    seaweedfs: SeaweedFS,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProcessWorker]:
    """A worker with every secret in its environment, also those that only the server needs."""
    prefect_server.create_pool("secrets")
    environment = seaweedfs.environment | {
        "LMPIPE_POSTGRES_PASSWORD": postgres.password,
        "LMPIPE_DATABASE": postgres.create_database("unused"),
        "PREFECT_LOGGING_LEVEL": "DEBUG",
    }
    process = ProcessWorker(
        prefect_server, tmp_path_factory.mktemp("worker"), "secrets", environment=environment
    )
    try:
        process.start()
        yield process
    finally:
        process.process.stop()


@pytest.fixture(scope="module")
def failed_run(prefect_server: PrefectServer, worker: ProcessWorker, seaweedfs: SeaweedFS) -> str:
    """A run whose first stage ends well and whose second fails, both with many words."""
    store = seaweedfs.create_bucket(BUCKET)
    leaky = prefect_server.create_deployment("tests/stack/leaky_flow.py:run_leaky", pool="secrets")
    run = prefect_server.submit(leaky, store=store)
    assert prefect_server.wait_for(run, frozenset({"FAILED"}), timeout_seconds=300) == "FAILED"
    return run


def forms(secret: str) -> Iterator[bytes]:
    yield secret.encode()
    yield urllib.parse.quote(secret, safe="").encode()
    yield base64.b64encode(secret.encode()).rstrip(b"=")
    yield base64.urlsafe_b64encode(secret.encode()).rstrip(b"=")


def leaks(data: bytes, known: dict[str, str]) -> list[str]:
    return [name for name, secret in known.items() if any(form in data for form in forms(secret))]


def test_the_search_finds_a_secret_in_every_form(known: dict[str, str]) -> None:
    for name, secret in known.items():
        for form in forms(secret):
            assert name in leaks(b"x" + form + b"y", known)


def test_the_stages_words_are_kept_without_the_secrets(
    prefect_server: PrefectServer, failed_run: str, seaweedfs: SeaweedFS
) -> None:
    """Else the tests below would pass on nothing."""
    wait_until(
        lambda: any(
            row["message"] == "entering with ***" for row in everything(prefect_server, "logs")
        ),
        timeout_seconds=30,
        what="the stage's log event",
    )
    state = prefect_server.request("GET", f"/flow_runs/{failed_run}")["state"]
    assert "'secret': '***'" in state["message"]
    assert "http://someone:***@127.0.0.1:1/file" in state["message"]
    logs = [data for name, data in objects(seaweedfs) if "/logs/" in name]
    assert len(logs) == 2
    assert all(b"AWS_SECRET_ACCESS_KEY=***" in data for data in logs)
    assert all(b"Authorization: Basic ***" in data for data in logs)


def test_no_secret_in_what_the_api_shows(
    prefect_server: PrefectServer, failed_run: str, known: dict[str, str]
) -> None:
    for name in LISTS:
        shown = json.dumps(list(everything(prefect_server, name))).encode()
        assert not leaks(shown, known), name
    assert failed_run.encode() in json.dumps(list(everything(prefect_server, "logs"))).encode()
    events = prefect_server.request("POST", "/events/filter", {"limit": 50})
    seen = len(events["events"])
    while True:
        assert not leaks(json.dumps(events).encode(), known), "events"
        if not events["next_page"]:
            break
        events = prefect_server.request("GET", events["next_page"].partition("/api")[2])
        seen += len(events["events"])
    assert seen >= 10
    settings = json.dumps(prefect_server.request("GET", "/admin/settings")).encode()
    assert not leaks(settings, known), "settings"


def test_no_secret_in_any_byte_of_the_servers_database(
    postgres: Postgres, failed_run: str, known: dict[str, str]
) -> None:
    names = postgres.sql("SELECT datname FROM pg_database WHERE datname LIKE 'prefect_%'").split()
    dumps = {name: postgres.dump(name) for name in names}
    assert any(failed_run.encode() in dump for dump in dumps.values())
    for name, dump in dumps.items():
        assert not leaks(dump, known), name


def test_no_secret_in_any_byte_of_the_store(
    seaweedfs: SeaweedFS, failed_run: str, known: dict[str, str]
) -> None:
    found = dict(objects(seaweedfs))
    assert any(name.endswith("manifest.json") for name in found)
    for name, data in found.items():
        assert not leaks(data, known), name


def test_no_secret_in_what_worker_and_server_print(
    prefect_server: PrefectServer, worker: ProcessWorker, failed_run: str, known: dict[str, str]
) -> None:
    printed = worker.process.log_path.read_bytes()
    assert b"entering with ***" in printed
    assert not leaks(printed, known)
    assert not leaks(prefect_server.process.log_path.read_bytes(), known)


def everything(server: PrefectServer, name: str) -> Iterator[dict[str, Any]]:
    """Yield all that the API lists of a kind."""
    offset = 0
    while rows := server.request("POST", f"/{name}/filter", {"limit": 200, "offset": offset}):
        yield from rows
        offset += len(rows)


def objects(seaweedfs: SeaweedFS) -> Iterator[tuple[str, bytes]]:
    """Yield every object of the bucket."""
    client = seaweedfs.client()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for item in page.get("Contents", []):
            yield item["Key"], client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read()
