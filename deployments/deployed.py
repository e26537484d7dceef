"""The flows as Prefect sees them: what deployments name, and what the UI builds its forms from.

Apart from the compositions because importing Prefect takes 3 s, and a plan must not wait for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect import Flow, flow
from prefect.artifacts import create_table_artifact
from prefect.flow_runs import suspend_flow_run
from prefect.runtime import flow_run

from deployments.maintenance import RunRetention, keep_house
from flows.naming import name_of_this_run
from flows.recipe import PipelineConfig, parse_recipe
from flows.remote import FlowName, publish_plan, publish_steps, submit, with_gpu_limit
from flows.run import Silent, execute, plan_run
from flows.terminal import outcome
from lmpipe.artifacts.retention import RetentionPolicy
from lmpipe.errors import LmpipeError
from tasks.plan import Step
from tasks.selection import Selection
from tasks.ui_words import in_ui_words, readable

EVERYTHING = Selection()
NO_SETTINGS: dict[str, Any] = {}
OLD_RUNS = RunRetention()
GARBAGE = RetentionPolicy()


def _part(name: str, what: str) -> Flow[[Selection, str, dict[str, Any]], None]:
    """Return the flow of one part of the pipeline; all parts have the same form."""

    def run(
        selection: Selection = EVERYTHING,
        recipe: str = "demo",
        settings: dict[str, Any] = NO_SETTINGS,
    ) -> None:
        with _in_ui_words():
            _run(name, parse_recipe(recipe, settings), selection)

    run.__doc__ = f"""{what}

    Args:
        selection: which stages may be built; all empty: whatever is missing.
        recipe: a recipe's name (demo), or a whole recipe as YAML, which may say `extends: demo`.
        settings: what shall differ from the recipe, as JSON: {{"dedup": {{"rows": 4}}}}.
    """
    return flow(name=name, flow_run_name=name_of_this_run, log_prints=True)(run)


pipeline = _part("pipeline", "Raw crawl in, an aligned and evaluated model and a report out.")
curate = _part("curate", "WARC files to clean documents.")
tokenize = _part("tokenize", "Clean documents to a tokenizer and token shards.")
pretrain = _part("pretrain", "Token shards to a base model.")
align = _part("align", "A base model to a chat model.")
evaluate = _part("evaluate", "Checkpoints to scores.")
scale = _part("scale", "A scaling sweep: small models, one fitted law, one prediction, a page.")


@flow(name="rerun", flow_run_name=name_of_this_run, log_prints=True)
def rerun(
    flow: FlowName = "pipeline",
    selection: Selection = EVERYTHING,
    approve: bool = False,
    recipe: str = "demo",
    settings: dict[str, Any] = NO_SETTINGS,
) -> None:
    """Publish what a run would do, wait for approval if asked to, and queue it.

    The run goes to its own deployment's pool and queue, so this one ends at once and needs neither
    a GPU nor a worker while someone makes up their mind: a suspended run's process has exited, and
    Resume queues it anew. Waiting for the run it queues was the alternative; a pool whose worker
    takes one run at a time would then wait for itself.

    Args:
        flow: which part of the pipeline.
        selection: which stages may be built, which are forced, and why.
        approve: suspend until someone resumes this run in the UI; to refuse, cancel it.
        recipe: a recipe's name (demo), or a whole recipe as YAML, which may say `extends: demo`.
        settings: what shall differ from the recipe, as JSON: {"dedup": {"rows": 4}}.
    """
    with _in_ui_words():
        loaded = parse_recipe(recipe, settings)
        steps = plan_run(flow, loaded, selection, here=False)  # its own pool's machine runs it
        publish_plan(flow, loaded, selection, steps)
    if approve:
        suspend_flow_run(key="approval", timeout=7 * 24 * 3600)
    submit(flow, loaded, selection, asked_by=flow_run.get_id() or "")


@flow(name="housekeeping", flow_run_name=name_of_this_run, log_prints=True)
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
    create_table_artifact(
        readable(rows), key="housekeeping", description=f"What housekeeping {verb}"
    )


class _Printed(Silent):
    """Writes to the run's log what became of each step; found ones make no task run."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def finished(self, step: Step) -> None:
        self.steps.append(step)
        print(f"{step.status} {step.name} {outcome(step)} {step.artifact[:12]}".rstrip())


@contextmanager
def _in_ui_words() -> Iterator[None]:
    """Say what goes wrong in the words of the form that the run came from."""
    try:
        yield
    except LmpipeError as error:
        raise type(error)(in_ui_words(str(error))) from error


def _run(flow: str, recipe: PipelineConfig, selection: Selection) -> None:
    listener = _Printed()
    try:
        limited = with_gpu_limit(recipe)
        execute(flow, limited, selection, listener, flow_run.get_id() or "")
    finally:
        publish_steps(flow, listener.steps)
