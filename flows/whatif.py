"""`lmpipe whatif`: what other bounds of select would keep and drop, in seconds."""

from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console

from lmpipe.errors import ConfigError

app = typer.Typer()
MAX_ROWS = 15


@app.command()
def whatif(
    artifact: Annotated[
        str,
        typer.Argument(help="A select artifact (its own bounds are compared) or a signals one."),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Such as thresholds.gopher_min_words=30."),
    ] = None,
    store: Annotated[str, typer.Option("--store", help="The store's root.")] = "artifacts",
    samples: Annotated[int, typer.Option(min=0, max=1000, help="Shown each way.")] = 10,
) -> None:
    """Say what changed bounds of select would keep and drop, by language and host."""
    from lmpipe.artifacts.lookup import find_by_prefix, read_manifest
    from lmpipe.artifacts.store import Store
    from lmpipe.artifacts.types import Documents
    from lmpipe.curation.select import SelectConfig
    from lmpipe.curation.whatif import compare

    opened = Store(store)
    manifest = find_by_prefix(opened, artifact)
    before = SelectConfig()
    if manifest.stage == "select":
        before = SelectConfig.model_validate(manifest.config)
        origin = next(record for record in manifest.inputs if record.role == "documents")
        entry = read_manifest(opened, origin.stage, origin.id)
        if entry is None:
            raise ConfigError(
                f"{origin.stage}/{origin.id}, which {artifact} was made from, is gone"
            )
        manifest = entry[0]
    if manifest.type != "Documents":
        raise ConfigError(f"{artifact!r} is a {manifest.type}; give a select or signals artifact")
    after = changed(before, changes or [])
    _print(Console(), compare(Documents(opened, manifest), before, after, samples))


def changed(config: Any, changes: list[str]) -> Any:
    """Return select's config with `--set` changes; keys may begin with `select.`.

    Raises:
        ConfigError: an unknown key or a bad value; the key and what is allowed are named.
    """
    raw = config.model_dump()
    if not changes:
        raise ConfigError("give at least one --set, such as thresholds.gopher_min_words=30")
    for change in changes:
        key, equals, text = change.partition("=")
        parts = key.removeprefix("select.").split(".")
        section = raw
        for part in parts[:-1]:
            section = section.get(part) if isinstance(section, dict) else None
        if not equals or not isinstance(section, dict):
            raise ConfigError(
                f"--set {change!r} must read KEY=VALUE with a key of select: {', '.join(raw)}"
            )
        try:
            section[parts[-1]] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {key}: {text!r} is no YAML value: {error}") from error
    try:
        return type(config).model_validate(raw)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()
        ]
        raise ConfigError("--set gives no valid select config:\n" + "\n".join(lines)) from error


def _print(console: Console, shift: Any) -> None:
    from rich.table import Table

    console.print(
        f"{shift.num_documents:,} documents: {shift.kept_before:,} kept before,"
        f" {shift.kept_after:,} after; {shift.num_gained:,} gained, {shift.num_lost:,} lost",
        highlight=False,
    )
    for title, counts in (("language", shift.by_language), ("host", shift.by_host)):
        ranked = sorted(
            counts.items(),
            key=lambda item: (-abs(_change(item[1])), -item[1]["documents"], item[0]),
        )  # fmt: skip
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in (title, "documents", "before", "after", "change"):
            table.add_column(column, justify="left" if column == title else "right")
        for name, count in ranked[:MAX_ROWS]:
            change = _change(count)
            table.add_row(
                name, *(f"{count[k]:,}" for k in ("documents", "before", "after")), f"{change:+,}"
            )
        console.print(table)
        if len(ranked) > MAX_ROWS:
            console.print(f"and {len(ranked) - MAX_ROWS:,} more", highlight=False)
    for side, sample in (("gained", shift.gained), ("lost", shift.lost)):
        for change in sample:
            console.print(
                f"{side} {change.id} {change.url} [{change.language}] {change.rule}:"
                f" {change.score:.4g}, bound {change.threshold:.4g}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def _change(count: Any) -> int:
    return int(count["after"] - count["before"])
