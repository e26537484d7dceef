"""Bands joined as shards of work, for executors that have more than one machine.

One process joins 14 bands of 20 million documents in a minute; ten billion take it hours. So where
`runtime.executor` is ray or slurm each band, or part of a band's key range, is a task of its own:
it reads that band's keys of all shards, one range each, keeps its part, and writes the pairs of
documents that share a key. The one union-find stays here and takes 4 bytes a document. The pairs
are those that one process would find, so the bytes of the artifact are the same.

The price: a task reads the band whole, 8 bytes a document, to keep its part of it, and the parts
are as many as `runtime.sort_memory_mb` asks for. Give such tasks gigabytes (DECISIONS 65).
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmpipe.artifacts.output import Output, ShardOutput
from lmpipe.artifacts.shards import run_shards
from lmpipe.artifacts.store import Store
from lmpipe.curation.dedup.clusters import BYTES_PER_PAIR, Clusters, equal_pairs, number_type
from lmpipe.runtime import Runtime

# One shard's keys: their object, how many rows it has, its first document's number, and how many
# bytes of the row masks come before its own.
Place = tuple[str, int, int, int]
MAX_PARTS = 1 << 16


def join_bands(
    out: Output[Any],
    clusters: Clusters,
    places: list[tuple[str, NDArray[np.bool], NDArray[np.bool]]],
    num_bands: int,
    runtime: Runtime,
) -> int:
    """Join all documents that share a key in a band; return the bytes of the pairs.

    Args:
        places: for each shard the object with its keys, which of its rows are documents at all, and
            which of those take part.
    """
    masks, shards, first, at = [], [], 0, 0
    for path, is_document, takes_part in places:
        row_mask = is_document.copy()
        row_mask[is_document] = takes_part
        masks += [np.packbits(is_document), np.packbits(row_mask)]
        shards.append((path, len(is_document), first, at))
        first += int(is_document.sum())
        at += len(masks[-1]) * 2
    rows = out.temporary("joins/rows", b"".join(mask.tobytes() for mask in masks))
    num_parts = 1
    memory = runtime.sort_memory_mb << 20
    while num_parts < MAX_PARTS and first * BYTES_PER_PAIR > memory * num_parts:
        num_parts *= 2
    keys = [
        f"joined-{band:03d}-{part:05d}-{num_parts}"
        for band in range(num_bands)
        for part in range(num_parts)
    ]
    work = partial(join_part, store=out.store, rows=rows, shards=shards, size=first)
    kind, total = number_type(first), 0
    for record in run_shards(out, keys, work, runtime):
        (file,) = record.files
        del out.files[file.name]
        pairs = np.frombuffer(out.store.read(file.path) or b"", kind).reshape(2, -1)
        clusters.join(pairs[0], pairs[1])
        total += file.bytes
    return total


def join_part(
    shard: ShardOutput, key: str, *, store: Store, rows: str, shards: list[Place], size: int
) -> None:
    """Write the pairs of one part of one band: earlier numbers, then later ones."""
    band, part, num_parts = (int(text) for text in key.split("-")[1:])
    keys, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for path, count, first, at in shards:
        if not count:
            continue
        start = 8 * count * band
        found = np.frombuffer(store.read_range(path, start, start + 8 * count), "<u8")
        width = -(-count // 8)
        data = np.frombuffer(store.read_range(rows, at, at + 2 * width), np.uint8)
        is_document, takes_part = np.unpackbits(data.reshape(2, width), axis=1)[:, :count] == 1
        if num_parts > 1:
            lead = found >> np.uint64(64 - (num_parts - 1).bit_length())
            takes_part = takes_part & (lead == part)
        keys.append(found[takes_part].astype(np.uint64))
        numbers.append((first + np.cumsum(is_document) - 1)[takes_part])
    one, two = equal_pairs(np.concatenate(keys), np.concatenate(numbers))
    kind = number_type(size)
    shard.write_bytes(f"joins/{key}", np.stack([one, two]).astype(kind).tobytes())
