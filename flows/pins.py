"""A recipe's sources, pinned: by their files, or as a run pinned them whose files are away now.

A crawl of terabytes is unmounted once its documents are in the store. Everything after it can still
be planned and run: what its files were stands in the record of the run that pinned them. Matching
the places in manifests of sources with a recipe's globs, the alternative, can take up another set
of files than the recipe would have found.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.recipe import PipelineConfig, anchored
from lmpipe.artifacts.lookup import read_manifest
from lmpipe.artifacts.manifest import Manifest
from lmpipe.artifacts.source import PinnedSource, SourceConfig, SourceSpec, pin
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.tombstone import when_collected
from lmpipe.errors import InputError

MAX_RECORDS = 200  # of runs that are looked through, newest first; each costs one request


def pin_source(recipe: PipelineConfig, name: str, spec: SourceSpec) -> PinnedSource:
    """Return a source's files as they are, or as the newest run of the same paths pinned them.

    Raises:
        InputError: a path matches nothing, and no run in the store has ever pinned these paths.
    """
    try:
        return pin(name, spec, Path(recipe.base))
    except (InputError, OSError) as error:
        reason = str(error)
        manifest = _pinned_before(recipe, name, spec)
        if manifest is None:
            if isinstance(error, InputError):
                raise
            raise InputError(f"source {name!r}: {reason}; is its disk mounted?") from error
    return PinnedSource(
        config=SourceConfig.model_validate(manifest.config),
        locations=manifest.metrics["locations"],
        copy_files=spec.copy_files,
        absent="" if manifest.outputs else reason,
        recalled=f"as run before, its files were not looked at: {reason}",
    )


def _pinned_before(recipe: PipelineConfig, name: str, spec: SourceSpec) -> Manifest | None:
    """Return the source that the newest run with these very paths had, if it is in the store."""
    store = recipe.settings().store
    wanted = [anchored(path, recipe.base) for path in spec.paths]
    for record in _records(store):
        if _paths(record.get("recipe", {}), name) != wanted:
            continue
        for step in record["steps"]:
            if step["name"] != f"source[{name}]" or not step["artifact"]:
                continue
            found = read_manifest(store, "source", step["artifact"])
            if found is not None and not when_collected(store, found[0]):
                return found[0]
    return None


def _records(store: Store) -> Iterator[dict[str, Any]]:
    """Yield the records of runs in a store, newest first."""
    runs = store.children("runs")
    found = [(file, run) for run in runs for file in store.children(f"runs/{run}")]
    for file, run in sorted(found, reverse=True)[:MAX_RECORDS]:
        yield json.loads(store.read(f"runs/{run}/{file}") or b"{}")


def _paths(recipe: dict[str, Any], name: str) -> list[str]:
    """Return the paths that a recorded recipe gave a source, absolute."""
    sources = recipe.get("sources") or {}
    mixture = sources.get("mixture") or {}
    prefix, _, inner = name.partition("-")
    spec = mixture.get(inner) if prefix == "mixture" else sources.get(name)
    return [anchored(path, recipe.get("base", "")) for path in (spec or {}).get("paths", [])]
