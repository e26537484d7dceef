"""Names for artifacts: `lmpipe alias production 3fa9…`. gc keeps what has a name.

An alias is one object, `aliases/<name>.json`, moved by a conditional put, so that of two people who
move it at once one is told. Everything that takes the start of an id takes an alias too.
"""

import getpass
import json
import re

from pydantic import BaseModel, ConfigDict

from lmpipe.artifacts.lookup import home, list_manifests, list_stages, read_manifest
from lmpipe.artifacts.manifest import Manifest
from lmpipe.artifacts.provenance import now
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.tombstone import claim, names_any
from lmpipe.errors import ConfigError, StoreError

FOLDER = "aliases"
PATTERN = re.compile(r"[a-z][a-z0-9._-]{0,63}")
HEX = re.compile(r"[0-9a-f]+")


class Alias(BaseModel):
    """A name and the artifact that it stands for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    stage: str
    id: str
    set_at: str
    set_by: str


def set_alias(store: Store, name: str, manifest: Manifest) -> Alias | None:
    """Let a name stand for an artifact; return what it stood for before.

    Raises:
        ConfigError: the name is not one, or could be the start of an id or a stage.
        StoreError: gc has taken the artifact, or somebody else moved the name at the same moment.
    """
    if not PATTERN.fullmatch(name) or HEX.fullmatch(name):
        raise ConfigError(
            f"alias {name!r} must be 1 to 64 of a-z 0-9 . _ -, begin with a letter, and not be all "
            "hex digits, as the start of an id is; such as production or best-base"
        )
    if store.children(name):
        raise ConfigError(f"alias {name!r} is the name of a stage; choose another")
    path = f"{FOLDER}/{name}.json"
    alias = Alias(
        name=name, stage=manifest.stage, id=manifest.id, set_at=now(), set_by=getpass.getuser()
    )
    data = alias.model_dump_json(indent=1).encode()
    found = store.read_tagged(path)
    etag = store.create(path, data) if found is None else store.replace(path, data, found[1])
    if etag is None:
        raise StoreError(f"somebody else set {name!r} at the same moment; see `lmpipe alias`")
    # in this order: gc condemns and then reads the aliases, so one of us sees the other
    if names_any(claim(store, home(manifest.stage, manifest.id)), manifest):
        raise StoreError(
            f"{manifest.stage}/{manifest.id} was collected by gc; build it anew by `lmpipe run`: "
            f"{name!r} then stands for the new objects"
        )
    return Alias.model_validate_json(found[0]) if found else None


def drop_alias(store: Store, name: str) -> None:
    """Forget a name; the artifact stays until gc finds no other reason to keep it."""
    if store.size(f"{FOLDER}/{name}.json") is None:
        known = ", ".join(alias.name for alias in list_aliases(store)) or "none"
        raise StoreError(f"no alias {name!r} in {store.root}; there is {known}")
    store.delete(f"{FOLDER}/{name}.json")


def list_aliases(store: Store) -> list[Alias]:
    """Return all aliases by name."""
    names = [n for n in store.children(FOLDER) if n.endswith(".json") and not n.startswith(".")]
    found = [store.read(f"{FOLDER}/{name}") for name in names]
    return [Alias.model_validate_json(data) for data in found if data is not None]


def read_alias(store: Store, name: str) -> Manifest | None:
    """Return the manifest of what a name stands for, or None if it is no alias."""
    data = store.read(f"{FOLDER}/{name}.json") if PATTERN.fullmatch(name) else None
    if data is None:
        return None
    alias = json.loads(data)
    entry = read_manifest(store, alias["stage"], alias["id"])
    return entry[0] if entry else None


def find_by_prefix(store: Store, prefix: str) -> Manifest:
    """Return the one artifact with this alias, or whose id, or stage/id, starts with `prefix`.

    Raises:
        StoreError: none or several match; several are listed. Or the manifest that does is damaged.
    """
    if (named := read_alias(store, prefix)) is not None:
        return named
    stage, _, start = prefix.rpartition("/")
    found = list_manifests(store, stage or None, start=start)
    if not found and not stage and prefix in list_stages(store):
        found = list_manifests(store, prefix, damaged=[])[:1]
    if len(found) != 1:
        names = ", ".join(f"{m.stage}/{m.id}" for m in found[:8]) or "none"
        raise StoreError(
            f"{prefix!r} must name one artifact in {store.root}; it matches {names}. `lmpipe ls "
            f"--store {store.root}` lists them"
        )
    return found[0]
