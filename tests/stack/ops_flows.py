"""Flows of the tests of automations, run as deployments run ours."""

import time
from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run

from flows.run import Silent
from flows.worker_watch import ends_with_worker
from lmpipe.artifacts.manifest import Origin
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from tasks.bridge import PrefectConductor, as_task
from tasks.conductor import Settings, conducted_by
from tasks.selection import Selection
from tests.stack.ops_stages import AlarmingConfig, StepsConfig, alarming, stepping

alarming_task = as_task(alarming)
stepping_task = as_task(stepping, retries=1, retry_delay_seconds=0)


def _conductor(store: str, stage: str) -> PrefectConductor:
    settings = Settings(Store(store), Runtime(ranks=2, device="cpu", threads_per_rank=1))
    origin = Origin(flow_run=str(flow_run.get_id()))
    return PrefectConductor(settings, Selection(), {stage}, Silent(), origin)


@flow(name="run_alarming")
def run_alarming(store: str) -> None:
    """Run the stage that raises every alarm, and fail."""
    with conducted_by(_conductor(store, "alarming")):
        alarming_task(AlarmingConfig())
    raise RuntimeError("the flow fails on purpose")


@flow(name="run_stepping")
def run_stepping(store: str, folder: str) -> None:
    """Run the job that resumes; end with the worker, as our flows do."""
    with ends_with_worker(), conducted_by(_conductor(store, "stepping")):
        stepping_task(StepsConfig(folder=folder))


@flow(name="wait_for_ever")
def wait_for_ever(started: str) -> None:
    """Wait to be cancelled."""
    Path(started).touch()
    while True:
        time.sleep(0.2)
