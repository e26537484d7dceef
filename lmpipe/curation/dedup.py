"""dedup: one document of each set of equal or nearly equal ones is kept.

Equal: the same folded words (case, accents, punctuation and blanks do not count). Nearly equal: two
documents meet in a MinHash band (see minhash.py) and agree in at least `min_similarity` of their
minima. The longest stays; of equally long ones that with the smallest id. So the outcome depends on
the set of documents alone, not on their order or on who works on them.

Two passes over the shards with one gathering between them:

1. sketch: id, length, digest, minima and band keys of each document, shard by shard, in parallel;
2. gather: digests and one band's keys at a time are sorted and joined by union-find. Memory is
   about 60 bytes a document plus 24 for the band in work, whatever the number of bands;
3. filter: each shard writes the documents that stay and its part of the ledger.

The sketches stay in the artifact (560 bytes a document by default): a later crawl can be compared
with them without reading any text again.

Documents with fewer words than the n-gram have no n-grams and are compared for equality only; one
without any word is compared by nothing and stays.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

if TYPE_CHECKING:
    from lmpipe.curation.duplicates import Duplicates


class DedupConfig(StageConfig):
    """What counts as a duplicate, and when to raise the alarm."""

    ngram: int = Field(5, ge=1, le=64, description="Words in a shingle.")
    bands: int = Field(
        14, ge=0, le=256, description="Bands of a signature; 0 removes equal documents only."
    )
    rows: int = Field(8, ge=1, le=64, description="Minima in a band; all must agree to meet.")
    min_similarity: float = Field(
        0.7,
        ge=0,
        le=1,
        description="Documents that met go only if they agree with the kept one in this share of "
        "their minima; 0 trusts the bands alone, as FineWeb does, chains included.",
    )
    max_keepers: int = Field(
        1024,
        ge=1,
        le=1_000_000,
        description="With how many kept documents of its cluster a document is compared at most.",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the hash functions.")
    alarm_cluster_size: int = Field(
        1000, ge=2, description="Warn of clusters that are larger: a template met itself."
    )
    alarm_host_fraction: float = Field(
        0.95, gt=0, le=1, description="Warn of hosts that lose a larger share of their documents."
    )
    alarm_host_documents: int = Field(
        20, ge=1, description="Smaller hosts raise no alarm of their own."
    )
    stop_on_alarm: bool = Field(False, description="Fail instead of warning.")


@stage(version=1, kind="exact")
def dedup(
    out: Output[Documents], config: DedupConfig, documents: Documents, *, runtime: Runtime
) -> Documents:
    """Keep one document of each set of duplicates; the others name it in the ledger.

    Raises:
        InputError: there are no documents, or an alarm with `stop_on_alarm`.
    """
    from lmpipe.curation.duplicates import find_duplicates
    from lmpipe.curation.word_hashes import enough_workers
    from lmpipe.documents.ledger import assert_conserved, gather_parts, warn_of_low_yield
    from lmpipe.documents.read import count_documents, shard_names

    names = {Path(name).stem: name for name in shard_names(documents)}
    runtime = enough_workers(runtime, count_documents(documents))
    sketch = partial(sketch_shard, config=config, documents=documents, names=names)
    sketches = out.run_shards([f"sketch-{key}" for key in names], sketch, runtime)
    found = find_duplicates(out, sketches, config)
    if found.num_documents == 0:
        raise InputError("dedup got no documents; look at what the stage before removed")
    removals = _store_removals(out, found, list(names))
    work = partial(
        filter_shard,
        config=config,
        documents=documents,
        names=names,
        store=out.store,
        removals=removals,
    )
    records = out.run_shards(list(names), work, runtime)
    num_kept = sum(int(record.counts["kept"]) for record in records)
    assert_conserved("dedup", found.num_documents, num_kept, gather_parts(out, list(names)))
    warn_of_low_yield(out, "dedup", found.num_documents, num_kept, runtime)
    _report(out, config, found, records)
    return out.commit()


def sketch_shard(
    shard: ShardOutput,
    key: str,
    *,
    config: DedupConfig,
    documents: Documents,
    names: dict[str, str],
) -> None:
    """Write what the gathering needs to know of one shard's documents."""
    import numpy as np

    from lmpipe.curation.duplicates import HEAD, sketch_batch, write_sketch
    from lmpipe.curation.minhash import HashFamily
    from lmpipe.documents.read import read_shard

    number = key.removeprefix("sketch-")
    width = config.bands * config.rows
    family = HashFamily.from_seed(config.seed, width)
    heads, minima = [np.empty(0, HEAD)], [np.empty((0, width), np.uint32)]
    for batch in read_shard(documents, names[number], ["id", "text"]):
        head, rows = sketch_batch(batch, config.ngram, family)
        heads.append(head)
        minima.append(rows)
    shard.counts["documents"] = sum(len(head) for head in heads)
    write_sketch(shard, number, np.concatenate(heads), np.concatenate(minima), config.bands)


def filter_shard(
    shard: ShardOutput,
    key: str,
    *,
    config: DedupConfig,
    documents: Documents,
    names: dict[str, str],
    store: Store,
    removals: dict[str, str],
) -> None:
    """Write one shard's documents that stay, and its part of the ledger."""
    import numpy as np
    import pyarrow as pa

    from lmpipe.curation.duplicates import REMOVAL, unpack_id
    from lmpipe.documents.ledger import removal, write_part
    from lmpipe.documents.read import read_shard
    from lmpipe.documents.write import DocumentWriter

    gone = np.frombuffer(store.read(removals[key]) or b"", REMOVAL)
    first, hosts, rows = 0, _Hosts(), []
    with shard.open(f"kept/{key}.parquet", "wb") as file, DocumentWriter(file) as writer:
        for batch in read_shard(documents, names[key]):
            last = first + batch.num_rows
            mine = gone[(gone["row"] >= first) & (gone["row"] < last)]
            keep = np.ones(batch.num_rows, np.bool)
            keep[mine["row"] - first] = False
            writer.write_table(batch.filter(pa.array(keep)))
            ids, urls = (batch.column(c).take(pa.array(mine["row"] - first)) for c in ("id", "url"))
            for row, id_, url in zip(mine, ids.to_pylist(), urls.to_pylist(), strict=True):
                score = float(row["similarity"])
                rows.append(
                    removal(
                        id_,
                        "dedup",
                        "exact_duplicate" if row["exact"] else "near_duplicate",
                        score=score,
                        threshold=1.0 if row["exact"] else config.min_similarity,
                        keeper=unpack_id(row["keeper"]),
                        similarity=score,
                        url=url,
                    )
                )
            hosts.add(batch.column("host").to_pylist(), keep.tolist())
            first = last
    shard.set_rows(f"kept/{key}.parquet", writer.num_rows)
    write_part(shard, key, rows)
    shard.counts["kept"] = writer.num_rows
    shard.info["hosts"] = hosts.counts


class _Hosts:
    """How many documents each host brought, and how many of them go."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}

    def add(self, hosts: list[str | None], keep: list[bool]) -> None:
        for host, stays in zip(hosts, keep, strict=True):
            count = self.counts.setdefault(host or "", [0, 0])
            count[0] += 1
            count[1] += not stays


def _store_removals(out: Output[Documents], found: "Duplicates", keys: list[str]) -> dict[str, str]:
    """Put each shard's removals where its worker finds them; they are no part of the artifact."""
    paths = {}
    for index, key in enumerate(keys):
        name = f"removals/{key}"
        out.write_bytes(name, found.removals(index).tobytes())
        paths[key] = out.files.pop(name).path
    return paths


def _report(
    out: Output[Documents], config: DedupConfig, found: "Duplicates", records: list[ShardRecord]
) -> None:
    import numpy as np

    removed, exact = found.is_removed, found.exact
    num_exact, num_near = int(exact.sum()), int((removed & ~exact).sum())
    out.metric("input", found.num_documents)
    out.metric("kept", int((~removed).sum()))
    out.metric("removed", {"exact_duplicate": num_exact, "near_duplicate": num_near})
    keepers, followers = np.unique(found.keepers[removed], return_counts=True)
    largest = np.argsort(-followers, kind="stable")[:20]
    rows = []
    for index in largest.tolist():
        mine = found.similarity[removed & (found.keepers == keepers[index])]
        rows.append(
            {
                "keeper": _id_of(found, int(keepers[index])),
                "removed": int(followers[index]),
                "mean similarity": round(float(mine.mean()), 3),
            }
        )
    out.table("largest clusters", rows)
    out.metric("largest_cluster", int(followers.max()) + 1 if len(followers) else 1)
    out.metric("met_clusters", len(found.cluster_sizes))
    hosts = _merge_hosts(records)
    worst = sorted(hosts, key=lambda host: (-hosts[host][1], host))[:20]
    out.table(
        "hosts", [{"host": h, "documents": hosts[h][0], "removed": hosts[h][1]} for h in worst]
    )
    _raise_alarms(out, config, rows, hosts)


def _id_of(found: "Duplicates", document: int) -> str:
    from lmpipe.curation.duplicates import unpack_id

    return unpack_id(found.heads["id"][document])


def _merge_hosts(records: list[ShardRecord]) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = {}
    for record in records:
        for host, (documents, removed) in record.info["hosts"].items():
            count = hosts.setdefault(host, [0, 0])
            count[0] += documents
            count[1] += removed
    return hosts


def _raise_alarms(
    out: Output[Documents],
    config: DedupConfig,
    clusters: list[dict[str, Any]],
    hosts: dict[str, list[int]],
) -> None:
    """Warn where duplicates look like a template or a wiped-out source rather than copies."""
    alarms = [
        f"cluster of {row['keeper']} has {row['removed'] + 1} documents, over alarm_cluster_size="
        f"{config.alarm_cluster_size}: is it a template?"
        for row in clusters
        if row["removed"] + 1 > config.alarm_cluster_size
    ] + [
        f"host {host!r} lost {removed} of {documents} documents, over alarm_host_fraction="
        f"{config.alarm_host_fraction}"
        for host, (documents, removed) in sorted(hosts.items())
        if documents >= config.alarm_host_documents
        and removed > config.alarm_host_fraction * documents
    ]
    out.metric("alarms", alarms)
    for alarm in alarms:
        out.log(alarm, level="warning")
    if alarms and config.stop_on_alarm:
        raise InputError(f"dedup stops on {len(alarms)} alarms: {'; '.join(alarms[:5])}")
