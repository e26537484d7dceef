"""The flows as Prefect sees them: what deployments name, and what the UI builds its forms from.

Apart from the compositions because importing Prefect takes 3 s, and a plan must not wait for it.
"""

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.flow_runs import suspend_flow_run
from prefect.runtime import flow_run

from flows.maintenance import RunRetention, keep_house
from flows.recipe import PipelineConfig, parse_recipe
from flows.remote import FlowName, publish_plan, publish_steps, submit
from flows.run import Silent, execute, plan_run
from flows.terminal import outcome
from lmpipe.artifacts.retention import RetentionPolicy
from tasks.plan import Step
from tasks.selection import Selection

EVERYTHING = Selection()
OLD_RUNS = RunRetention()
GARBAGE = RetentionPolicy()


@flow(name="pipeline", flow_run_name="{recipe.name}", log_prints=True)
def pipeline(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """Raw crawl in, an aligned and evaluated model and a report out.

    Args:
        recipe: what to run, where artifacts lie, and how stages run.
        selection: which stages may be built; empty: whatever is missing.
    """
    _run("pipeline", recipe, selection)


@flow(name="curate", flow_run_name="{recipe.name}", log_prints=True)
def curate(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """WARC files to clean documents.

    Args:
        recipe: what to run, where artifacts lie, and how stages run.
        selection: which stages may be built; empty: whatever is missing.
    """
    _run("curate", recipe, selection)


@flow(name="tokenize", flow_run_name="{recipe.name}", log_prints=True)
def tokenize(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """Clean documents to a tokenizer and token shards.

    Args:
        recipe: what to run, where artifacts lie, and how stages run.
        selection: which stages may be built; empty: whatever is missing.
    """
    _run("tokenize", recipe, selection)


@flow(name="pretrain", flow_run_name="{recipe.name}", log_prints=True)
def pretrain(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """Token shards to a base model.

    Args:
        recipe: what to run, where artifacts lie, and how stages run.
        selection: which stages may be built; empty: whatever is missing.
    """
    _run("pretrain", recipe, selection)


@flow(name="align", flow_run_name="{recipe.name}", log_prints=True)
def align(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """A base model to a chat model.

    Args:
        recipe: what to run, where artifacts lie, and how stages run.
        selection: which stages may be built; empty: whatever is missing.
    """
    _run("align", recipe, selection)


@flow(name="evaluate", flow_run_name="{recipe.name}", log_prints=True)
def evaluate(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """Checkpoints to scores.

    Args:
        recipe: what to run, where artifacts lie, and how stages run.
        selection: which stages may be built; empty: whatever is missing.
    """
    _run("evaluate", recipe, selection)


@flow(name="scale", flow_run_name="{recipe.name}", log_prints=True)
def scale(recipe: PipelineConfig, selection: Selection = EVERYTHING) -> None:
    """A scaling sweep: a few small models, one fitted law, one prediction, and a page about them.

    Args:
        recipe: what to run, where artifacts lie, and how stages run.
        selection: which stages may be built; empty: whatever is missing.
    """
    _run("scale", recipe, selection)


@flow(name="rerun", flow_run_name="rerun-{flow}", log_prints=True)
def rerun(
    recipe: str = "demo",
    flow: FlowName = "pipeline",
    selection: Selection = EVERYTHING,
    approve: bool = False,
) -> None:
    """Publish what a run would do, wait for approval if asked to, and queue it.

    The run goes to its own deployment's pool and queue, so this one ends at once and needs neither
    a GPU nor a worker while someone makes up their mind: a suspended run's process has exited, and
    Resume queues it anew. Waiting for the run it queues was the alternative; a pool whose worker
    takes one run at a time would then wait for itself.

    Args:
        recipe: a recipe's name (demo), or a whole recipe as YAML, which may say `extends: demo`.
        flow: which part of the pipeline.
        selection: which stages may be built, which are forced, and why.
        approve: suspend until someone resumes this run in the UI; to refuse, cancel it.
    """
    loaded = parse_recipe(recipe)
    steps = plan_run(flow, loaded, selection, here=False)  # on a machine of its deployment's pool
    publish_plan(flow, loaded, selection, steps)
    if approve:
        suspend_flow_run(key="approval", timeout=7 * 24 * 3600)
    submit(flow, loaded, selection, asked_by=flow_run.get_id() or "")


@flow(name="housekeeping", flow_run_name="housekeeping", log_prints=True)
def housekeeping(
    runs: RunRetention = OLD_RUNS,
    store: str = "",
    artifacts: RetentionPolicy = GARBAGE,
    preview: bool = False,
) -> None:
    """Delete old flow runs, and a store's garbage.

    Args:
        runs: which flow runs go, with their task runs, logs and artifacts in Prefect.
        store: root of a store whose garbage is collected too; empty: none.
        artifacts: what stays in that store.
        preview: only say how many.
    """
    rows = keep_house(runs, store, artifacts, preview)
    verb = "would delete" if preview else "deleted"
    for row in rows:
        print(f"{verb} {row['deleted']} {row['what']}")
    create_table_artifact(rows, key="housekeeping", description=f"What housekeeping {verb}")


class _Printed(Silent):
    """Writes to the run's log what became of each step; found ones make no task run."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def finished(self, step: Step) -> None:
        self.steps.append(step)
        print(f"{step.status} {step.name} {outcome(step)} {step.artifact[:12]}".rstrip())


def _run(flow: str, recipe: PipelineConfig, selection: Selection) -> None:
    listener = _Printed()
    try:
        execute(flow, recipe, selection, listener, flow_run.get_id() or "")
    finally:
        publish_steps(flow, listener.steps)
