"""Applying deployments/prefect.yaml to a Prefect server, as often as one likes.

`prefect deploy` reads the same file, and lacks four things: it makes no pools, queues or limits, it
cannot give `recipe` a default that differs by the folder a pool runs in, it writes whether or not
anything changed, and it fills templates from the environment only.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import get_client
from prefect.workers.process import ProcessWorker

from deployments.automations import crash_zombies, notify, requeue_crashed
from deployments.form import form
from deployments.notifications import find_channels
from deployments.prefect_api import Json, PrefectApi
from flows.recipe import INSTALLATION
from flows.remote import GPU_LIMIT, require_server
from flows.waiting import online_workers
from lmpipe.errors import ConfigError
from lmpipe.runtime.devices import num_gpus

FILE = INSTALLATION / "deployments" / "prefect.yaml"
STEP = "prefect.deployments.steps.set_working_directory"
TAG = "lmpipe"  # on every deployment of the file
TEMPLATE = re.compile(r"\{\{\s*\$(\w+)\s*\}\}")
POOL_TEXTS = {
    "process": "Runs are processes on the worker's machine.",
    "docker": "Runs are containers that the worker's Docker engine starts.",
}


@dataclass(frozen=True)
class Site:
    """What the file cannot know about the place it is applied to.

    Args:
        folder: installation that process workers run from.
        image: what containers with GPUs run.
        cpu_image: what containers without one run.
        store: root of the store in the default recipe.
        cpu_pool: where the deployments of the pool `cpu` go.
        gpu_pool: where the deployments of the pool `gpu` go.
        gpus: slots of the limit on GPUs; None leaves the limit as it is.
        recipe: name of the default recipe.
        requeues: how often a crashed run is queued again.
        webhook_block: name of a block that is notified; empty: our own, if its URL is known.
        slack_block: likewise.
        prune: whether deployments of ours that the file no longer has are removed.
    """

    folder: Path = INSTALLATION
    image: str = "lmpipe:gpu"
    cpu_image: str = "lmpipe:cpu"
    store: str = ""
    cpu_pool: str = "cpu"
    gpu_pool: str = "gpu"
    gpus: int | None = None
    recipe: str = "demo"
    requeues: int = 2
    webhook_block: str = ""
    slack_block: str = ""
    prune: bool = False


@dataclass(frozen=True)
class Deployed:
    """What deploy did, and what it found.

    Args:
        changes: what was changed; nothing the second time.
        notified: the blocks that are notified.
        left: deployments of ours that the file no longer has.
        unattended: pools without a worker, each with the deployments whose runs wait for one.
    """

    changes: list[str]
    notified: list[str]
    left: list[str]
    unattended: dict[str, list[str]]


def deploy(site: Site) -> Deployed:
    """Bring the server to what the file says."""
    api_url = require_server()

    images = {"LMPIPE_IMAGE": site.cpu_image, "LMPIPE_GPU_IMAGE": site.image}
    file = read_file(images | {"LMPIPE_API_URL": api_url})
    pools = file["definitions"]["pools"]
    for option, pool in (("--cpu-pool", site.cpu_pool), ("--gpu-pool", site.gpu_pool)):
        if pool not in pools:
            raise ConfigError(f"{option} {pool!r}: no such pool; known are {', '.join(pools)}")
    with get_client(sync_client=True) as client:
        api = PrefectApi(client)
        for name, settings in pools.items():
            kind = settings["type"]
            api.pool(name, kind, POOL_TEXTS[kind], _job_template(kind))
            api.queues(name, settings["queues"])
        api.limit(GPU_LIMIT, site.gpus, slots_at_first=max(1, num_gpus()))
        used: dict[str, list[str]] = {}
        for entry in file["deployments"]:
            flow = entry["entrypoint"].rpartition(":")[2]
            wanted = deployment(entry, pools, site)
            api.deployment(flow, wanted, _schedules(entry))
            used.setdefault(wanted["work_pool_name"], []).append(entry["name"])
        names = {entry["name"] for entry in file["deployments"]}
        left = api.other_deployments(TAG, names, site.prune)
        channels = find_channels(site.webhook_block, site.slack_block, api.changes)
        for automation in [crash_zombies(), requeue_crashed(site.requeues), *notify(channels)]:
            api.automation(automation)
        unattended = {
            pool: names for pool, names in used.items() if not online_workers(client, pool)
        }
    return Deployed(api.changes, [channel.name for channel in channels], left, unattended)


def read_file(values: dict[str, str]) -> Json:
    """Return prefect.yaml with `{{ $NAME }}` filled from values, then from the environment."""

    def fill(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: fill(value) for key, value in item.items()}
        if isinstance(item, list):
            return [fill(value) for value in item]
        return TEMPLATE.sub(value_of, item) if isinstance(item, str) else item

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values and name not in os.environ:
            raise ConfigError(f"{FILE.name} needs {name} in the environment")
        return values.get(name) or os.environ[name]

    filled: Json = fill(yaml.safe_load(FILE.read_text(encoding="utf-8")))
    return filled


def deployment(entry: Json, pools: Json, site: Site) -> Json:
    """Return what the server shall hold for an entry of the file."""
    pool = entry["work_pool"]
    name = {"cpu": site.cpu_pool, "gpu": site.gpu_pool}[pool["name"]]
    pull = entry["pull"]
    if pools[name]["type"] == "process":
        pull = [{STEP: {"directory": str(site.folder.absolute())}}]
    limit = entry.get("concurrency_limit")
    return {
        "name": entry["name"],
        "description": entry["description"],
        "tags": entry["tags"],
        "entrypoint": entry["entrypoint"],
        "pull_steps": pull,
        "work_pool_name": name,
        "work_queue_name": pool["work_queue_name"],
        "job_variables": pools[name].get("job_variables", {}),
        "concurrency_limit": limit["limit"] if limit else None,
        "concurrency_options": (
            {"collision_strategy": limit["collision_strategy"]} if limit else None
        ),
        "parameters": default_parameters(entry, site),
        "parameter_openapi_schema": form(entry["entrypoint"]),
        "enforce_parameter_schema": True,
    }


def default_parameters(entry: Json, site: Site) -> Json:
    """Return what a form opens with: the file's own values, and the site's store.

    An empty `store` among the file's values is the site's.
    """
    if "parameters" in entry:
        given: Json = dict(entry["parameters"])
        if given.get("store") == "":
            given["store"] = site.store
    else:
        given = {"recipe": site.recipe}
    if "recipe" in given and site.store:
        given["settings"] = {"store": {"root": site.store}}
    return given


def _schedules(entry: Json) -> list[Json]:
    return [
        {
            "slug": schedule["slug"],
            "active": schedule["active"],
            "schedule": {"cron": schedule["cron"], "timezone": schedule["timezone"]},
        }
        for schedule in entry.get("schedules", [])
    ]


def _job_template(kind: str) -> Json:
    if kind == "docker":
        from prefect_docker.worker import DockerWorker

        template: Json = DockerWorker.get_default_base_job_template()
        return template

    return ProcessWorker.get_default_base_job_template()
