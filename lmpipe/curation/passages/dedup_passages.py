"""dedup_passages: text that an earlier document holds as well is cut out, passage by passage.

`dedup` removes documents that are nearly others; what repeats across different documents (menus,
licences, quotations, one chapter on two pages) is left. Here a passage is a paragraph (CCNet), a
run of sentences (C4, three) or the whole document, and of equal ones the one in the document with
the smallest id stays. Comes after dedup: near duplicates would cut one another to rags, and which
document is whole would be chance.

A document that lost something goes if too little remains of it. Its own passages then go too, some
of which others lost because it had them: `lost_keepers` counts those, and `lmpipe why` says it of
each. The alternative, deciding again until nothing changes, may take as many passes as there are
documents in a chain.

Passes over the shards (see repeats.py):

1. keys: each shard's passages, sorted;
2. join: repeats are found, range by range of keys; or one Bloom filter takes them in order;
3. filter: each shard writes what remains, its part of the ledger and the evidence in `cuts/`: which
   bytes of which document went, and which passage of which document stays. Put together, the kept
   text and the cuts are the text that came in, to the character.

With `bloom_memory_mb` no keeper is known: a filter says that a passage was seen, and errs at the
asked rate (bloom.py).

Signals measured before (num_words, scores) are those of the text before the cut.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.curation.passages.config import DedupPassagesConfig
from lmpipe.documents.read import count_documents, split_by_bytes
from lmpipe.documents.stage import (
    MappedDocuments,
    StoredPart,
    map_documents,
    part_keys,
    scan_documents,
)
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

if TYPE_CHECKING:
    from lmpipe.curation.passages.repeats import Repeats


@stage(version=2, kind="exact")
def dedup_passages(
    out: Output[Documents], config: DedupPassagesConfig, documents: Documents, *, runtime: Runtime
) -> Documents:
    """Cut paragraphs or runs of sentences that another document holds; say whose they are.

    Raises:
        InputError: no document holds a passage, a Bloom filter is too small, or nothing is kept.
    """
    from lmpipe.curation.passages.cutting import count_lost_keepers
    from lmpipe.curation.passages.repeats import find_repeats
    from lmpipe.curation.text.word_hashes import enough_workers

    count = count_documents(documents)
    runtime = enough_workers(runtime, count)
    made = scan_documents(out, documents, "keys", partial(key_shard, config=config), runtime)
    if not any(record.counts["passages"] for record in made):
        raise InputError(
            f"none of {count} documents holds a passage of min_passage_words="
            f"{config.min_passage_words} (unit={config.unit}): nothing could be found; lower it"
        )
    found = find_repeats(out, made, config, runtime)
    keys = part_keys(documents)
    ranges = dict(zip(keys, found.ranges, strict=True))
    work = partial(cut_part, config=config, store=out.store, ranges=ranges)
    mapped = map_documents(out, documents, work, runtime)
    parts = sum(mapped.total(name) for name in _CHARACTERS)
    whole = _total(made, "characters")
    assert parts == whole, f"dedup_passages: {parts} characters came out of {whole}"
    if mapped.num_kept == 0:
        raise InputError(
            f"dedup_passages keeps none of {count} documents; lower min_remaining_words="
            f"{config.min_remaining_words} or min_remaining_fraction"
        )
    _report(out, config, made, mapped, found)
    out.metric("lost_keepers", count_lost_keepers(out, keys))
    return mapped.finish()


_CHARACTERS = ("kept_characters", "cut_characters", "dropped_characters")


def key_shard(
    shard: ShardOutput,
    key: str,
    batches: Callable[..., Iterator[pa.RecordBatch]],
    config: DedupPassagesConfig,
) -> None:
    """Write one shard's passages."""
    from lmpipe.curation.dedup.signatures import pack_ids
    from lmpipe.curation.passages.repeats import PASSAGE, write_passages
    from lmpipe.curation.passages.segments import passage_keys, split

    parts, first, characters = [np.empty(0, PASSAGE)], 0, 0
    for batch in split_by_bytes(batches(["id", "text"])):
        segments = split(batch.column("text"), config.unit)
        keys, texts, places = passage_keys(segments, config.length, config.min_passage_words)
        rows = np.empty(len(keys), PASSAGE)
        rows["key"], rows["row"], rows["first"] = keys, texts + first, places
        rows["id"] = pack_ids(batch.column("id").to_pylist())[texts]
        parts.append(rows)
        first += batch.num_rows
        characters += pc.sum(pc.utf8_length(batch.column("text"))).as_py() or 0
    rows = np.concatenate(parts)
    shard.counts.update({"passages": len(rows), "characters": characters})
    write_passages(shard, f"passages/keys-{key}", rows, by_place=config.bloom_memory_mb > 0)


def cut_part(
    part: StoredPart,
    *,
    config: DedupPassagesConfig,
    store: Store,
    ranges: dict[str, list[tuple[str, int, int]]],
) -> None:
    """Write what remains of one part, and the evidence."""
    from lmpipe.curation.passages.cutting import Cutter, write_cuts
    from lmpipe.curation.passages.repeats import read_repeats

    cutter = Cutter(read_repeats(store, ranges[part.key]), config)
    for batch in split_by_bytes(part.batches()):
        part.settle(batch, cutter.apply(batch))
    part.remove(cutter.removed)
    write_cuts(part.shard, part.key, cutter.tables)
    part.counts.update(cutter.counts)


def _total(records: list[ShardRecord], name: str) -> int:
    return sum(int(record.counts[name]) for record in records)


def _report(
    out: Output[Documents],
    config: DedupPassagesConfig,
    made: list[ShardRecord],
    mapped: MappedDocuments,
    found: "Repeats",
) -> None:
    from lmpipe.curation.passages.cutting import reason_of

    out.metric("removed", {reason_of(config): mapped.total("removed")})
    out.metric("cut", mapped.total("cut"))
    out.metric("passages", _total(made, "passages"))
    for name in (*_CHARACTERS, "cut_words"):
        out.metric(name, mapped.total(name))
    for name, value in found.figures.items():
        out.metric(name, value)
    rows = [{"keeper": k, "segment": s, "copies": n} for k, s, n in found.most_copied]
    out.metric("most_copied", rows)
    out.table("most copied passages", rows)
