"""What became of a document: reads one ledger bucket per curation artifact."""

import pyarrow.parquet as pq
from rich.console import Console

from lmpipe.artifacts.lookup import list_manifests
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.tombstone import when_collected
from lmpipe.artifacts.types import Documents
from lmpipe.errors import StoreError


def print_fate(console: Console, document: str, root: str) -> None:
    """Print each stage that removed a document, with reasons, score and threshold."""
    bucket = f"removed/{document[:1]}.parquet"
    found = False
    for manifest in list_manifests(Store(root)):
        artifact = Documents(Store(root), manifest)
        if bucket not in artifact.names() or when_collected(artifact.store, manifest):
            continue
        with artifact.open(bucket) as file:
            rows = pq.read_table(file, filters=[("id", "=", document)]).to_pylist()
        for row in rows:
            found = True
            console.print(f"{manifest.stage}/{manifest.id[:12]} removed it: {row['reason']}")
            for key, value in row.items():
                if value is not None and key not in ("id", "stage", "reason"):
                    console.print(f"  {key}: {value}", markup=False, highlight=False)
    if not found:
        raise StoreError(
            f"no ledger in {root} holds {document}: it was kept, never extracted, or removed by an "
            "artifact that gc has collected"
        )
