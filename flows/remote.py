"""Queueing runs on a Prefect server instead of running them here."""

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import get_current_settings
from prefect.utilities.urls import url_for

from flows.naming import PLAN, describe, prefect_name, run_name
from flows.recipe import PipelineConfig
from flows.waiting import obstacles
from lmpipe.artifacts.source import SourceSpec
from lmpipe.errors import ConfigError
from tasks.plan import Step
from tasks.selection import Selection
from tasks.ui_words import in_ui_words, readable

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

GPU_LIMIT = "gpu"  # the global concurrency limit that `lmpipe deploy` makes
SHOWN_PATHS = 100  # of a source, in the parameters of a run that does not read them there
FlowName = Literal["pipeline", "curate", "tokenize", "pretrain", "align", "evaluate", "scale"]


def deployed_parameters(recipe: PipelineConfig, selection: Selection) -> dict[str, Any]:
    """Return a run's parameters as plain JSON values: what its recipe says, and no name of it."""
    return {
        "selection": selection.model_dump(mode="json", exclude_defaults=True),
        "recipe": "",
        "settings": recipe.portable().written(),
    }


def in_short(recipe: PipelineConfig) -> PipelineConfig:
    """Return a recipe as a run shows it: of a long list of source paths the first ones.

    Prefect refuses parameters above half a MB, which 4,200 paths are. What runs here needs none of
    them from there.
    """

    def shortened(spec: SourceSpec) -> SourceSpec:
        left_out = len(spec.paths) - SHOWN_PATHS
        if left_out <= 0:
            return spec
        paths = (*spec.paths[:SHOWN_PATHS], f"… and {left_out} more")
        return spec.model_copy(update={"paths": paths})

    sources = recipe.sources
    specs: dict[str, Any] = {
        name: shortened(spec) for name, spec in sources if isinstance(spec, SourceSpec)
    }
    specs["mixture"] = {name: shortened(spec) for name, spec in sources.mixture.items()}
    return recipe.model_copy(update={"sources": sources.model_copy(update=specs)})


def with_gpu_limit(recipe: PipelineConfig) -> PipelineConfig:
    """Return the recipe of a deployed run: its stages on GPUs take leases."""
    runtime = recipe.runtime.model_copy(update={"gpu_limit": recipe.runtime.gpu_limit or GPU_LIMIT})
    return recipe.model_copy(update={"runtime": runtime})


def submit(flow: str, recipe: PipelineConfig, selection: Selection, asked_by: str) -> "FlowRun":
    """Queue a run of a flow's deployment from inside a flow run.

    Args:
        asked_by: id of the run that asks; its retry gets the same run and queues no second one.
    """
    parameters = deployed_parameters(recipe, selection)
    name = prefect_name().replace(f" · {PLAN} ", " · ", 1)  # or what somebody called this run
    run = _queue(f"{flow}/{flow}", parameters, name, key=f"{asked_by}-{flow}")
    url = run_url(run)
    print(f"queued {flow} as {run.name}: {url}")
    create_link_artifact(link=url, link_text=run.name, key="queued-run", description=flow)
    return run


def submit_rerun(flow: str, recipe: PipelineConfig, selection: Selection, approve: bool) -> str:
    """Queue what `lmpipe run` would do here, and return the URL of the run that plans it."""
    require_server()
    parameters = deployed_parameters(recipe, selection) | {"flow": flow, "approve": approve}
    name = run_name(recipe.name, f"{PLAN} {describe(flow, selection)}", due=datetime.now(UTC))
    return run_url(_queue("rerun/rerun", parameters, name))


def hindrances(flow: str) -> list[str]:
    """Return what a run of a flow, or the run that plans it, would wait for now."""
    client: Any
    with get_client(sync_client=True) as client:
        places = dict.fromkeys(
            (found["work_pool_name"], found["work_queue_name"])
            for name in ("rerun", flow)
            for found in [client.request("GET", f"/deployments/name/{name}/{name}").json()]
        )
        return [reason for pool, queue in places for reason in obstacles(client, pool, queue)]


def publish_plan(
    flow: str, recipe: PipelineConfig, selection: Selection, steps: list[Step]
) -> None:
    """Show a plan in the UI: a sentence, and a table of its steps."""
    counts = {status: sum(s.status == status for s in steps) for status in ("HIT", "RUN")}
    chosen = {k: v for k, v in selection.model_dump().items() if v}
    lines = [
        f"## Plan: {flow} of {recipe.name}",
        f"{counts['HIT']} of {len(steps)} stages are in `{recipe.store.root}`; "
        f"{counts['RUN']} can start at once.",
        *(f"- {name}: `{value}`" for name, value in chosen.items()),
        "",
        "| stage | status | why |",
        "|---|---|---|",
        *(f"| {s.name} | {s.status} | {_cell(in_ui_words(s.reason))} |" for s in steps),
    ]
    create_markdown_artifact("\n".join(lines), key="plan", description="What the run will do")
    create_table_artifact(_rows(steps), key="plan-table", description="What the run will do")


def publish_steps(flow: str, steps: list[Step]) -> None:
    """Show in the UI what became of each step of a run, those that were found included."""
    create_table_artifact(_rows(steps), key="steps", description=f"What became of {flow}")


def run_url(run: "FlowRun") -> str:
    """Return where the UI shows a run."""
    return url_for("flow-run", obj_id=run.id) or str(run.id)


def require_server() -> str:
    """Return the API's URL; an ephemeral server would take orders that nobody ever carries out.

    Raises:
        ConfigError: no server is named.
    """
    url = get_current_settings().api.url
    if not url:
        raise ConfigError(
            "no Prefect server is named: set PREFECT_API_URL, such as http://127.0.0.1:4200/api, "
            "where `lmpipe up` or docker/compose.yaml has started one"
        )
    return str(url)


def _queue(
    deployment: str, parameters: dict[str, Any], name: str, *, key: str | None = None
) -> "FlowRun":
    size, limit = len(json.dumps(parameters)), get_current_settings().server.api.max_parameter_size
    if 0 < limit < size:
        raise ConfigError(
            f"the recipe has {size:,} bytes with its source paths, a Prefect server takes {limit:,}"
            ": write the paths into a file, one a line, and name it in their place, paths: [@FILE]"
        )
    try:
        run: Any = run_deployment(
            deployment, parameters=parameters, timeout=0, idempotency_key=key, flow_run_name=name
        )
    except PrefectHTTPStatusError as error:
        if error.response.status_code not in (409, 422):
            raise
        detail = error.response.json().get("detail")
        raise ConfigError(f"deployment {deployment} does not take this run: {detail}") from error
    except ObjectNotFound as error:
        raise ConfigError(
            f"no deployment {deployment!r}; register it by `lmpipe deploy`"
        ) from error
    queued: FlowRun = run
    return queued


def _rows(steps: list[Step]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"stage": s.name, "status": s.status, "took": s.seconds, "id": s.artifact}
        | {"why": in_ui_words(s.reason)}
        for s in steps
    ]
    return readable(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
