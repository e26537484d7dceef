"""The flow of the stage that says all it knows."""

from prefect import flow
from prefect.runtime import flow_run

from flows.run import Silent
from lmpipe.artifacts.manifest import Origin
from lmpipe.artifacts.store import Store
from lmpipe.runtime import Runtime
from tasks.bridge import PrefectConductor, as_task
from tasks.conductor import Settings, conducted_by
from tasks.selection import Selection
from tests.stack.leaky_stage import LeakyConfig, leaky

leaky_task = as_task(leaky)


@flow(name="run_leaky", log_prints=True)
def run_leaky(store: str) -> None:
    """Run the stage twice: well, and into a failure."""
    settings = Settings(Store(store), Runtime())
    origin = Origin(flow_run=str(flow_run.get_id()))
    with conducted_by(
        PrefectConductor(settings, Selection(), {"leaky[well]", "leaky"}, Silent(), origin)
    ):
        leaky_task(LeakyConfig(fails=False), label="well")
        leaky_task(LeakyConfig(fails=True))
