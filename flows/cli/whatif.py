"""`lmpipe whatif`: what other thresholds of select would keep and drop, in seconds."""

from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
import yaml
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.table import Table

from flows.cli.stores import Recipe, Root, open_store
from lmpipe.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from lmpipe.artifacts.manifest import Manifest
    from lmpipe.artifacts.store import Store
    from lmpipe.curation.selection.config import SelectConfig

app = typer.Typer()
MAX_ROWS = 15


@app.command()
def whatif(
    artifact: Annotated[
        str,
        typer.Argument(
            help="A select artifact (its own thresholds are compared) or a signals one."
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Such as thresholds.gopher_min_words=30."),
    ] = None,
    store: Root = "",
    recipe: Recipe = "",
    samples: Annotated[int, typer.Option(min=0, max=1000, help="Shown each way.")] = 10,
) -> None:
    """Say what changed thresholds of select would keep and drop, by language and host."""
    from lmpipe.artifacts.alias import find_by_prefix
    from lmpipe.artifacts.types import Documents
    from lmpipe.curation.selection.config import SelectConfig
    from lmpipe.curation.selection.whatif import compare

    opened = open_store(store, recipe)
    manifest, before = find_by_prefix(opened, artifact), SelectConfig()
    if manifest.stage == "select":
        before = _config_of(manifest)
        manifest = _documents_before(opened, manifest, artifact)
    elif manifest.type != "Documents":
        raise ConfigError(f"{artifact!r} is a {manifest.type}; give a select or signals artifact")
    else:
        _refuse_later_stages(opened, manifest)
    after = changed(before, changes or [])
    _print(Console(), compare(Documents(opened, manifest), before, after, samples))


def _config_of(manifest: "Manifest") -> "SelectConfig":
    """Return a select artifact's thresholds."""
    from lmpipe.curation.selection.config import SelectConfig

    try:
        return SelectConfig.model_validate(manifest.config)
    except ValidationError as error:
        detail = error.errors()[0]
        raise ConfigError(
            f"select/{manifest.id[:12]} was made with thresholds that are refused today: "
            f"{detail['msg'].removeprefix('Value error, ')}. Build it again, or give the signals "
            "artifact that it was made from"
        ) from error


def _documents_before(store: "Store", manifest: "Manifest", artifact: str) -> "Manifest":
    """Return what an artifact's documents were made from."""
    from lmpipe.artifacts.lookup import read_manifest

    origin = next(record for record in manifest.inputs if record.role == "documents")
    entry = read_manifest(store, origin.stage, origin.id)
    if entry is None:
        raise ConfigError(f"{origin.stage}/{origin.id}, which {artifact} was made from, is gone")
    return entry[0]


def _refuse_later_stages(store: "Store", manifest: "Manifest") -> None:
    """Refuse what select has already thinned out: the answer would leave out what it removed."""
    from lmpipe.artifacts.lookup import read_manifest

    name = f"{manifest.stage}/{manifest.id[:12]}"
    earlier: "Manifest | None" = manifest
    while earlier is not None and earlier.stage != "select":
        origin = next((r for r in earlier.inputs if r.role == "documents"), None)
        entry = read_manifest(store, origin.stage, origin.id) if origin else None
        earlier = entry[0] if entry else None
    if earlier is not None:
        raise ConfigError(
            f"whatif answers for the thresholds of select, and {name} was made after it: give "
            f"select/{earlier.id[:12]}. What other settings of {manifest.stage} do, "
            f"`lmpipe run RECIPE --only {manifest.stage} --set {manifest.stage}.…` shows"
        )


def changed(config: "SelectConfig", changes: list[str]) -> "SelectConfig":
    """Return select's config with `--set` changes; keys may begin with `select.`.

    Raises:
        ConfigError: an unknown key or a bad value; the key and what is allowed are named.
    """
    if not changes:
        raise ConfigError("give at least one --set, such as thresholds.gopher_min_words=30")
    raw = config.model_dump(mode="json")
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {change!r} must read KEY=VALUE, such as max_perplexity=500")
        try:
            _put(raw, type(config), key.removeprefix("select.").split("."), yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {key}: {text!r} is no YAML value: {error}") from error
    try:
        return type(config).model_validate(raw)
    except ValidationError as error:
        lines = [
            "  "
            + "".join(f"{part}." for part in detail["loc"]).removesuffix(".")
            + (": " if detail["loc"] else "")
            + detail["msg"].removeprefix("Value error, ")
            for detail in error.errors()
        ]
        raise ConfigError("--set gives no valid select config:\n" + "\n".join(lines)) from error


def _put(raw: dict[str, Any], model: type[BaseModel], path: list[str], value: Any) -> None:
    """Set one value; a section that is off (null) is made, with its defaults beside the value."""
    key, *rest = path
    if key not in model.model_fields:
        hint = did_you_mean(key, sorted(model.model_fields))
        raise ConfigError(f"--set {'.'.join(path)}: unknown key {key!r}; {hint}")
    if not rest:
        raw[key] = value
        return
    inner = _model_of(model.model_fields[key].annotation)
    section = raw[key] = raw[key] if isinstance(raw[key], dict) else {}
    if inner is not None:
        _put(section, inner, rest, value)
        return
    for part in rest[:-1]:  # a mapping, by language
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            raise ConfigError(f"--set {'.'.join(path)}: {part!r} is a value, it has no keys")
    section[rest[-1]] = value


def _model_of(annotation: Any) -> type[BaseModel] | None:
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _print(console: Console, shift: Any) -> None:
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
                f" {change.score:.4g}, threshold {change.threshold:.4g}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def _change(count: Any) -> int:
    return int(count["after"] - count["before"])
