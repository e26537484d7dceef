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
from typing import TYPE_CHECKING, Any, NamedTuple

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


class _Shingles(NamedTuple):
    """N-grams of a bucket's documents; document i has hashes[offsets[i]:offsets[i + 1]].

    Its n-grams in ascending order and without repeats are distinct[offsets[i]:ends[i]].
    """

    numbers: NDArray[np.int64]  # of the documents, ascending
    hashes: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    distinct: NDArray[np.uint64]
    ends: NDArray[np.int64]


class _Clusters(NamedTuple):
    """Members cluster after cluster; cluster i has those from bounds[i] on."""

    bounds: NDArray[np.int64]
    always: NDArray[np.bool]  # of clusters whose first member takes all others
    fixed: NDArray[np.bool]  # of members that stay in any case
    places: NDArray[np.int64]  # of members, among the bucket's documents


class _Rules(NamedTuple):
    min_similarity: float
    min_containment: float
    max_keepers: int
    ngram: int


class _Scores(NamedTuple):
    """What became of each member: the one that stays in its place, and how the two compare."""

    keeper: NDArray[np.int64]  # itself, of one that stays
    similarity: NDArray[np.float64]
    containment: NDArray[np.float64]
    keeper_containment: NDArray[np.float64]
    novel_words: NDArray[np.int64]


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
    work = partial(verify_bucket, config=config, store=out.store, groups=sizes, indices=shingles)
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
    indices: list[tuple[str, list[list[int]]]],
) -> None:
    """Decide the clusters of one bucket."""
    data = np.frombuffer(store.read(groups[key]) or b"", "<i8")
    count = int(data[0])
    lengths, always = data[1 : 1 + count], data[1 + count : 1 + 2 * count] == 1
    members, fixed = np.split(data[1 + 2 * count :], 2)
    shingles = _read_shingles(store, indices, int(key.split("-")[1]))
    _distinct(shingles)
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int64)
    places = np.searchsorted(shingles.numbers, members)
    rules = _Rules(config.min_similarity, config.min_containment, config.max_keepers, config.ngram)
    found = _Scores(
        keeper=np.arange(len(members), dtype=np.int64),
        similarity=np.ones(len(members)),
        containment=np.ones(len(members)),
        keeper_containment=np.ones(len(members)),
        novel_words=np.zeros(len(members), np.int64),
    )
    _judge(_Clusters(bounds, always, fixed == 1, places), shingles, rules, found)
    rows = np.empty(len(members), VERDICT)
    rows["number"], rows["keeper"] = members, members[found.keeper]
    rows["similarity"], rows["containment"] = found.similarity, found.containment
    rows["keeper_containment"], rows["novel_words"] = found.keeper_containment, found.novel_words
    shard.write_bytes(f"verdicts/{key}", rows.tobytes())


def _read_shingles(
    store: Store, indices: list[tuple[str, list[list[int]]]], bucket: int
) -> _Shingles:
    """Read a bucket's n-grams, documents in order; `distinct` and `ends` are still empty."""
    numbers, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    hashes = [np.empty(0, np.uint64)]
    for path, index in indices:
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
    every = np.concatenate(hashes).astype(np.uint64)
    offsets = offsets.astype(np.int64)
    return _Shingles(joined, every, offsets, np.empty_like(every), np.empty_like(offsets))


@compiled
def _distinct(shingles: _Shingles) -> None:
    """Sort each document's n-grams without repeats into the same place of `distinct`."""
    _numbers, hashes, offsets, distinct, ends = shingles
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
def _judge(clusters: _Clusters, shingles: _Shingles, rules: _Rules, found: _Scores) -> None:
    """Decide member by member who stays, and with whom each other is compared best."""
    bounds, always, fixed, places = clusters
    _numbers, hashes, offsets, distinct, ends = shingles
    staying = np.empty(rules.max_keepers, np.int64)
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
                    reach = least >= rules.min_similarity * most
                    reach = reach or least >= rules.min_containment * mine
                    if not (reach or always[cluster]):
                        continue
                    shared = _shared(distinct, a, a_end, b, b_end)
                    similarity = shared / max(1, mine + theirs - shared)
                    containment = shared / max(1, mine)
                    passes = similarity >= rules.min_similarity
                    passes = passes or containment >= rules.min_containment
                    if not (passes or always[cluster]):
                        continue
                    if best < 0 or similarity > found.similarity[member]:
                        best = other
                        found.similarity[member] = similarity
                        found.containment[member] = containment
                        found.keeper_containment[member] = shared / max(1, theirs)
            if best >= 0:
                found.keeper[member] = best
                kept = distinct[offsets[places[best]] : ends[places[best]]]
                first, last = offsets[places[member]], offsets[places[member] + 1]
                novel = _novel_words(hashes, first, last, kept, rules.ngram)
                found.novel_words[member] = novel
            elif num_staying < len(staying):
                staying[num_staying] = member
                num_staying += 1
