"""What the command `lmpipe` does with recipes, stores and models.

Heavy imports happen inside the commands that need them. What concerns a server (deploy, worker,
up) is added one layer above, in deployments/cli.py.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from flows.cli import adoption, artifacts, cost, curation, export, operations, whatif
from flows.cli.outputs import check_file, check_folder
from flows.cli.stores import Recipe as OfRecipe
from flows.cli.stores import Root, named_recipe, open_store
from lmpipe.errors import ConfigError, LmpipeError, RunFailed, did_you_mean
from tasks.selection import Selection

if TYPE_CHECKING:
    from flows.recipe import PipelineConfig
    from lmpipe.artifacts.store import Store
    from lmpipe.artifacts.types import Report
    from tasks.plan import Step

app = typer.Typer(
    help="Raw web crawl in, an aligned and evaluated language model out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Bring data in from outside.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(artifacts.app)  # ls, show, diff, verify
app.add_typer(operations.app)  # alias, gc, accounting
app.add_typer(adoption.app)  # adopt
app.add_typer(cost.app)  # cost
app.add_typer(export.app)  # export
app.add_typer(curation.app)  # dedup-index, contamination
app.add_typer(whatif.app)  # whatif

Recipe = Annotated[str, typer.Argument(help="A recipe's name (demo) or a YAML file.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value.")
]
From = Annotated[str, typer.Option("--from", help="Take all before this stage from the store.")]
Until = Annotated[str, typer.Option("--until", help="Build nothing after this stage.")]
Only = Annotated[str, typer.Option("--only", help="Build this stage alone.")]
Force = Annotated[list[str] | None, typer.Option("--force", help="Build it even if it is there.")]
Flow = Annotated[str, typer.Option("--flow", help="pipeline, curate, tokenize, …, or scale.")]


INTERRUPTED = 130  # what a shell says of a command that Ctrl-C ended


@app.command()
def run(
    recipe: Recipe,
    changes: Changes = None,
    from_stage: From = "",
    until: Until = "",
    only: Only = "",
    force: Force = None,
    flow: Flow = "pipeline",
    reason: Annotated[str, typer.Option(help="Why, for the manifests.")] = "",
    verbose: Annotated[bool, typer.Option(help="Show what the stages' processes write.")] = False,
    remote: Annotated[bool, typer.Option(help="Queue it on the server instead.")] = False,
    approve: Annotated[bool, typer.Option(help="With --remote: wait to be resumed.")] = False,
) -> None:
    """Run a recipe: build every stage that is not in the store yet."""
    started = time.monotonic()
    console = Console()
    selection = _selection(from_stage, until, only, force, reason)
    loaded = _load(recipe, changes, flow)
    from flows.run import plan_run

    if remote:
        from flows.remote import hindrances, submit_rerun

        print(submit_rerun(flow, loaded, selection, approve))
        for reason in hindrances(flow):
            print(f"it waits: {reason}", file=sys.stderr)
        return
    plan_run(flow, loaded, selection)  # a bad selection or wiring stops here, before any server
    _prepare_prefect()
    from flows.cli.local import run_locally, server_to_start
    from flows.terminal import Terminal

    if starting := server_to_start():
        console.print(starting, style="dim")
    try:
        with Terminal(console, verbose) as terminal:
            run_locally(flow, loaded, selection, terminal)
    except RunFailed:
        _show_report(console, loaded, terminal.steps)
        raise
    except KeyboardInterrupt:
        kept = "finished stages, shards and checkpoints are kept; the same command goes on"
        Console(stderr=True).print(f"interrupted: {kept}", highlight=False)
        raise typer.Exit(INTERRUPTED) from None
    console.print(f"done in {time.monotonic() - started:.1f} s", highlight=False)
    _show_report(console, loaded, terminal.steps)


@app.command()
def plan(
    recipe: Recipe,
    changes: Changes = None,
    from_stage: From = "",
    until: Until = "",
    only: Only = "",
    force: Force = None,
    flow: Flow = "pipeline",
) -> None:
    """Say of each stage whether it would be found, built or wait, and why."""
    selection = _selection(from_stage, until, only, force)
    loaded = _load(recipe, changes, flow)
    from flows.run import look_ahead
    from flows.terminal import show_plan
    from tasks.plan import check_runnable

    steps = look_ahead(flow, loaded, selection)
    show_plan(Console(), steps)
    check_runnable(steps, selection)


@app.command()
def report(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (demo) or a YAML file.")] = "",
    changes: Changes = None,
    to: Annotated[Path | None, typer.Option(help="Copy the page there.")] = None,
    store: Root = "",
    of_recipe: OfRecipe = "",
) -> None:
    """Print where the newest report of a recipe lies, or copy it."""
    from flows.recipe import load_recipe

    check_file("--to", to)
    loaded = load_recipe(named_recipe(recipe, of_recipe, is_needed=True), changes)
    opened = open_store(store, "") if store else loaded.settings().store
    for name in reversed(opened.children(f"runs/{loaded.name}")):
        record = json.loads(opened.read(f"runs/{loaded.name}/{name}") or b"{}")
        page = _page_of(opened, [step for step in record["steps"] if step["stage"] == "report"])
        if page is None:
            continue
        if to is not None:
            with page.open("report.html") as source, to.open("wb") as target:
                shutil.copyfileobj(source, target)
        print(to or page.url("report.html").removeprefix("file://"))
        return
    raise ConfigError(f"no run of {loaded.name!r} in {opened.root} has made a report; run it first")


@app.command()
def why(
    document: Annotated[str, typer.Argument(help="A document's id (32 hex digits).")],
    store: Root = "",
    recipe: OfRecipe = "",
) -> None:
    """Say what became of a document: which stage removed it, and for which reasons."""
    from flows.cli.lineage import print_fate

    print_fate(Console(), document, open_store(store, recipe).root)


@app.command()
def trace(
    document: Annotated[
        str, typer.Argument(help="A document's id (32 hex digits); a checkpoint's with --step.")
    ] = "",
    token: Annotated[
        str, typer.Option(help="[SPLIT/]SHARD:OFFSET of the token shards given, or the newest.")
    ] = "",
    step: Annotated[int | None, typer.Option(min=0, help="A step of pretraining, from 0.")] = None,
    store: Root = "",
    recipe: OfRecipe = "",
) -> None:
    """Follow a document back to its WARC record and forward to its tokens, or a token back."""
    root = open_store(store, recipe).root
    if document and not token and step is None:
        from flows.cli.lineage import print_trace

        print_trace(Console(), document, root)
    else:
        from flows.cli.token_origin import print_tokens

        print_tokens(Console(), document, token, step, root)


@data_app.command("common-crawl")
def common_crawl(
    snapshot: Annotated[str, typer.Option(help="Such as CC-MAIN-2024-10.")],
    num_files: Annotated[int, typer.Option(min=1, help="How many WARC files.")],
    to: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("crawl"),
    seed: Annotated[int, typer.Option(help="Which files are drawn.")] = 0,
    base_url: Annotated[str, typer.Option(help="Where the crawl is served.")] = "",
) -> None:
    """Download WARC files of a Common Crawl snapshot; run again to resume."""
    from flows.cli.download import download_common_crawl

    check_folder("--to", to)
    download_common_crawl(Console(), snapshot, num_files, to, seed, base_url)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="A benchmark; empty lists them.")] = "",
    to: Annotated[Path | None, typer.Option("--json", help="Write the rows there.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of it.")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Renew the kernel's settings for this device instead.")
    ] = False,
) -> None:
    """Run a benchmark beside its peers."""
    from flows.cli.benchmarks import run_benchmark

    run_benchmark(Console(), name, to, [*(options or []), *(["tune=true"] if tune else [])])


def _load(recipe: str, changes: list[str] | None, flow: str) -> "PipelineConfig":
    from flows.recipe import load_recipe
    from flows.run import COMPOSITIONS

    if flow not in COMPOSITIONS:
        raise ConfigError(f"--flow {flow!r}: no such flow; {did_you_mean(flow, COMPOSITIONS)}")
    return load_recipe(recipe, changes)


def _selection(
    from_stage: str, until: str, only: str, force: list[str] | None, reason: str = ""
) -> Selection:
    return Selection(
        from_stage=from_stage,
        until_stage=until,
        only=only,
        force=tuple(force or ()),
        reason=reason,
    )


def _prepare_prefect() -> None:
    """Set defaults for a run in a terminal, before Prefect's first import reads them."""
    defaults = {
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",  # a fresh home migrates for 55 s
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # The terminal shows progress, and an error once: not its traceback from task, flow and run.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        # `python -m` looks in the working directory first: an attr.py of the user's there would
        # be imported by the server and by every stage.
        "PYTHONSAFEPATH": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _show_report(console: Console, recipe: "PipelineConfig", steps: "list[Step]") -> None:
    """Say where the report of a run lies, if it made one."""
    page = _page_of(recipe.settings().store, [vars(s) for s in steps if s.stage == "report"])
    if page is not None:
        place = page.url("report.html").removeprefix("file://")
        console.print(f"report: {place}", markup=False, highlight=False, soft_wrap=True)


def _page_of(store: "Store", steps: list[dict[str, Any]]) -> "Report | None":
    from lmpipe.artifacts.lookup import read_manifest
    from lmpipe.artifacts.tombstone import when_collected
    from lmpipe.artifacts.types import Report

    for step in steps:
        entry = read_manifest(store, "report", step["artifact"]) if step["artifact"] else None
        if entry is not None and not when_collected(store, entry[0]):
            return Report(store, entry[0])
    return None


def main() -> None:
    """Run the command line; errors of ours are one message, defects are a traceback."""
    try:
        app()
    except LmpipeError as error:
        Console(stderr=True).print(f"[red]error:[/] {type(error).__name__}:", error, markup=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
