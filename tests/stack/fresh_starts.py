"""Start the shared stack afresh so many times; say of each start whether automations act.

    python -m tests.stack.fresh_starts 10

Too long for the tests (a minute a start, once the images are built), which have one such start. In
each, a run is led into a crash while its pool is paused; then the server must queue it again, and
the worker must complete its second try.
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.services.compose import Compose
from tests.services.docker_engine import DockerEngine
from tests.services.prefect_server import REPOSITORY
from tests.services.processes import wait_until
from tests.stack.test_compose import STORE, few_pages


def crash_and_go_on(stack: Compose) -> str:
    """Crash a run; return how long its requeue and its second try took."""
    stack.compose("exec", "-T", "worker-cpu", "lmpipe", "deploy", "--store", STORE)
    stack.request("PATCH", "/work_pools/cpu", {"is_paused": True})
    curate = stack.request("GET", "/deployments/name/curate/curate")
    settings = few_pages(curate["parameters"]["settings"])
    run = stack.submit(curate["id"], settings=settings, selection={"until_stage": "extract"})
    for state in ("PENDING", "RUNNING", "CRASHED"):
        body = {"state": {"type": state}, "force": False}
        stack.request("POST", f"/flow_runs/{run}/set_state", body)
    crashed = time.monotonic()
    wait_until(lambda: stack.requeued(run), timeout_seconds=60, what="the requeue")
    queued = time.monotonic()
    stack.request("PATCH", "/work_pools/cpu", {"is_paused": False})
    stack.wait_for(run, frozenset({"COMPLETED"}), timeout_seconds=240)
    assert stack.request("GET", f"/flow_runs/{run}")["run_count"] == 2
    done = time.monotonic()
    return f"queued again after {queued - crashed:.1f} s, second try {done - queued:.0f} s"


def main(num_starts: int) -> int:
    """Return how many starts went wrong."""
    engine, wrong = DockerEngine(), 0
    try:
        engine.start()
        engine.build(REPOSITORY, "docker/Dockerfile", "--target=cpu", tag="lmpipe:cpu")
        services = engine.build_services()
        for number in range(1, num_starts + 1):
            with tempfile.TemporaryDirectory() as folder:
                wrong += not start_once(Compose(engine, Path(folder), services), number)
    finally:
        engine.delete()
    print(f"{num_starts - wrong} of {num_starts} starts well", flush=True)
    return wrong


def start_once(stack: Compose, number: int) -> bool:
    """Start, crash, go on and delete a stack; return whether all of it went well."""
    began = time.monotonic()
    try:
        stack.up()
        up = time.monotonic() - began
        again = stack.engine.docker(
            "inspect", "--format={{.RestartCount}}", stack.container("services")
        ).strip()
        told = f"{number}: up in {up:.0f} s, services started again {again} times"
        print(f"{told}, {crash_and_go_on(stack)}", flush=True)
        return True
    except (TimeoutError, RuntimeError) as error:
        print(f"{number}: {error}", flush=True)
        print(stack.compose("logs", "--no-color", "services")[-3000:], flush=True)
        return False
    finally:
        stack.down()


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]))))
