"""What became of a document, and where it came from and went.

`why` reads one ledger bucket per curation artifact, `trace` the id columns as well: no text is
read. One line a stage, oldest artifact first, so that the newest run stands last.
"""

import re
from typing import Any

from rich.console import Console

from flows.cli.comparison import print_comparison, print_cuts
from lmpipe.artifacts.lookup import list_manifests
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.tombstone import when_collected
from lmpipe.artifacts.types import Artifact, Documents
from lmpipe.documents.read import find_rows
from lmpipe.errors import ConfigError, StoreError

ORIGIN = ("url", "date", "warc_path", "warc_offset", "warc_record_id", "extractor", "language")
NUM_DUPLICATES = 10


def print_fate(console: Console, document: str, root: str) -> None:
    """Print each stage that removed a document, with reasons, score and threshold."""
    document, found = document_id(document), False
    for artifact in _artifacts(root, "removed/"):
        for row in _removals(artifact, document):
            found = True
            console.print(f"{_name(artifact)} removed it: {row['reason']}", highlight=False)
            for key, value in row.items():
                if value is not None and key not in ("id", "stage", "reason"):
                    console.print(f"  {key}: {value}", markup=False, highlight=False)
            if row["keeper"]:
                print_comparison(console, artifact, document, row["keeper"])
        found |= print_cuts(console, artifact, document)
    if not found:
        raise StoreError(
            f"no ledger in {root} holds {document}: it was kept (`lmpipe trace {document}` says so)"
            ", was never extracted, or removed by an artifact that gc has collected"
        )


def print_trace(console: Console, document: str, root: str) -> None:
    """Print a document's record in the crawl, each stage it passed, its cluster and its tokens."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    document = document_id(document)
    found = origin = False
    for artifact in _artifacts(root, "kept/"):
        row = find_row(artifact, "kept/", "id", document, ORIGIN)
        if row is not None:
            found = True
            if not origin:
                origin = True
                for key in ORIGIN:
                    if row.get(key) is not None:
                        say(f"{key}: {row[key]}")
            say(f"{_name(artifact)} kept it")
        for removal in _removals(artifact, document):
            found = True
            if not origin and removal["url"]:
                origin = True
                for key, value in _origin(artifact, document, removal["url"]).items():
                    say(f"{key}: {value}")
            say(f"{_name(artifact)} removed it: {', '.join(removal['reasons'] or [])}")
            if removal["keeper"]:
                say(f"  duplicate of {removal['keeper']}, similarity {removal['similarity']}")
        if row is not None and artifact.stage == "dedup":
            for line in _duplicates(artifact, document):
                say(line)
    for artifact in _artifacts(root, "index.parquet"):
        row = find_row(artifact, "index.parquet", "document_id", document)
        if row is not None:
            found = True
            end = row["start"] + row["length"]
            say(f"{_name(artifact)} tokens {row['start']}:{end} of {row['split']}/{row['shard']}")
    if not found:
        raise StoreError(
            f"no artifact in {root} holds {document}: name the store that it was made in (--store, "
            "--recipe); what gc has collected is gone"
        )


def document_id(text: str) -> str:
    """Return a document's id as it is written everywhere.

    Raises:
        ConfigError: it is no such id.
    """
    if not re.fullmatch("[0-9a-f]{32}", text.strip().lower()):
        raise ConfigError(
            f"a document's id is 32 hexadecimal digits, got {text!r} ({len(text)}); samples in the "
            "report, `lmpipe whatif` and the column id of documents have them"
        )
    return text.strip().lower()


def _origin(artifact: Documents, document: str, url: str) -> dict[str, Any]:
    """Return where a page that was never a document came from."""
    row = find_row(artifact, "origins.parquet", "id", document) or {}
    known = {key: row[key] for key in ORIGIN if row.get(key) not in (None, "")}
    return {"url": url, **known}


def _artifacts(root: str, holding: str) -> list[Documents]:
    """Return the artifacts that hold such objects, oldest first, without what gc has taken.

    Raises:
        StoreError: the store is empty.
    """
    store = Store(root)
    if not list_manifests(store, damaged=[]):
        raise StoreError(
            f"there is no artifact in {store.root}: is it the right --store or --recipe?"
        )
    return [
        Documents(store, manifest)
        for manifest in reversed(list_manifests(store, damaged=[]))
        if any(file.name.startswith(holding) for file in manifest.outputs)
        and not when_collected(store, manifest)
    ]


def _name(artifact: Artifact) -> str:
    return f"{artifact.stage}/{artifact.id[:12]}"


def _removals(artifact: Artifact, document: str) -> list[dict[str, Any]]:
    bucket = f"removed/{document[:1]}.parquet"
    if bucket not in artifact.names("removed/"):
        return []
    with artifact.open(bucket) as file:
        return list(find_rows(file, "id", [document]))


def find_row(
    artifact: Artifact, prefix: str, key: str, value: str, columns: tuple[str, ...] | None = None
) -> dict[str, Any] | None:
    """Return the row with this key from an artifact's files of a prefix."""
    for name in artifact.names(prefix):
        with artifact.open(name) as file:
            row = next(find_rows(file, key, [value], columns), None)
        if row is not None:
            return row
    return None


def _duplicates(artifact: Artifact, keeper: str) -> list[str]:
    """List the documents that were removed as duplicates of this one."""
    found = []
    for name in artifact.names("removed/"):
        with artifact.open(name) as file:
            rows = list(find_rows(file, "keeper", [keeper], ["id", "similarity"]))
        found += [f"  keeps it for {row['id']}, similarity {row['similarity']}" for row in rows]
    more = len(found) - NUM_DUPLICATES
    return found[:NUM_DUPLICATES] + ([f"  and {more} more"] if more > 0 else [])
