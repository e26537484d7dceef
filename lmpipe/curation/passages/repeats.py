"""Which passages repeat an earlier one: a shuffle by key, or a Bloom filter.

A passage's place is (document id, first segment). Of equal passages the one in the smallest place
stays, so the outcome depends on the set of documents alone and not on their order. Each shard's
passages are sorted and stored with an index of 1,024 buckets:

- by key for the join: a task reads its buckets from all shards, one range each, sorts them and
  names for each repeat the passage that stays. Tasks are independent shards of work, on whatever
  executor; their number is such that one fits `runtime.sort_memory_mb`. All copies of one passage
  meet in one task, so memory is also bounded by the most frequent passage;
- by place for the filter: one task takes the keys in order of places, so that the first to come is
  the one that stays, in the memory of the filter and of one range. It cannot be divided.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.artifacts.shards import run_shards
from lmpipe.artifacts.store import Store
from lmpipe.curation.passages.bloom import BloomFilter, needed_bits
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

if TYPE_CHECKING:
    from lmpipe.curation.passages.config import DedupPassagesConfig

PASSAGE = np.dtype([("key", "<u8"), ("id", "<u8", 2), ("row", "<u4"), ("first", "<u4")])
# One row a repeat: where it is, and which passage stays. `copies` counts all that are equal.
REPEAT = np.dtype(
    [("row", "<u4"), ("first", "<u4"), ("keeper", "<u8", 2), ("keeper_first", "<u4"),
     ("copies", "<u4")]
)  # fmt: skip
LOG_BUCKETS = 10
HEADER_BYTES = 8 * ((1 << LOG_BUCKETS) + 1)
BYTES_PER_PASSAGE = 160  # of a part in work: the row (32), its copy, the order and the sort's own
MOST_COPIED = 20


@dataclass(frozen=True)
class Repeats:
    """The repeats of all shards, and what the search says of itself.

    Attributes:
        ranges: for each shard of documents the (path, first byte, bytes) of its REPEAT rows.
        figures: for the manifest.
        most_copied: keeper, its first segment, number of equal passages.
    """

    ranges: list[list[tuple[str, int, int]]]
    figures: dict[str, Any]
    most_copied: list[tuple[str, int, int]]


def write_passages(shard: ShardOutput, name: str, rows: NDArray[Any], *, by_place: bool) -> None:
    """Write one shard's passages, sorted, behind the bounds of their buckets in bytes."""
    order = _places(rows) if by_place else (rows["first"], rows["row"], rows["key"])
    rows = rows[np.lexsort(order)]
    lead = rows["id"][:, 0] if by_place else rows["key"]
    buckets = (lead >> np.uint64(64 - LOG_BUCKETS)).astype(np.int64)
    counts = np.bincount(buckets, minlength=1 << LOG_BUCKETS)
    bounds = HEADER_BYTES + PASSAGE.itemsize * np.concatenate([[0], np.cumsum(counts)])
    shard.write_bytes(name, bounds.astype("<u8").tobytes() + rows.tobytes())


def find_repeats(
    out: Output[Any], made: list[ShardRecord], config: "DedupPassagesConfig", runtime: Runtime
) -> Repeats:
    """Find the passages that go; those of the shards are taken out of the artifact.

    Raises:
        InputError: a Bloom filter is asked for and too small.
    """
    paths = [_taken(out, record)[0] for record in made]
    total = sum(int(record.counts["passages"]) for record in made)
    num_parts = 1
    memory = runtime.sort_memory_mb << 20
    while num_parts < 1 << LOG_BUCKETS and total * BYTES_PER_PASSAGE > memory * num_parts:
        num_parts *= 2
    if config.bloom_memory_mb:
        keys = [f"bloom-{num_parts}"]
        work = partial(filter_part, store=out.store, paths=paths, config=config)
    else:
        keys = [f"join-{part:04d}-{num_parts}" for part in range(num_parts)]
        work = partial(join_part, store=out.store, paths=paths)
    records = run_shards(out, keys, work, runtime)
    ranges: list[list[tuple[str, int, int]]] = [[] for _ in paths]
    figures: dict[str, Any] = {"repeats": 0}
    copied: list[tuple[str, int, int]] = []
    for record in records:
        for path, index in zip(_taken(out, record), record.info["index"], strict=True):
            for number, first, size in index:
                ranges[number].append((path, first, size))
        copied += [(keeper, first, copies) for keeper, first, copies in record.info["copied"]]
        figures["repeats"] += int(record.counts["repeats"])
        figures.update(record.info.get("bloom", {}))
    copied.sort(key=lambda row: (-row[2], row[0], row[1]))
    return Repeats(ranges, figures, copied[:MOST_COPIED])


def read_repeats(store: Store, ranges: list[tuple[str, int, int]]) -> NDArray[Any]:
    """Return one shard's repeats in order of rows and segments."""
    parts = [np.empty(0, REPEAT)]
    for path, first, size in ranges:
        parts.append(np.frombuffer(store.read_range(path, first, first + size), REPEAT))
    rows = np.concatenate(parts)
    return rows[np.lexsort((rows["first"], rows["row"]))]


def join_part(shard: ShardOutput, key: str, *, store: Store, paths: list[str]) -> None:
    """Write the repeats among the passages whose keys begin with this part's bits."""
    part, num_parts = (int(text) for text in key.split("-")[1:])
    rows, shards = _read_part(store, paths, part, num_parts)
    order = np.lexsort((*_places(rows), rows["key"]))
    rows, shards = rows[order], shards[order]
    starts = np.flatnonzero(np.diff(rows["key"], prepend=~rows["key"][:1]))
    sizes = np.diff(np.append(starts, len(rows)))
    repeats = np.empty(len(rows), REPEAT)
    repeats["row"], repeats["first"] = rows["row"], rows["first"]
    repeats["keeper"] = np.repeat(rows["id"][starts], sizes, axis=0)
    repeats["keeper_first"] = np.repeat(rows["first"][starts], sizes)
    repeats["copies"] = np.repeat(sizes, sizes)
    gone = np.ones(len(rows), np.bool)
    gone[starts] = False
    shard.info["index"] = [_write(shard, f"repeats/{key}", repeats[gone], shards[gone])]
    most = np.lexsort((rows["first"][starts], *rows["id"][starts].T[::-1], -sizes))[:MOST_COPIED]
    shard.info["copied"] = [
        (_hex(rows["id"][starts[n]]), int(rows["first"][starts[n]]), int(sizes[n]))
        for n in most.tolist()
        if sizes[n] > 1
    ]
    shard.counts["repeats"] = int(gone.sum())


def filter_part(
    shard: ShardOutput, key: str, *, store: Store, paths: list[str], config: "DedupPassagesConfig"
) -> None:
    """Write the passages that a Bloom filter has seen when their turn comes.

    Raises:
        InputError: it holds more keys than it can at the asked rate.
    """
    bloom = BloomFilter(config.bloom_memory_mb << 20, config.bloom_false_positive_fraction)
    index, num_parts = [], int(key.split("-")[1])
    shard.counts["repeats"] = 0
    for part in range(num_parts):
        rows, shards = _read_part(store, paths, part, num_parts)
        order = np.lexsort(_places(rows))
        rows, shards = rows[order], shards[order]
        seen = bloom.add(rows["key"])
        _check_capacity(bloom, config, store, paths)
        repeats = np.zeros(int(seen.sum()), REPEAT)
        repeats["row"], repeats["first"] = rows["row"][seen], rows["first"][seen]
        index.append(_write(shard, f"repeats/{key}-{part:04d}", repeats, shards[seen]))
        shard.counts["repeats"] += len(repeats)
    shard.info.update({"index": index, "copied": []})
    shard.info["bloom"] = {
        "bloom_bits": bloom.num_bits,
        "bloom_probes": bloom.num_probes,
        "bloom_capacity": bloom.capacity,
        "bloom_keys": bloom.num_keys,
        "bloom_error_rate_at_the_end": bloom.error_rate,
        "bloom_expected_errors": round(bloom.expected_errors, 3),
    }


def _check_capacity(
    bloom: BloomFilter, config: "DedupPassagesConfig", store: Store, paths: list[str]
) -> None:
    if bloom.num_keys <= bloom.capacity:
        return
    most = sum(((store.size(path) or 0) - HEADER_BYTES) // PASSAGE.itemsize for path in paths)
    asked = config.bloom_false_positive_fraction
    needed = -(-needed_bits(most, asked) // (8 << 20))
    raise InputError(
        f"dedup_passages.bloom_memory_mb={config.bloom_memory_mb} holds {bloom.capacity:,} keys at "
        f"bloom_false_positive_fraction={asked:g}, and there are more: beyond that unique text "
        f"goes. {needed} MB hold all {most:,} passages; or allow more errors, or set it to 0 "
        "for the exact join, whose memory does not grow"
    )


def _places(rows: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return lexsort's keys for the order of places, the last one first."""
    return rows["first"], rows["id"][:, 1], rows["id"][:, 0]


def _read_part(
    store: Store, paths: list[str], part: int, num_parts: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return a part's passages and the numbers of their shards: two reads a shard."""
    each = (1 << LOG_BUCKETS) // num_parts
    rows, counts = [np.empty(0, PASSAGE)], []
    for path in paths:
        bounds = np.frombuffer(store.read_range(path, 0, HEADER_BYTES), "<u8").astype(np.int64)
        first, last = int(bounds[part * each]), int(bounds[(part + 1) * each])
        data = store.read_range(path, first, last) if last > first else b""
        rows.append(np.frombuffer(data, PASSAGE))
        counts.append(len(rows[-1]))
    return np.concatenate(rows), np.repeat(np.arange(len(paths)), counts)


def _write(
    shard: ShardOutput, name: str, repeats: NDArray[Any], shards: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """Write repeats shard by shard; return (shard, first byte, bytes) of those that have any."""
    repeats = repeats[np.argsort(shards, kind="stable")]
    counts = np.bincount(shards, minlength=1) * REPEAT.itemsize
    ends = np.cumsum(counts)
    shard.write_bytes(name, repeats.tobytes())
    return [
        (number, int(ends[number] - counts[number]), int(counts[number]))
        for number in np.flatnonzero(counts).tolist()
    ]


def _taken(out: Output[Any], record: ShardRecord) -> list[str]:
    """Take a shard's objects out of the artifact; return where they lie."""
    for file in record.files:
        del out.files[file.name]
    return [file.path for file in record.files]


def _hex(pair: NDArray[np.uint64]) -> str:
    return f"{int(pair[0]):016x}{int(pair[1]):016x}"
