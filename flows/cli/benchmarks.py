"""`lmpipe bench`: one module of lmpipe/bench per benchmark, its rows on screen and as JSON."""

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

import lmpipe.bench
from flows.cli.outputs import check_file
from lmpipe.errors import ConfigError, did_you_mean

COLUMNS = ("bench", "impl", "case", "metric", "value", "unit", "device", "commit")


def run_benchmark(console: Console, name: str, to: Path | None, options: list[str]) -> None:
    """Run one benchmark, or list them all if the name is empty."""
    modules = pkgutil.iter_modules(lmpipe.bench.__path__)
    known = sorted(module.name for module in modules if not module.name.startswith("_"))
    if not name:
        for each in known:
            summary = (importlib.import_module(f"lmpipe.bench.{each}").__doc__ or "").split("\n")[0]
            console.print(f"{each:16} {summary}", markup=False, highlight=False)
        return
    if name not in known:
        raise ConfigError(f"no benchmark {name!r}; {did_you_mean(name, known)}")
    check_file("--json", to)
    module = importlib.import_module(f"lmpipe.bench.{name}")
    try:
        rows: list[dict[str, Any]] = module.run(_parsed(options))
    except ValidationError as error:
        if error.title != "Options":
            raise
        wrong = [f"  {detail['loc'][0]}: {detail['msg']}" for detail in error.errors()]
        known = [
            f"  {key}: {field.description or ''}"
            for key, field in module.Options.model_fields.items()
        ]
        raise ConfigError(
            f"options of `lmpipe bench {name}`, given as --set KEY=VALUE:\n"
            + "\n".join([*wrong, "known are", *known])
        ) from error
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in COLUMNS))
    console.print(table)
    if to is not None:
        to.write_text(json.dumps(rows, indent=1))


def _parsed(options: list[str]) -> dict[str, Any]:
    """Return `KEY=VALUE` options as a dictionary, values read as YAML."""
    pairs = (option.partition("=") for option in options)
    return {key: yaml.safe_load(value) for key, _, value in pairs}


def _text(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
