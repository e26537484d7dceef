"""Commands that look into a store: `lmpipe ls`, `show`, `diff` and `verify`."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flows.cli.stores import Recipe, Root, open_store
from lmpipe.errors import StoreError

app = typer.Typer()


@app.command("ls")
def list_artifacts(
    stage: Annotated[str, typer.Argument(help="Only this stage.")] = "",
    store: Root = "",
    recipe: Recipe = "",
) -> None:
    """List artifacts, newest first."""
    from lmpipe.artifacts.lookup import list_manifests, list_stages
    from lmpipe.artifacts.tombstone import when_collected

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("stage", "id", "finished", "seconds", "objects", "bytes"):
        table.add_column(column, no_wrap=True)
    opened = open_store(store, recipe)
    damaged: list[StoreError] = []
    for manifest in list_manifests(opened, stage or None, damaged):
        num_bytes = f"{sum(file.bytes for file in manifest.outputs):,}"
        table.add_row(
            manifest.stage,
            manifest.id[:12],  # enough for show, diff and the rest, and the table fits 80 columns
            manifest.provenance.finished[:16],
            f"{manifest.provenance.seconds:.1f}",
            str(len(manifest.outputs)),
            "gone" if when_collected(opened, manifest) else num_bytes,
        )
    if table.row_count:
        Console().print(table)
    else:
        stages = ", ".join(list_stages(opened))
        of = f" of stage {stage!r}; it has {stages}" if stage and stages else ""
        Console().print(f"no artifacts in {opened.root}{of}", markup=False, highlight=False)
    for error in damaged:
        Console(stderr=True).print(f"[red]BAD[/] {error}", highlight=False)


@app.command()
def show(
    artifact: Annotated[
        str, typer.Argument(help="Start of an id, stage/id, or a stage: its newest.")
    ],
    store: Root = "",
    recipe: Recipe = "",
) -> None:
    """Print an artifact's manifest."""
    from lmpipe.artifacts.alias import find_by_prefix

    manifest = find_by_prefix(open_store(store, recipe), artifact)
    Console().print_json(manifest.model_dump_json())


@app.command()
def diff(
    old: Annotated[str, typer.Argument(help="Start of an id.")],
    new: Annotated[str, typer.Argument(help="Start of an id.")],
    store: Root = "",
    recipe: Recipe = "",
) -> None:
    """Print the config fields, inputs and metrics in which two artifacts differ."""
    from lmpipe.artifacts.alias import find_by_prefix
    from lmpipe.artifacts.lookup import difference, manifest_fields

    opened = open_store(store, recipe)
    a, b = find_by_prefix(opened, old), find_by_prefix(opened, new)
    console = Console()
    console.print(f"{a.stage}/{a.id} → {b.stage}/{b.id}", highlight=False)
    found = difference(manifest_fields(a), manifest_fields(b))
    for change in found + difference(_metrics(a.metrics), _metrics(b.metrics)):
        console.print(f"  {change}", markup=False, highlight=False)
    if a.digest == b.digest:
        console.print("  content is the same")


@app.command()
def verify(
    artifact: Annotated[str, typer.Argument(help="Start of an id; empty: all.")] = "",
    store: Root = "",
    recipe: Recipe = "",
) -> None:
    """Hash every object again and list what is lost or changed."""
    from lmpipe.artifacts.alias import find_by_prefix
    from lmpipe.artifacts.lookup import list_manifests
    from lmpipe.artifacts.tombstone import when_collected
    from lmpipe.artifacts.types import Artifact

    opened = open_store(store, recipe)
    damaged: list[StoreError] = []
    manifests = (
        [find_by_prefix(opened, artifact)] if artifact else list_manifests(opened, damaged=damaged)
    )
    console, bad = Console(), len(damaged)
    for error in damaged:
        console.print(f"[red]BAD[/] {error}", highlight=False, soft_wrap=True)
    collected = [manifest for manifest in manifests if when_collected(opened, manifest)]
    for manifest in (manifest for manifest in manifests if manifest not in collected):
        wrong = Artifact(opened, manifest).corrupt()
        bad += len(wrong)
        for name in wrong:
            console.print(f"[red]BAD[/] {manifest.stage}/{manifest.id} {name}", highlight=False)
    gone = f", {len(collected)} collected by gc" if collected else ""
    console.print(f"{len(manifests)} artifacts, {bad} bad objects{gone}", highlight=False)
    if bad:
        raise typer.Exit(1)


def _metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    return {f"metric.{name}": value for name, value in metrics.items()}
