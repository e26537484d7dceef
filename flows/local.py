"""A flow run in this process, under Prefect's ephemeral server or whichever the profile names."""

from prefect import flow
from prefect.runtime import flow_run

from flows.recipe import PipelineConfig
from flows.run import execute
from lmpipe.runtime.watcher import children_end_with_this_process
from tasks.bridge import Listener
from tasks.plan import Step
from tasks.selection import Selection


def run_locally(
    name: str, recipe: PipelineConfig, selection: Selection, listener: Listener
) -> list[Step]:
    """Run a composition as a flow run of the same name as its deployment has."""

    @flow(name=name, flow_run_name=recipe.name, validate_parameters=False)
    def local(recipe: PipelineConfig, selection: Selection) -> list[Step]:
        return execute(name, recipe, selection, listener, flow_run.get_id() or "")

    children_end_with_this_process()  # Prefect's ephemeral server among them
    return local(recipe, selection)
