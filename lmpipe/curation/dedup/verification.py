"""Candidates compared for real: Jaccard similarity and containment of their n-grams.

Documents that met in a band may resemble one another by 0.5 only, and a chain joins what hardly
does. So each candidate is compared, n-gram by n-gram, with those that stay in its cluster, and goes
only if it is similar enough or if a kept one contains it. Similarity is symmetric; containment is
the share of the one's n-grams that the other holds, and asks what would be lost.

A shuffle: each shard writes its candidates' n-gram hashes, bucket by bucket of clusters; each
bucket is then read, decided and dropped. A bucket's n-grams fit the allowed memory. A cluster is in
one bucket whole, so memory is also bounded by the largest cluster.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.artifacts.shards import run_shards
from lmpipe.artifacts.store import Store
from lmpipe.curation.dedup.signatures import NEAR, SAME_URL, Groups, Shard, Sketches, Verdicts
from lmpipe.curation.text.word_hashes import compiled, hash_words, ngram_hashes
from lmpipe.documents.read import read_shard
from lmpipe.runtime import Runtime

if TYPE_CHECKING:
    from lmpipe.curation.dedup.config import DedupConfig

BYTES_PER_WORD = 24  # an n-gram in order, sorted, and a copy
WANTED = np.dtype([("row", "<i8"), ("number", "<i8"), ("bucket", "<i8")])
VERDICT = np.dtype(
    [("number", "<i8"), ("keeper", "<i8"), ("similarity", "<f8"), ("containment", "<f8"),
     ("keeper_containment", "<f8"), ("novel_words", "<i8")]
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Groups to compare, and whether their first members take all others, come what may."""

    groups: Groups
    reason: int


def verify(
    out: Output[Any],
    sketches: Sketches,
    verdicts: Verdicts,
    comparisons: list[Comparison],
    config: "DedupConfig",
    runtime: Runtime,
) -> None:
    """Compare the groups' members and write into the verdicts who goes, and the evidence."""
    groups, always = _joined(comparisons)
    buckets = _buckets(groups, sketches, runtime.sort_memory_mb << 20)
    wanted = _wanted(groups, buckets, sketches)
    tasks, paths = {}, {}
    for number in sorted(wanted):
        key = f"shingles-{number:05d}-{runtime.sort_memory_mb}"  # buckets depend on the memory
        paths[key] = out.temporary(f"wanted/{key}", wanted[number].tobytes())
        tasks[key] = sketches.shards[number]
    work = partial(shingle_shard, config=config, shards=tasks, store=out.store, wanted=paths)
    records = run_shards(out, list(tasks), work, runtime)
    shingles = [_taken(out, record) for record in records]
    sizes = {}
    for bucket in range(int(buckets.max(initial=-1)) + 1):
        key = f"verify-{bucket:05d}-{runtime.sort_memory_mb}"
        mine = np.flatnonzero(buckets == bucket)
        lengths = groups.sizes[mine]
        rows = np.concatenate([np.arange(groups.bounds[g], groups.bounds[g + 1]) for g in mine])
        members = groups.members[rows]
        data = [lengths, always[mine].astype(np.int64), members]
        fixed = (members >= sketches.num_new).astype(np.int64)
        data = [np.array([len(mine)], np.int64), *data, fixed]
        packed = b"".join(d.astype("<i8").tobytes() for d in data)
        sizes[key] = out.temporary(f"groups/{key}", packed)
    work = partial(verify_bucket, config=config, store=out.store, groups=sizes, shingles=shingles)
    for record in run_shards(out, list(sizes), work, runtime):
        (file,) = record.files
        del out.files[file.name]
        rows = np.frombuffer(out.store.read(file.path) or b"", VERDICT)
        _note(verdicts, rows, groups, always, buckets, int(record.key.split("-")[1]))
    short = np.flatnonzero(verdicts.reasons == SAME_URL)
    short = short[sketches.heads["num_words"][short] < config.ngram]
    verdicts.novel_words[short] = sketches.heads["num_words"][short]  # no n-gram covers any


def _note(
    verdicts: Verdicts,
    rows: NDArray[Any],
    groups: Groups,
    always: NDArray[np.bool],
    buckets: NDArray[np.int64],
    bucket: int,
) -> None:
    forced = np.repeat(always[buckets == bucket], groups.sizes[buckets == bucket])
    assert len(forced) == len(rows), "a bucket lost members"
    gone = rows["keeper"] != rows["number"]
    for reason, which in ((SAME_URL, gone & forced), (NEAR, gone & ~forced)):
        mine = rows[which]
        verdicts.remove(mine["number"], mine["keeper"], reason)
        for name in ("similarity", "containment", "keeper_containment", "novel_words"):
            getattr(verdicts, name)[mine["number"]] = mine[name]


def _joined(comparisons: list[Comparison]) -> tuple[Groups, NDArray[np.bool]]:
    sizes = np.concatenate([np.empty(0, np.int64), *(c.groups.sizes for c in comparisons)])
    members = np.concatenate([np.empty(0, np.int64), *(c.groups.members for c in comparisons)])
    always = [np.full(len(c.groups.sizes), c.reason == SAME_URL) for c in comparisons]
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]).astype(np.int64)
    return Groups(members, bounds), np.concatenate([np.empty(0, np.bool), *always])


def _buckets(groups: Groups, sketches: Sketches, memory_bytes: int) -> NDArray[np.int64]:
    """Deal groups, in order, to buckets whose n-grams fit the memory."""
    if not len(groups.sizes):
        return np.empty(0, np.int64)
    words = np.add.reduceat(sketches.heads["num_words"][groups.members], groups.bounds[:-1])
    ends = np.cumsum(words * BYTES_PER_WORD)
    return np.unique(ends // max(1, memory_bytes), return_inverse=True)[1].astype(np.int64)


def _wanted(
    groups: Groups, buckets: NDArray[np.int64], sketches: Sketches
) -> dict[int, NDArray[Any]]:
    """Return for each shard whose documents are compared their rows, numbers and buckets."""
    rows = np.empty(len(groups.members), WANTED)
    rows["number"] = groups.members
    rows["bucket"] = np.repeat(buckets, groups.sizes)
    rows = np.unique(rows)
    shards = sketches.shard_of(rows["number"])
    rows["row"] = rows["number"] - sketches.bounds[shards]
    return {
        number: np.sort(rows[shards == number], order=["bucket", "row"])
        for number in np.unique(shards).tolist()
    }


def shingle_shard(
    shard: ShardOutput,
    key: str,
    *,
    config: "DedupConfig",
    shards: dict[str, Shard],
    store: Store,
    wanted: dict[str, str],
) -> None:
    """Write the n-gram hashes of one shard's candidates, bucket after bucket."""
    rows = np.frombuffer(store.read(wanted[key]) or b"", WANTED)
    needed = np.unique(rows["row"])
    found: dict[int, NDArray[np.uint64]] = {}
    first = 0
    for batch in read_shard(shards[key].documents, shards[key].name, ["text"]):
        last = first + batch.num_rows
        mine = needed[np.searchsorted(needed, first) : np.searchsorted(needed, last)]
        words = hash_words(batch.column("text").take(mine - first))
        hashes, offsets = ngram_hashes(words, config.ngram)
        for place, row in enumerate(mine.tolist()):
            found[row] = hashes[offsets[place] : offsets[place + 1]]
        first = last
    index, parts, at = [], [], 0
    for bucket in np.unique(rows["bucket"]).tolist():
        mine = rows[rows["bucket"] == bucket]
        arrays = [found[row] for row in mine["row"].tolist()]
        head = np.stack([mine["number"], [len(array) for array in arrays]], axis=1).astype("<i8")
        data = b"".join([head.tobytes(), *(array.astype("<u8").tobytes() for array in arrays)])
        index.append([bucket, at, len(data), len(mine)])
        parts.append(data)
        at += len(data)
    shard.write_bytes(f"shingles/{key}", b"".join(parts))
    shard.info["index"] = index


def _taken(out: Output[Any], record: ShardRecord) -> tuple[str, list[list[int]]]:
    """Take a shard's n-grams out of the artifact; return where they lie."""
    (file,) = record.files
    del out.files[file.name]
    return file.path, record.info["index"]


def verify_bucket(
    shard: ShardOutput,
    key: str,
    *,
    config: "DedupConfig",
    store: Store,
    groups: dict[str, str],
    shingles: list[tuple[str, list[list[int]]]],
) -> None:
    """Decide the clusters of one bucket."""
    data = np.frombuffer(store.read(groups[key]) or b"", "<i8")
    count = int(data[0])
    lengths, always = data[1 : 1 + count], data[1 + count : 1 + 2 * count] == 1
    members, fixed = np.split(data[1 + 2 * count :], 2)
    numbers, hashes, offsets = _read_shingles(store, shingles, int(key.split("-")[1]))
    places = np.searchsorted(numbers, members)
    distinct, ends = np.empty_like(hashes), np.empty_like(offsets)
    _distinct(hashes, offsets, distinct, ends)
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int64)
    keepers = np.arange(len(members), dtype=np.int64)
    scores = np.ones((len(members), 3), np.float64)
    novel = np.zeros(len(members), np.int64)
    limits = np.array([config.min_similarity, config.min_containment], np.float64)
    _judge(
        bounds, always, fixed == 1, places, hashes, distinct, offsets, ends, limits,
        np.array([config.max_keepers, config.ngram], np.int64), keepers, scores, novel,
    )  # fmt: skip
    rows = np.empty(len(members), VERDICT)
    rows["number"], rows["keeper"], rows["novel_words"] = members, members[keepers], novel
    rows["similarity"], rows["containment"] = scores[:, 0], scores[:, 1]
    rows["keeper_containment"] = scores[:, 2]
    shard.write_bytes(f"verdicts/{key}", rows.tobytes())


def _read_shingles(
    store: Store, shingles: list[tuple[str, list[list[int]]]], bucket: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return a bucket's documents in order, their n-grams one after another, and the bounds."""
    numbers, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    hashes = [np.empty(0, np.uint64)]
    for path, index in shingles:
        for _, at, size, count in (entry for entry in index if entry[0] == bucket):
            with store.open(path) as file:
                file.seek(at)
                data = file.read(size)
            head = np.frombuffer(data[: 16 * count], "<i8").reshape(-1, 2)
            numbers.append(head[:, 0])
            lengths.append(head[:, 1])
            hashes.append(np.frombuffer(data[16 * count :], "<u8"))
    joined = np.concatenate(numbers)
    assert (np.diff(joined) > 0).all(), "shards come in order, and rows within them"
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    return joined, np.concatenate(hashes).astype(np.uint64), offsets.astype(np.int64)


@compiled
def _distinct(
    hashes: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    distinct: NDArray[np.uint64],
    ends: NDArray[np.int64],
) -> None:
    """Sort each document's n-grams without repeats into the same place; `ends` says how many."""
    for document in range(len(offsets) - 1):
        first, last = offsets[document], offsets[document + 1]
        ordered = np.sort(hashes[first:last])
        count = 0
        for index in range(len(ordered)):
            if index == 0 or ordered[index] != ordered[index - 1]:
                distinct[first + count] = ordered[index]
                count += 1
        ends[document] = first + count


@compiled
def _shared(distinct: NDArray[np.uint64], a: int, a_end: int, b: int, b_end: int) -> int:
    count = 0
    while a < a_end and b < b_end:
        if distinct[a] == distinct[b]:
            count += 1
            a += 1
            b += 1
        elif distinct[a] < distinct[b]:
            a += 1
        else:
            b += 1
    return count


@compiled
def _novel_words(
    hashes: NDArray[np.uint64], first: int, last: int, kept: NDArray[np.uint64], ngram: int
) -> int:
    """Count the words that no shared n-gram covers. n-gram j covers words j to j + ngram - 1."""
    novel, covered = 0, 0
    for index in range(first, last):
        place = np.searchsorted(kept, hashes[index])
        word = index - first
        if place < len(kept) and kept[place] == hashes[index]:
            covered = word + ngram
        elif covered <= word:
            novel += 1
    words = last - first + ngram - 1 if last > first else 0
    return novel + max(0, words - max(covered, last - first))


@compiled
def _judge(
    bounds: NDArray[np.int64],
    always: NDArray[np.bool],
    fixed: NDArray[np.bool],
    places: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    distinct: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    ends: NDArray[np.int64],
    limits: NDArray[np.float64],
    sizes: NDArray[np.int64],
    keepers: NDArray[np.int64],
    scores: NDArray[np.float64],
    novel: NDArray[np.int64],
) -> None:
    staying = np.empty(sizes[0], np.int64)
    for cluster in range(len(bounds) - 1):
        num_staying = 0
        for member in range(bounds[cluster], bounds[cluster + 1]):
            a, a_end = offsets[places[member]], ends[places[member]]
            best = -1
            if not fixed[member]:
                for index in range(1 if always[cluster] and num_staying else num_staying):
                    other = staying[index]
                    b, b_end = offsets[places[other]], ends[places[other]]
                    mine, theirs = a_end - a, b_end - b
                    least, most = min(mine, theirs), max(mine, theirs)
                    reach = least >= limits[0] * most or least >= limits[1] * mine
                    if not (reach or always[cluster]):
                        continue
                    shared = _shared(distinct, a, a_end, b, b_end)
                    similarity = shared / max(1, mine + theirs - shared)
                    containment = shared / max(1, mine)
                    passes = similarity >= limits[0] or containment >= limits[1]
                    if not (passes or always[cluster]):
                        continue
                    if best < 0 or similarity > scores[member, 0]:
                        best = other
                        scores[member, 0] = similarity
                        scores[member, 1] = containment
                        scores[member, 2] = shared / max(1, theirs)
            if best >= 0:
                keepers[member] = best
                kept = distinct[offsets[places[best]] : ends[places[best]]]
                first, last = offsets[places[member]], offsets[places[member] + 1]
                novel[member] = _novel_words(hashes, first, last, kept, sizes[1])
            elif num_staying < len(staying):
                staying[num_staying] = member
                num_staying += 1
