"""A named list of deduplicated crawls: what a new crawl is compared with.

The index holds no sketches, only which artifacts of `dedup` have them: adding or taking out a crawl
is one conditional put of one small object, so it happens whole or not at all, and two that grow the
index at once both succeed. Each crawl gets an alias too (`NAME-` and the start of its id), so that
gc keeps it. The alternative, one growing file of all keys, has to be rewritten to
take a crawl out, and a writer killed in the middle leaves a file that is neither.

Taking a crawl out does not bring back what later crawls lost to it; `dependents` says how many
documents that is, and building those crawls again against the smaller index brings them back.
"""

import json
import re
from collections.abc import Callable

from lmpipe.artifacts.alias import drop_alias, find_by_prefix, list_aliases, set_alias
from lmpipe.artifacts.lookup import read_manifest
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.tombstone import when_collected
from lmpipe.artifacts.types import Documents
from lmpipe.curation.dedup.signatures import pack_ids, unpack_id
from lmpipe.documents.read import read_documents, read_removed
from lmpipe.errors import ConfigError, InputError, StoreError

Change = Callable[[list[str]], list[str]]

FOLDER = "aliases/dedup"  # a folder of names, which is no stage
ATTEMPTS = 50


def read_index(store: Store, name: str) -> list[str]:
    """Return the ids of an index's crawls, in order of addition; none if it does not exist."""
    found = store.read_tagged(_path(name))
    return _parse(found[0], name) if found else []


def open_index(store: Store, name: str) -> list[Documents]:
    """Return an index's crawls.

    Raises:
        ConfigError: no such index.
        StoreError: one of them is gone.
    """
    if store.read_tagged(_path(name)) is None:
        known = sorted(
            path.rsplit("/", 1)[-1].removesuffix(".json") for path in store.sizes(FOLDER)
        )
        raise ConfigError(
            f"no index {name!r} of earlier crawls; known are: {', '.join(known) or 'none'}; "
            f"`lmpipe dedup-index {name} --add ID` makes it from a first crawl's dedup"
        )
    crawls = []
    for id_ in read_index(store, name):
        found = read_manifest(store, "dedup", id_)
        if found is None or when_collected(store, found[0]):
            raise StoreError(
                f"index {name!r} names dedup/{id_}, which is gone: take it out "
                f"(`lmpipe dedup-index {name} --remove {id_[:12]}`) or build it again"
            )
        crawls.append(Documents(store, found[0]))
    return crawls


def present_crawls(store: Store, name: str) -> list[Documents]:
    """Return those crawls of an index that are not gone; none if there is no such index."""
    found = [read_manifest(store, "dedup", id_) for id_ in read_index(store, name)]
    return [
        Documents(store, entry[0])
        for entry in found
        if entry is not None and not when_collected(store, entry[0])
    ]


def add_crawl(store: Store, name: str, artifact: str) -> list[str]:
    """Add a crawl by the start of its id; return the index. Adding it again changes nothing.

    Raises:
        InputError: it is no artifact of dedup, or its sketches do not fit the others'.
    """
    manifest = find_by_prefix(store, artifact if "/" in artifact else f"dedup/{artifact}")
    if manifest.stage != "dedup":
        raise InputError(f"{manifest.stage}/{manifest.id} is not of dedup: it has no sketches")
    for other in present_crawls(store, name):
        for field in ("ngram", "bands", "rows", "seed", "same_url"):
            mine, theirs = manifest.config.get(field), other.manifest.config.get(field)
            if mine != theirs:
                raise InputError(
                    f"dedup/{manifest.id} has {field}={mine}, index {name!r} has {theirs}: "
                    "sketches cannot be compared; build it with the index's settings"
                )

    def add(ids: list[str]) -> list[str]:
        return ids if manifest.id in ids else [*ids, manifest.id]

    set_alias(store, _alias(name, manifest.id), manifest)  # first: gc must not come in between
    return _change(store, name, add)


def remove_crawl(store: Store, name: str, artifact: str) -> list[str]:
    """Take a crawl out by the start of its id; return what is left.

    Raises:
        ConfigError: the index has no such crawl, or several.
    """

    def remove(ids: list[str]) -> list[str]:
        found = [id_ for id_ in ids if id_.startswith(artifact.removeprefix("dedup/"))]
        if len(found) != 1:
            raise ConfigError(
                f"{artifact!r} names {len(found)} of index {name!r}'s crawls, must name one of: "
                f"{', '.join(ids) or 'none'}"
            )
        return [id_ for id_ in ids if id_ != found[0]]

    before = read_index(store, name)
    left = _change(store, name, remove)
    known = {alias.name for alias in list_aliases(store)}
    for alias in {_alias(name, id_) for id_ in before if id_ not in left} & known:
        drop_alias(store, alias)
    return left


def dependents(crawl: Documents, others: list[Documents]) -> dict[str, int]:
    """Return how many documents each other crawl lost to documents that this one keeps."""
    ids = {
        unpack_id(pair)
        for batch in read_documents(crawl, ["id"])
        for pair in pack_ids(batch.column("id").to_pylist())
    }
    lost = {}
    for other in others:
        keepers = (k for b in read_removed(other) for k in b.column("keeper").to_pylist())
        count = sum(keeper in ids for keeper in keepers) if other.id != crawl.id else 0
        if count:
            lost[other.id] = count
    return lost


def _alias(name: str, id_: str) -> str:
    return f"{name}-{id_[:12]}"


def _change(store: Store, name: str, change: Change) -> list[str]:
    """Rewrite the index by compare-and-swap."""
    path = _path(name)
    for _ in range(ATTEMPTS):
        found = store.read_tagged(path)
        old = _parse(found[0], name) if found else []
        new = change(old)
        if new == old and found:
            return old
        data = json.dumps({"crawls": new}, indent=1).encode()
        etag = store.replace(path, data, found[1]) if found else store.create(path, data)
        if etag is not None:
            return new
    raise StoreError(f"{store.url(path)} changed {ATTEMPTS} times in a row; try again")


def _path(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,40}", name):
        raise ConfigError(f"index name {name!r} must be 1 to 41 of a-z 0-9 _ -, a letter first")
    return f"{FOLDER}/{name}.json"


def _parse(data: bytes, name: str) -> list[str]:
    try:
        crawls = json.loads(data)["crawls"]
        return [str(id_) for id_ in crawls]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"index {name!r} is damaged: {error!r}; delete {_path(name)} from the store and add "
            "its crawls anew"
        ) from error
