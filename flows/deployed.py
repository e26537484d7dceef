"""The flows as Prefect sees them: what deployments name and the UI shows.

Apart from the compositions because importing Prefect takes 3 s, and a plan must not wait for it.
"""

from prefect import flow
from prefect.runtime import flow_run

from flows.recipe import PipelineConfig
from flows.run import execute
from tasks.selection import Selection

EVERYTHING = Selection()


@flow(name="pipeline", flow_run_name="{recipe.name}", log_prints=True)
def pipeline(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """Raw crawl in, an aligned and evaluated model and a report out."""
    execute("pipeline", recipe, selection, flow_run=flow_run.get_id() or "")


@flow(name="curate", flow_run_name="{recipe.name}", log_prints=True)
def curate(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """WARC files to clean documents."""
    execute("curate", recipe, selection, flow_run=flow_run.get_id() or "")


@flow(name="tokenize", flow_run_name="{recipe.name}", log_prints=True)
def tokenize(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """Clean documents to a tokenizer and token shards."""
    execute("tokenize", recipe, selection, flow_run=flow_run.get_id() or "")


@flow(name="pretrain", flow_run_name="{recipe.name}", log_prints=True)
def pretrain(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """Token shards to a base model."""
    execute("pretrain", recipe, selection, flow_run=flow_run.get_id() or "")


@flow(name="align", flow_run_name="{recipe.name}", log_prints=True)
def align(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """A base model to a chat model."""
    execute("align", recipe, selection, flow_run=flow_run.get_id() or "")


@flow(name="evaluate", flow_run_name="{recipe.name}", log_prints=True)
def evaluate(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """Checkpoints to scores."""
    execute("evaluate", recipe, selection, flow_run=flow_run.get_id() or "")


@flow(name="scale", flow_run_name="{recipe.name}", log_prints=True)
def scale(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """A scaling sweep: a few small models, one fitted law, one prediction."""
    execute("scale", recipe, selection, flow_run=flow_run.get_id() or "")
