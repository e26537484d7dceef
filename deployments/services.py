"""Commands that bring a Prefect server to work for us: `lmpipe deploy`, `worker` and `up`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer()


@app.command()
def deploy(
    folder: Annotated[
        Path | None, typer.Option(help="Installation that process workers run from.")
    ] = None,
    image: Annotated[str, typer.Option(help="Image of containers with GPUs.")] = "lmpipe:gpu",
    cpu_image: Annotated[str, typer.Option(help="Image of those without.")] = "lmpipe:cpu",
    store: Annotated[str, typer.Option(help="Store of the default recipe.")] = "",
    cpu_pool: Annotated[
        str, typer.Option(help="Pool for what needs no GPU: cpu or cpu-docker.")
    ] = "cpu",
    gpu_pool: Annotated[
        str, typer.Option(help="Pool for what needs one: gpu, gpu-process, cpu or cpu-docker.")
    ] = "gpu",
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Slots of the limit that GPU stages share.")
    ] = None,
    requeues: Annotated[
        int, typer.Option(min=1, max=100, help="How often a crashed run is queued again.")
    ] = 2,
    notify_webhook_block: Annotated[
        str, typer.Option(help="Webhook block that is notified of failures and alarms.")
    ] = "",
    notify_slack_block: Annotated[str, typer.Option(help="Slack block that is, likewise.")] = "",
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove deployments that prefect.yaml no longer has.")
    ] = False,
) -> None:
    """Register pools, queues, limits, deployments and automations; a second time changes nothing.

    Schedules are made switched off; what is switched in the UI stays as it is. Schedules that the
    file no longer has are removed; those made in the UI stay. In place of a block,
    LMPIPE_NOTIFY_WEBHOOK_URL and LMPIPE_NOTIFY_SLACK_URL in the environment make one.
    """
    from deployments import deploy as deploy_

    site = deploy_.Site(
        image=image,
        cpu_image=cpu_image,
        store=store,
        cpu_pool=cpu_pool,
        gpu_pool=gpu_pool,
        gpus=gpus,
        requeues=requeues,
        webhook_block=notify_webhook_block,
        slack_block=notify_slack_block,
        prune=prune,
    )
    if folder is not None:
        site = replace(site, folder=folder)
    deployed = deploy_.deploy(site)
    for change in deployed.changes:
        print(change)
    print(f"notified of failures and alarms: {', '.join(deployed.notified) or 'nobody'}")
    for name in deployed.left:
        print(f"deployment {name} is not in prefect.yaml and stays; --prune removes it")
    for pool, names in deployed.unattended.items():
        waiting = f"runs of {', '.join(names)} wait until `lmpipe worker {pool}` is started"
        print(f"pool {pool} has no worker: {waiting}{_elsewhere(pool)}")
    print(f"{len(deployed.changes)} changes")


def _elsewhere(pool: str) -> str:
    """Say how a machine without a GPU gets the runs of the pool for those that have one."""
    return "; without a GPU, deploy with --gpu-pool cpu" if pool.startswith("gpu") else ""


@app.command()
def worker(
    pool: Annotated[
        str, typer.Argument(help="cpu, gpu, gpu-process, cpu-docker, or a pool of your own.")
    ],
    limit: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    with_healthcheck: Annotated[
        bool, typer.Option("--with-healthcheck", help="Answer at /health on a port of its own.")
    ] = False,
) -> None:
    """Start a worker that takes queued runs of a pool."""
    from deployments.worker import become_worker

    become_worker(pool, limit, with_healthcheck)


@app.command("up")
def start_stack(
    port: Annotated[int, typer.Option(help="Of the server, on loopback.")] = 4200,
    store: Annotated[str, typer.Option(help="Store of the default recipe.")] = "",
) -> None:
    """Start server, deployments and a worker here, on SQLite, until Ctrl-C.

    docker/compose.yaml is the shared stack, on PostgreSQL, Redis and S3.
    """
    from deployments.stack import up

    up(Console(), port, store)
