"""decontaminate: no training text may hold an evaluation item.

A document is flagged by an item if it holds any of the item's word n-grams (13 by default, as for
GPT-3), or the whole of an item that is shorter than that, or most of the item with typing errors
(near_items.py, which says what still gets past). Case, accents, punctuation, blanks and which of
two letters that look alike (look_alikes.py) do not count. What would flag innocent documents is
left out, and said so in the report:

- items with fewer than `min_item_words` words, which ordinary language repeats by chance;
- n-grams of more than `template_items` items: a benchmark's own template, not one item;
- isolated n-grams of more than `boilerplate_documents` training documents: boilerplate, famous
  quotations. A document that holds half of an item's n-grams is flagged however many others do,
  so an item leaked everywhere is found, and an item that is itself boilerplate flags every copy.
  What isolated n-grams met is `unsure` in contamination.json, and the gate counts it.

Flagged documents are removed, or lose the lines or the spans that hold an item, or are reported
and stay. Each leaves its evidence in `overlaps/`: which item, which share of it, which bytes.
contamination.json says what is left, item by item; training's gate and evaluation read it.

A control runs every time (see control.py): items hidden in real documents, verbatim
and in capitals with other punctuation, must all be found; short items and templates must not.

Two passes: scan where indexed n-grams are, shard by shard; then decide over all shards and filter.

Source: Brown et al. 2020 (GPT-3), appendix C: 13-grams, and none of more than 10 documents.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from lmpipe.artifacts.events import Emitter
from lmpipe.artifacts.output import Output, ShardOutput
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents, Source
from lmpipe.curation.decontamination.config import DecontaminateConfig
from lmpipe.documents.read import count_documents
from lmpipe.documents.stage import (
    MappedDocuments,
    StoredPart,
    map_documents,
    part_keys,
    scan_documents,
)
from lmpipe.errors import InputError
from lmpipe.eval_items.items import benchmark_digests, read_benchmarks
from lmpipe.runtime import Runtime

if TYPE_CHECKING:
    from lmpipe.curation.decontamination.matching import Findings
    from lmpipe.curation.decontamination.ngram_index import NgramIndex


@stage(version=3, kind="exact")
def decontaminate(
    out: Output[Documents],
    config: DecontaminateConfig,
    documents: Documents,
    benchmarks: Source,
    *,
    runtime: Runtime,
) -> Documents:
    """Remove what holds evaluation items; write contamination.json and the evidence.

    Raises:
        InputError: no item can be looked for, the control fails, or nothing is kept.
    """
    from lmpipe.curation.decontamination.matching import decide, report, store_flags
    from lmpipe.curation.text.word_hashes import enough_workers

    index = _index(config, benchmarks)
    out.metric("control", _control(out, index, config, documents))
    runtime = enough_workers(runtime, count_documents(documents))
    scan = partial(scan_shard, config=config, benchmarks=benchmarks)
    scans = scan_documents(out, documents, "scan", scan, runtime)
    findings = decide(out, scans, index, config)
    flags = store_flags(out, findings, part_keys(documents))
    work = partial(filter_part, config=config, store=out.store, flags=flags)
    mapped = map_documents(out, documents, work, runtime)
    remaining = {
        first + row
        for record, first in zip(mapped.records, findings.bounds[:-1].tolist(), strict=True)
        for row in record.info["remaining"]
    }
    summary = report(index, findings, remaining, benchmark_digests(benchmarks))
    out.write_json("contamination.json", summary)
    out.metric("flagged", summary["flagged_documents"])
    out.metric("contaminated", summary["contaminated_documents"])
    _report(out, config, findings, mapped)
    warn_of_contamination(out, mapped.num_input, summary["flagged_documents"], runtime)
    if mapped.num_kept == 0:
        raise InputError(
            f"decontaminate kept none of {mapped.num_input} documents: is the training text the "
            "benchmark?"
        )
    return mapped.finish()


def scan_shard(
    shard: ShardOutput,
    key: str,
    batches: Callable[..., Iterator[pa.RecordBatch]],
    config: DecontaminateConfig,
    benchmarks: Source,
) -> None:
    """Note where one shard's documents hold indexed n-grams."""
    from lmpipe.curation.decontamination.matching import scan_texts

    index = _index(config, benchmarks)
    first, hits = 0, []
    for batch in batches(["text"]):
        hits.append(scan_texts(index, batch.column("text"), first))
        first += batch.num_rows
    shard.counts["documents"] = first
    shard.write_bytes(f"scans/{key}", b"".join(rows.tobytes() for rows in hits))


def filter_part(
    part: StoredPart, *, config: DecontaminateConfig, store: Store, flags: dict[str, str]
) -> None:
    """Write one part without what is flagged, its part of the ledger, and the evidence."""
    from lmpipe.curation.decontamination.matching import Remover, write_overlaps

    remover = Remover(store.read(flags[part.key]) or b"[]", config)
    for batch in part.batches():
        part.settle(batch, remover.apply(batch))
    part.remove(remover.removed)
    write_overlaps(part.shard, part.key, remover.overlaps)
    part.counts["cut"] = remover.num_cut
    part.info["remaining"] = remover.remaining


def _index(config: DecontaminateConfig, benchmarks: Source) -> "NgramIndex":
    from lmpipe.curation.decontamination.ngram_index import NgramIndex

    items = [item for items in read_benchmarks(benchmarks).values() for item in items]
    index = NgramIndex(items, config.ngram, config.min_item_words)
    if not len(index.grams):
        raise InputError(
            f"none of {len(items)} items has min_item_words={config.min_item_words} words: "
            "nothing could ever be found; lower it"
        )
    return index


def _control(
    out: Output[Documents], index: "NgramIndex", config: DecontaminateConfig, documents: Documents
) -> dict[str, float]:
    """Hide items, and what must not flag, in real documents; require that the search tells them.

    Raises:
        InputError: an item is not found, or none can be planted.
    """
    from lmpipe.curation.decontamination.control import real_texts, run_control

    control = run_control(index, config, real_texts(documents))
    if control.planted == 0:
        raise InputError(
            f"every item holds n-grams of over template_items={config.template_items} items: "
            "nothing could be told apart; raise it"
        )
    if control.lost:
        message = (
            f"decontaminate's positive control: {len(control.lost)} of {control.planted} planted "
            f"items were not found, {control.lost[0]} among them"
        )
        out.alarm(
            "curation.contamination", message, planted=control.planted, lost=len(control.lost)
        )
        raise InputError(message)
    if control.false:
        out.log(
            f"decontaminate's control: {len(control.false)} of {control.negatives} texts that hold "
            f"no whole item were flagged, by {control.false[0]} among others",
            level="warning",
        )
    return control.figures()


def _report(
    out: Output[Documents],
    config: DecontaminateConfig,
    findings: "Findings",
    mapped: MappedDocuments,
) -> None:
    rows = findings.table()
    out.metric("removed", {"contaminated": mapped.num_input - mapped.num_kept})
    out.metric("cut", mapped.total("cut"))
    out.metric("benchmarks", {row["benchmark"]: row for row in rows})
    out.table("contamination", rows)
    for row in rows:
        if row["boilerplate items"]:
            out.log(
                f"{row['boilerplate items']} items of {row['benchmark']} occur and flag nothing: "
                f"in over {config.boilerplate_documents} documents; see contamination.json",
                level="warning",
            )


def warn_of_contamination(out: Emitter, num_input: int, num_flagged: int, runtime: Runtime) -> None:
    """Raise an alarm if a larger share of the documents holds items than the run expects."""
    limit = runtime.alarm_contaminated_fraction
    if num_flagged > limit * num_input:
        out.alarm(
            "curation.contamination",
            f"{num_flagged} of {num_input} documents hold evaluation items, over "
            f"runtime.alarm_contaminated_fraction={limit:g}: look at overlaps/",
            documents=num_input,
            flagged=num_flagged,
            limit=limit,
        )
