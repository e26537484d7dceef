"""dedup: one document of each set of equal or nearly equal ones is kept.

Of one address (if asked for): the normalised URLs are the same (see urls.py). Exact: the same
text but for blanks and Unicode's normal form (text_digests.py). Same words: they differ in case,
accents and punctuation only; operators, signs and vowel signs count (word_hashes.py). Nearly equal:
two documents meet
in a MinHash band (see minhash.py) and, compared n-gram by n-gram, are similar enough, or the kept
one contains the other (see verification.py). Which one stays is a policy; ties go to the longer
one, then to the smaller id. So the outcome depends on the set of documents alone, not on their
order or on who works on them.

Passes over the shards, with a gathering between them:

1. sketch: id, length, digest, minima and band keys of each document, shard by shard, in parallel;
2. gather: band by band, keys are dealt to parts that fit `runtime.sort_memory_mb` and joined
   (clusters.py). Memory is that and about 50 bytes a document, whatever the number of bands. On
   Ray or Slurm parts of bands are tasks of their own (band_joins.py);
3. verify: the n-grams of documents that met, and of no others, are shuffled and compared;
4. filter: each shard writes the documents that stay, its part of the ledger, and the evidence:
   keeper, similarity, containment both ways, and how many words are lost.

The sketches stay in the artifact (641 bytes a document by default). With earlier crawls as input,
theirs are compared with too: only new documents go, and the ledger names the earlier one they
repeat. See index.py for the list of crawls that a new one is compared with.

A document that others name as their keeper may go itself, as a near duplicate of a third; its own
row in the ledger says of which.

Documents with fewer words than the n-gram have no n-grams and are compared for equality only; one
without any word is compared by nothing but its address.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lmpipe.artifacts.output import Output, ShardOutput
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.documents.read import count_documents
from lmpipe.documents.retention import Hosts, hosts_of
from lmpipe.documents.stage import StoredPart, map_documents, part_keys, scan_documents
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

if TYPE_CHECKING:
    from lmpipe.curation.dedup.signatures import Sketches, Verdicts


@stage(version=3, kind="exact")
def dedup(
    out: Output[Documents],
    config: DedupConfig,
    documents: Documents,
    earlier: list[Documents],
    *,
    runtime: Runtime,
) -> Documents:
    """Keep one document of each set of duplicates; the others name it in the ledger.

    Raises:
        InputError: there are no documents, none would stay, an earlier crawl's sketches do not fit,
            or an alarm with `stop_on_alarm`.
    """
    from lmpipe.curation.dedup.signatures import Sketches, earlier_shards, new_shards
    from lmpipe.curation.text.word_hashes import enough_workers

    count = count_documents(documents)
    if count == 0:
        raise InputError("dedup got no documents; look at what the stage before removed")
    past = earlier_shards(earlier, config, dedup.version)
    runtime = enough_workers(runtime, count)
    made = scan_documents(out, documents, "sketch", partial(sketch_shard, config=config), runtime)
    with out.scratch(runtime) as scratch:
        shards = new_shards(documents, made) + past
        sketches = Sketches(out.store, shards, config.bands, config.rows, scratch)
        verdicts = _find(out, sketches, config, scratch, runtime)
        removals = _store_removals(out, sketches, verdicts, part_keys(documents))
        work = partial(filter_part, config=config, store=out.store, removals=removals)
        mapped = map_documents(out, documents, work, runtime)
        if mapped.num_kept == 0:
            raise InputError(
                f"dedup keeps none of {count} documents: earlier crawls hold all of them; see "
                "`lmpipe dedup-index`, or leave dedup_index out"
            )
        _report(out, config, sketches, verdicts, hosts_of(mapped.records))
    return mapped.finish()


def _find(
    out: Output[Documents],
    sketches: "Sketches",
    config: DedupConfig,
    scratch: Path,
    runtime: Runtime,
) -> "Verdicts":
    """Decide who goes: first documents of one address, then equal texts, equal words, near ones."""
    from lmpipe.curation.dedup.signatures import EXACT, NEAR, SAME_URL, SAME_WORDS, Gathering
    from lmpipe.curation.dedup.verification import Comparison, verify

    gathering = Gathering(sketches, config, scratch, runtime)
    verdicts = gathering.verdicts
    comparisons = []
    if config.same_url:
        groups = gathering.equal_urls()
        new = groups.members < sketches.num_new
        verdicts.remove(groups.members[new], groups.firsts()[new], SAME_URL)
        comparisons.append(Comparison(groups, SAME_URL))
    for reason, equal in ((EXACT, gathering.equal_texts), (SAME_WORDS, gathering.equal_words)):
        groups = equal()
        new = groups.members < sketches.num_new
        verdicts.remove(groups.members[new], groups.firsts()[new], reason)
    if config.bands:
        groups = gathering.near_texts(out)
        out.metric("met_clusters", len(groups.sizes))
        out.metric("met_documents", len(groups.members))
        if config.verify:
            comparisons.append(Comparison(groups, NEAR))
        else:
            gathering.estimated(groups)
    if config.verify:
        verify(out, sketches, verdicts, comparisons, config, runtime)
    for reason in (SAME_WORDS, EXACT):  # an exact copy's keeper may have gone for the same words
        verdicts.settle_equal(np.flatnonzero(verdicts.reasons == reason))
    out.log(f"the gathering spilled {gathering.spilled_bytes:,} bytes")
    return verdicts


def sketch_shard(
    shard: ShardOutput,
    key: str,
    batches: Callable[..., Iterator[pa.RecordBatch]],
    config: DedupConfig,
) -> None:
    """Write what the gathering needs to know of one shard's documents."""
    from lmpipe.curation.dedup.minhash import HashFamily
    from lmpipe.curation.dedup.signatures import HEAD, sketch_batch, write_sketch

    width = config.bands * config.rows
    family = HashFamily.from_seed(config.seed, width)
    columns = ["id", "text"]
    columns += ["url"] if config.same_url else []
    columns += {"best_quality": ["quality_score"], "earliest": ["date"]}.get(config.keep, [])
    heads, minima = [np.empty(0, HEAD)], [np.empty((0, width), np.uint32)]
    for batch in batches(columns):
        head, rows = sketch_batch(batch, config, family)
        heads.append(head)
        minima.append(rows)
    shard.counts["documents"] = sum(len(head) for head in heads)
    write_sketch(shard, key, np.concatenate(heads), np.concatenate(minima), config.bands)


def filter_part(
    part: StoredPart, *, config: DedupConfig, store: Store, removals: dict[str, str]
) -> None:
    """Write one part's documents that stay, its part of the ledger, and the evidence."""
    from lmpipe.curation.dedup.evidence import evidence_table, ledger_rows, write_evidence
    from lmpipe.curation.dedup.signatures import REMOVAL

    gone = np.frombuffer(store.read(removals[part.key]) or b"", REMOVAL)
    first, evidence, stays = 0, [], [np.empty(0, np.bool)]
    for batch in part.batches():
        last = first + batch.num_rows
        mine = gone[(gone["row"] >= first) & (gone["row"] < last)]
        keep = np.ones(batch.num_rows, np.bool)
        keep[mine["row"] - first] = False
        ids, urls = (batch.column(c).take(pa.array(mine["row"] - first)) for c in ("id", "url"))
        removed = ledger_rows(mine, ids.to_pylist(), urls.to_pylist(), config)
        evidence.append(evidence_table(mine, ids))
        is_new = np.ones(batch.num_rows, np.bool)  # what an earlier crawl holds is not lost
        is_new[mine["row"][mine["is_earlier"]] - first] = False
        part.settle(batch, batch.filter(pa.array(keep)), removed, counted=pa.array(is_new))
        stays.append(keep)
        first = last
    write_evidence(part.shard, part.key, evidence)
    name = f"sketches/{part.key}.stays"
    part.shard.write_bytes(name, np.concatenate(stays).tobytes())
    part.shard.set_rows(name, first)


def _store_removals(
    out: Output[Documents], sketches: "Sketches", verdicts: "Verdicts", keys: list[str]
) -> dict[str, str]:
    """Put each shard's removals where its worker finds them; they are no part of the artifact."""
    from lmpipe.curation.dedup.signatures import removals

    return {
        key: out.temporary(f"removals/{key}", removals(sketches, verdicts, index).tobytes())
        for index, key in enumerate(keys)
    }


def _report(
    out: Output[Documents],
    config: DedupConfig,
    sketches: "Sketches",
    verdicts: "Verdicts",
    hosts: Hosts,
) -> None:
    from lmpipe.curation.dedup.signatures import REASONS, unpack_id

    removed = verdicts.is_removed
    counts = np.bincount(verdicts.reasons[removed], minlength=len(REASONS)).tolist()
    shown = [n for n in range(len(REASONS)) if n or config.same_url]
    out.metric("removed", {REASONS[number]: counts[number] for number in shown})
    repeats = verdicts.keepers[removed] >= sketches.num_new
    out.metric("repeats_of_earlier", int(repeats.sum()))
    out.metric("lost_words", int(verdicts.novel_words[removed].clip(0).sum()))
    keepers, followers = np.unique(verdicts.keepers[removed], return_counts=True)
    largest = np.argsort(-followers, kind="stable")[:20]
    rows = []
    for index in largest.tolist():
        mine = verdicts.similarity[removed & (verdicts.keepers == keepers[index])]
        rows.append(
            {
                "keeper": unpack_id(sketches.heads["id"][int(keepers[index])]),
                "removed": int(followers[index]),
                "mean similarity": round(float(np.nanmean(mine)), 3),
            }
        )
    rows.sort(key=lambda row: (-int(str(row["removed"])), str(row["keeper"])))
    out.table("largest clusters", rows)
    out.metric("largest_cluster", int(followers.max()) + 1 if len(followers) else 1)
    _raise_alarms(out, config, rows, hosts)


def _raise_alarms(
    out: Output[Documents],
    config: DedupConfig,
    clusters: list[dict[str, Any]],
    hosts: Hosts,
) -> None:
    """Warn where duplicates look like a template or a wiped-out source rather than copies."""
    alarms = [
        f"cluster of {row['keeper']} has {row['removed'] + 1} documents, over alarm_cluster_size="
        f"{config.alarm_cluster_size}: is it a template?"
        for row in clusters
        if row["removed"] + 1 > config.alarm_cluster_size
    ] + [
        f"host {host!r} lost {entered - kept} of {entered} documents, over alarm_host_fraction="
        f"{config.alarm_host_fraction}"
        for host, (entered, kept) in sorted(hosts.items())
        if entered >= config.alarm_host_documents
        and entered - kept > config.alarm_host_fraction * entered
    ]
    out.metric("alarms", alarms)
    for alarm in alarms:
        out.log(alarm, level="warning")
    if alarms and config.stop_on_alarm:
        raise InputError(f"dedup stops on {len(alarms)} alarms: {'; '.join(alarms[:5])}")
