"""The fixtures do what the tests above them rely on."""

import concurrent.futures
import stat

import httpx
import psutil
import pytest
from botocore.exceptions import ClientError

from tests.services.postgres import Postgres
from tests.services.prefect_server import PrefectServer, ProcessWorker
from tests.services.processes import wait_until
from tests.services.redis import Redis
from tests.services.seaweedfs import SeaweedFS

FLOWS = "tests/stack/sample_flows.py"


def _status(error: pytest.ExceptionInfo[ClientError]) -> int:
    status: int = error.value.response["ResponseMetadata"]["HTTPStatusCode"]
    return status


def test_s3_creates_an_object_only_once_under_a_condition(seaweedfs: SeaweedFS) -> None:
    client = seaweedfs.client()
    client.create_bucket(Bucket="conditional")

    def create(writer: int) -> bool:
        try:
            client.put_object(
                Bucket="conditional", Key="manifest", Body=b"%d" % writer, IfNoneMatch="*"
            )
        except ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 412
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        created = list(pool.map(create, range(8)))
    assert sum(created) == 1
    body = client.get_object(Bucket="conditional", Key="manifest")["Body"].read()
    assert int(body) == created.index(True)


def test_s3_replaces_an_object_only_over_the_etag_named(seaweedfs: SeaweedFS) -> None:
    client = seaweedfs.client()
    client.create_bucket(Bucket="etags")
    first = client.put_object(Bucket="etags", Key="manifest", Body=b"1")["ETag"]
    client.put_object(Bucket="etags", Key="manifest", Body=b"2", IfMatch=first)
    with pytest.raises(ClientError) as error:
        client.put_object(Bucket="etags", Key="manifest", Body=b"3", IfMatch=first)
    assert _status(error) == 412
    assert client.get_object(Bucket="etags", Key="manifest")["Body"].read() == b"2"


def test_s3_refuses_a_wrong_secret(seaweedfs: SeaweedFS) -> None:
    with pytest.raises(ClientError) as error:
        seaweedfs.client(secret="guessed").list_buckets()
    assert _status(error) == 403


def test_s3_keeps_its_objects_over_a_crash_and_answers_after_a_pause(seaweedfs: SeaweedFS) -> None:
    client = seaweedfs.client()
    client.create_bucket(Bucket="durable")
    client.put_object(Bucket="durable", Key="kept", Body=b"x" * 100_000)
    seaweedfs.process.kill()
    with pytest.raises(httpx.TransportError):
        httpx.get(seaweedfs.endpoint_url, timeout=2)
    seaweedfs.start()
    assert client.get_object(Bucket="durable", Key="kept")["ContentLength"] == 100_000

    seaweedfs.process.pause()
    try:
        with pytest.raises(httpx.TimeoutException):
            httpx.get(seaweedfs.endpoint_url, timeout=1)
    finally:
        seaweedfs.process.resume()
    assert client.get_object(Bucket="durable", Key="kept")["ContentLength"] == 100_000


def test_postgres_keeps_its_rows_over_a_stop_and_refuses_a_wrong_password(
    postgres: Postgres,
) -> None:
    postgres.sql("CREATE TABLE kept AS SELECT 7 AS seven")
    postgres.stop()
    assert not postgres.process.running
    postgres.start()
    assert postgres.sql("SELECT seven FROM kept") == "7"

    password, postgres.password = postgres.password, "guessed"
    try:
        with pytest.raises(RuntimeError, match="password authentication failed"):
            postgres.sql("SELECT 1")
    finally:
        postgres.password = password


def test_redis_answers_on_its_socket_only_and_lets_only_us_in(redis: Redis) -> None:
    assert redis.command("PING") == "+PONG"
    assert psutil.Process(redis.process.pid).net_connections(kind="inet") == []
    assert stat.S_IMODE(redis.socket.parent.stat().st_mode) == 0o700


def test_prefect_refuses_a_caller_without_the_auth_string(prefect_server: PrefectServer) -> None:
    assert prefect_server.healthy()
    anonymous = httpx.post(f"{prefect_server.api_url}/flows/filter", json={})
    assert anonymous.status_code == 401


def test_prefect_keeps_its_events_and_docket_in_redis(
    prefect_server: PrefectServer, redis: Redis
) -> None:
    assert prefect_server.healthy()
    wait_until(
        lambda: redis.command("DBSIZE") not in ("", ":0"),
        timeout_seconds=30,
        what="a key of the server in Redis",
    )


def test_a_queued_run_waits_for_a_worker_and_completes(
    prefect_server: PrefectServer, process_worker: ProcessWorker
) -> None:
    deployment = prefect_server.create_deployment(f"{FLOWS}:greet", pool="cpu")
    run = prefect_server.submit(deployment, name="stack")
    assert prefect_server.wait_for(run) == "COMPLETED"
    wait_until(
        lambda: any("hello stack" in line for line in prefect_server.logs(run)),
        timeout_seconds=20,
        what="the run's line in the log",
    )


def test_a_killed_server_comes_back_with_what_it_knew(prefect_server: PrefectServer) -> None:
    prefect_server.create_pool("kept")
    prefect_server.process.kill()
    assert not prefect_server.healthy()
    prefect_server.start()
    assert prefect_server.request("GET", "/work_pools/kept")["type"] == "process"
