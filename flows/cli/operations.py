"""Commands that keep a store in order: `lmpipe alias`, `gc` and `accounting`."""

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flows.cli.outputs import check_folder
from flows.cli.stores import Recipe, Root, named_recipe, open_store
from lmpipe.errors import ConfigError

if TYPE_CHECKING:
    from lmpipe.artifacts.retention import BestOf, Verdict

app = typer.Typer()
OneRecipe = Annotated[
    str, typer.Argument(help="A recipe's name or YAML file: its store; empty: --store.")
]


@app.command("alias")
def alias(
    name: Annotated[str, typer.Argument(help="The name; empty lists all.")] = "",
    artifact: Annotated[
        str, typer.Argument(help="Start of an id, stage/id, or another alias.")
    ] = "",
    drop: Annotated[bool, typer.Option("--drop", help="Forget the name.")] = False,
    store: Root = "",
    recipe: Recipe = "",
) -> None:
    """Name an artifact, which gc then keeps with all it was made from; or list the names."""
    from lmpipe.artifacts.alias import drop_alias, find_by_prefix, list_aliases, set_alias

    opened, console = open_store(store, recipe), Console()
    if drop:
        drop_alias(opened, name)
    elif name and artifact:
        found = find_by_prefix(opened, artifact)
        before = set_alias(opened, name, found)
        was = f", before: {before.stage}/{before.id}" if before else ""
        console.print(f"{name} → {found.stage}/{found.id}{was}", highlight=False)
    elif name:
        raise ConfigError(f"`lmpipe alias {name}` lacks the artifact; or give --drop to forget it")
    else:
        for one in list_aliases(opened):
            console.print(
                f"{one.name} → {one.stage}/{one.id}  set {one.set_at[:16]} by {one.set_by}",
                highlight=False,
            )


@app.command("gc")
def collect_garbage(
    recipe: OneRecipe = "",
    store: Root = "",
    of_recipe: Recipe = "",
    last: Annotated[
        int, typer.Option(min=0, max=10_000, help="Runs, and artifacts a step, that stay.")
    ] = 3,
    days: Annotated[
        float, typer.Option(min=0, max=36_500, help="What is younger than this stays.")
    ] = 7.0,
    best: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE:METRIC:low|high", help="The best of a stage stays."),
    ] = None,
    show_all: Annotated[bool, typer.Option("--list", help="List every artifact, and why.")] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Take old unfinished trainings, too.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete, not only show.")] = False,
) -> None:
    """Show what the store could do without, and with --delete, delete it.

    What has an alias, was used by the last runs, is among the last or the best of its stage, is
    young or in use stays, with all it was made from. Manifests stay in any case, and so do
    unfinished trainings that have a checkpoint to go on from, but for --unfinished.
    """
    from lmpipe.artifacts.gc import collect, preview
    from lmpipe.artifacts.retention import RetentionPolicy
    from lmpipe.report.wording import size

    opened = open_store(store, named_recipe(recipe, of_recipe))
    console = Console()
    policy = RetentionPolicy(last=last, days=days, unfinished=unfinished)
    if best:
        policy = policy.model_copy(update={"best": tuple(map(_best, best))})
    verdicts = preview(opened, policy)
    console.print(verdict_table(verdicts))
    for line in unfinished_lines(verdicts, time.time()):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if show_all:
        _print_each(console, verdicts)
    freed = size(sum(verdict.freed for verdict in verdicts))
    if not delete:
        text = f"{freed} would go from {opened.root}; nothing was deleted: --delete does it"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    done = collect(opened, policy, say=lambda text: console.print(text, highlight=False))
    spared = f"; {len(done.spared)} spared, since somebody began to use them" * bool(done.spared)
    console.print(f"deleted {done.objects} objects, {size(done.bytes)}{spared}", highlight=False)


@app.command("accounting")
def accounting(
    recipe: OneRecipe = "",
    store: Root = "",
    of_recipe: Recipe = "",
    prices: Annotated[
        Path | None, typer.Option(help="YAML table of prices; see lmpipe/report/prices.yaml.")
    ] = None,
    to: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("accounting"),
) -> None:
    """Write what runs and stages took: accounting.parquet, and accounting.html to look at.

    A recipe as argument: only what it took; as --recipe: all that is in its store.
    """
    from lmpipe.artifacts.attempts import read_attempts
    from lmpipe.report.accounting import account, make_page, to_parquet
    from lmpipe.report.html import write_html
    from lmpipe.report.prices import load_prices

    check_folder("--to", to)
    opened = open_store(store, named_recipe(recipe, of_recipe))
    table = load_prices(prices) if prices else load_prices()
    rows = account(read_attempts(opened), table)
    if recipe:
        from flows.recipe import load_recipe

        name = load_recipe(recipe).name
        rows = [row for row in rows if row.recipe == name]
    to.mkdir(parents=True, exist_ok=True)
    (to / "accounting.parquet").write_bytes(to_parquet(rows))
    where = f"recipe {recipe} in {opened.root}" if recipe else opened.root
    (to / "accounting.html").write_text(write_html(make_page(rows, where)), encoding="utf-8")
    print(f"{len(rows)} attempts: {to / 'accounting.html'}, {to / 'accounting.parquet'}")


def unfinished_lines(verdicts: "list[Verdict]", now: float) -> list[str]:
    """Return a line on each training that could be gone on with: how far, how old, what it cost."""
    from lmpipe.artifacts.retention import DAY
    from lmpipe.report.wording import size

    lines = []
    for verdict in verdicts:
        stored, token = verdict.stored, verdict.stored.unfinished
        if not token:
            continue
        attempt = stored.attempts[token]
        how_far = f" ({stored.how_far})" * bool(stored.how_far)
        age, hours = (now - attempt.written) / DAY, stored.lost_seconds / 3600
        stays = "stays: the same run goes on from it, or gc --unfinished takes it"
        lines.append(
            f"unfinished: {stored.home} at step {attempt.step}{how_far}, {age:.1f} days old, "
            f"{size(attempt.bytes)}; again it would take {hours:.1f} h and "
            f"{stored.lost_gpu_hours:.1f} GPU-hours; "
            + ("goes" if token in verdict.entries else stays)
        )
    return lines


def verdict_table(verdicts: "list[Verdict]") -> "Table":
    """Return what a collection does by stage: artifacts, bytes that stay and go, and why."""
    from lmpipe.report.wording import size

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("stage", "artifacts", "collected", "stays", "goes"):
        right = "left" if column == "stage" else "right"
        table.add_column(column, justify=right, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("stays because of", overflow="fold")
    for stage in sorted({v.stored.home.partition("/")[0] for v in verdicts}):
        mine = [v for v in verdicts if v.stored.home.startswith(f"{stage}/")]
        kept = sum(v.stored.bytes - v.freed for v in mine)
        reasons = Counter(v.reasons[0].partition(" ")[0] for v in mine if v.reasons)
        table.add_row(
            stage,
            str(len(mine)),
            str(sum(v.stored.is_collected for v in mine)),
            size(kept),
            size(sum(v.freed for v in mine)),
            ", ".join(f"{n} {reason}" for reason, n in reasons.most_common()),
        )
    return table


def _print_each(console: Console, verdicts: "list[Verdict]") -> None:
    from lmpipe.report.wording import size

    for verdict in sorted(verdicts, key=lambda v: v.stored.home):
        stored = verdict.stored
        if verdict.freed == stored.bytes and stored.bytes:
            what = f"goes: {size(stored.bytes)}"
        elif stored.is_collected and not stored.bytes:
            what = "collected before"
        elif not stored.bytes and not verdict.reasons:
            what = "empty"
        else:
            what = f"stays: {'; '.join(verdict.reasons) or 'unfinished, and young'}"
            what += f"; {size(verdict.freed)} of old attempts and checkpoints go" * bool(
                verdict.freed
            )
        line = f"{stored.home}  {what}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _best(text: str) -> "BestOf":
    from lmpipe.artifacts.retention import BestOf

    stage, _, rest = text.partition(":")
    metric, _, side = rest.rpartition(":")
    if not stage or not metric or side not in ("low", "high"):
        raise ConfigError(
            f"--best {text!r} must read STAGE:METRIC:low or STAGE:METRIC:high, such as "
            "pretrain:bits_per_byte:low"
        )
    return BestOf(stage=stage, metric=metric, lowest=side == "low")
