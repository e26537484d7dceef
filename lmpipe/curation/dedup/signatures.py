"""Sketches of documents, and who is whose duplicate: the gathering between dedup's passes."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.curation.dedup.band_joins import join_bands
from lmpipe.curation.dedup.clusters import Clusters, join_keys
from lmpipe.curation.dedup.minhash import HashFamily, band_keys, choose_keepers, signatures
from lmpipe.curation.dedup.text_digests import text_digests
from lmpipe.curation.dedup.urls import url_keys
from lmpipe.curation.text.word_hashes import hash_words
from lmpipe.documents.read import shard_names
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

if TYPE_CHECKING:
    from lmpipe.curation.dedup.config import DedupConfig

# One row a document: what is needed to tell equal documents and to prefer one of them. `url` is 0
# for a document without an address.
HEAD = np.dtype(
    [
        ("id", "<u8", 2),
        ("text", "<u8", 2),
        ("words", "<u8", 2),
        ("url", "<u8"),
        ("preference", "<i8"),
        ("num_characters", "<i8"),
        ("num_words", "<i8"),
    ]
)
REASONS = ("same_url", "exact_duplicate", "same_words", "near_duplicate")
SAME_URL, EXACT, SAME_WORDS, NEAR = range(4)
# One row a removed document: its row in the shard, and the evidence. NaN and -1: not compared.
REMOVAL = np.dtype(
    [
        ("row", "<i8"),
        ("keeper", "<u8", 2),
        ("is_earlier", "?"),  # the keeper lies in an earlier crawl
        ("reason", "<i4"),
        ("similarity", "<f8"),
        ("containment", "<f8"),
        ("keeper_containment", "<f8"),
        ("novel_words", "<i8"),
        ("num_words", "<i8"),
    ]
)


@dataclass(frozen=True)
class Shard:
    """A shard of documents and its sketches.

    Attributes:
        documents, name: where the texts lie.
        paths: the sketches' objects by kind (heads, minima, keys), and `stays` for a shard of an
            earlier crawl: which rows of its sketches are documents that it kept.
        count: number of sketches.
        is_earlier: whether it belongs to an earlier crawl, which loses nothing.
    """

    documents: Documents
    name: str
    paths: dict[str, str]
    count: int
    is_earlier: bool


def sketch_batch(
    batch: pa.RecordBatch, config: "DedupConfig", family: HashFamily
) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Return heads and signatures of a batch of documents."""
    words = hash_words(batch.column("text"))
    heads = np.zeros(batch.num_rows, HEAD)
    heads["id"] = pack_ids(batch.column("id").to_pylist())
    heads["text"] = text_digests(batch.column("text"))
    heads["words"] = words.digests
    heads["num_characters"] = pc.utf8_length(batch.column("text")).to_numpy(zero_copy_only=False)
    heads["num_words"] = words.counts
    heads["preference"] = _preferences(batch, config.keep)
    if config.same_url:
        heads["url"] = url_keys(batch.column("url").to_pylist())
    return heads, signatures(words, config.ngram, family)


def _preferences(batch: pa.RecordBatch, keep: str) -> NDArray[np.int64] | int:
    """Return numbers of which the largest is preferred; what is unknown comes last."""
    worst = np.iinfo(np.int64).min
    if keep == "best_quality":
        scores = pc.fill_null(batch.column("quality_score"), float("-inf"))
        values = scores.to_numpy(zero_copy_only=False).astype(np.float64)
        known = np.isfinite(values)
        ranks = np.where(known, np.round(np.where(known, values, 0) * 1e9), 0).astype(np.int64)
        return np.where(known, ranks, worst)
    if keep == "earliest":
        dates = [_seconds(date) for date in batch.column("date").to_pylist()]
        return np.array([worst if at is None else -at for at in dates], np.int64)
    return 0  # the longest: what breaks ties anyway


def _seconds(date: str | None) -> int | None:
    try:
        at = np.datetime64((date or "").removesuffix("Z"), "s")
    except ValueError:
        return None
    return None if np.isnat(at) else int(at.astype(np.int64))


def write_sketch(
    shard: ShardOutput, number: str, heads: NDArray[Any], minima: NDArray[np.uint32], bands: int
) -> None:
    """Write one shard's heads, signatures and band keys as plain arrays without header."""
    for name, array in (
        ("heads", heads),
        ("minima", minima.astype("<u4")),
        ("keys", band_keys(minima, bands).astype("<u8")),
    ):
        shard.write_bytes(f"sketches/{number}.{name}", array.tobytes())
        shard.set_rows(f"sketches/{number}.{name}", len(heads))


def new_shards(documents: Documents, sketches: list[ShardRecord]) -> list[Shard]:
    """Return the shards of the documents in work, with the sketches just made."""
    return [
        Shard(
            documents,
            name,
            {file.name.rpartition(".")[2]: file.path for file in record.files},
            int(record.counts["documents"]),
            False,
        )
        for name, record in zip(shard_names(documents), sketches, strict=True)
    ]


def earlier_shards(earlier: list[Documents], config: "DedupConfig", version: int) -> list[Shard]:
    """Return the shards of earlier crawls, each an artifact of dedup with its sketches.

    Raises:
        InputError: it has no sketches, or sketches of another version or of other settings, or they
            are cut short.
    """
    widths = {
        "heads": HEAD.itemsize,
        "minima": 4 * config.bands * config.rows,
        "keys": 8 * config.bands,
        "stays": 1,
    }
    shards = []
    for artifact in sorted(earlier, key=lambda item: item.digest):
        if artifact.manifest.version != version:
            raise InputError(
                f"{artifact!r} is of dedup v{artifact.manifest.version}, now v{version}: sketches "
                "cannot be compared; build it again, or leave it out of the crawls compared with"
            )
        for field in ("ngram", "bands", "rows", "seed", "same_url"):
            theirs = artifact.manifest.config.get(field)
            if theirs != getattr(config, field):
                raise InputError(
                    f"{artifact!r} was deduplicated with {field}={theirs}, now "
                    f"{getattr(config, field)}: sketches cannot be compared; set dedup.{field}="
                    f"{theirs} or build it again"
                )
        for name in shard_names(artifact):
            number = Path(name).stem
            paths, counts = {}, set()
            for kind, width in widths.items():
                record = artifact.record(f"sketches/{number}.{kind}")
                size = artifact.store.size(record.path)
                if size != record.bytes or (width and record.bytes != (record.rows or 0) * width):
                    raise InputError(
                        f"{artifact.url(record.name)} has {size} bytes, should have "
                        f"{(record.rows or 0) * width}: it is cut short; build the artifact again"
                    )
                paths[kind] = record.path
                counts.add(record.rows or 0)
            assert len(counts) == 1, f"{artifact!r} has sketches of unequal length"
            shards.append(Shard(artifact, name, paths, counts.pop(), True))
    return shards


@dataclass(frozen=True)
class Groups:
    """Sets of documents of which the first stays, for certain or unless the others differ enough.

    Attributes:
        members: document numbers, group after group, each in order of preference.
        bounds: group number i holds `members[bounds[i]:bounds[i + 1]]`.
    """

    members: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of members of each group."""
        return np.diff(self.bounds)

    def firsts(self) -> NDArray[np.int64]:
        """Return for each member the first of its group."""
        return np.repeat(self.members[self.bounds[:-1]], self.sizes)


class Verdicts:
    """Who goes for whom, and on which evidence. Filled step by step; a document goes once."""

    def __init__(self, count: int) -> None:
        self.keepers = np.arange(count, dtype=np.int64)
        self.reasons = np.full(count, -1, np.int8)
        self.similarity = np.full(count, np.nan, np.float32)
        self.containment = np.full(count, np.nan, np.float32)
        self.keeper_containment = np.full(count, np.nan, np.float32)
        self.novel_words = np.full(count, -1, np.int32)

    @property
    def is_removed(self) -> NDArray[np.bool]:
        """Whether each document goes."""
        return np.asarray(self.reasons >= 0)

    def remove(self, members: NDArray[np.int64], keepers: NDArray[np.int64], reason: int) -> None:
        """Let members go for keepers; those that are their own keeper stay."""
        gone = members != keepers
        self.keepers[members[gone]] = keepers[gone]
        self.reasons[members[gone]] = reason

    def settle_equal(self, equal: NDArray[np.int64]) -> None:
        """Let copies of a near duplicate go for what it goes for: their n-grams are the same."""
        self.similarity[equal] = self.containment[equal] = self.keeper_containment[equal] = 1
        self.novel_words[equal] = 0
        keepers = self.keepers[equal]
        moved = self.reasons[keepers] >= 0
        equal, keepers = equal[moved], keepers[moved]
        for values in (self.reasons, self.keepers, self.similarity, self.containment,
                       self.keeper_containment, self.novel_words):  # fmt: skip
            values[equal] = values[keepers]


class Sketches:
    """The sketches of all shards, read as arrays over all documents.

    Documents are numbered in input order, those of earlier crawls after all new ones. Heads lie in
    a scratch file mapped into memory, so that what is not looked at costs none.
    """

    def __init__(self, store: Store, shards: list[Shard], bands: int, rows: int, scratch: Path):
        self._store, self._width, self._bands = store, bands * rows, bands
        self.shards = shards
        new = [self._ids(shard) for shard in shards if not shard.is_earlier]
        new_ids = np.concatenate([np.empty(0, np.uint64), *new])
        self._stays = [self._compared(shard, new_ids) for shard in shards]
        counts = [
            shard.count if stays is None else int(stays.sum())
            for shard, stays in zip(shards, self._stays, strict=True)
        ]
        self.bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
        self.num_new = sum(n for n, s in zip(counts, shards, strict=True) if not s.is_earlier)
        path = scratch / "heads"
        with path.open("wb") as file:
            for number in range(len(shards)):
                file.write(self.heads_of(number).tobytes())
        empty = np.empty(0, HEAD)
        self.heads: NDArray[Any] = np.memmap(path, HEAD, "r") if path.stat().st_size else empty

    @property
    def count(self) -> int:
        """Number of documents, earlier crawls included."""
        return int(self.bounds[-1])

    def heads_of(self, shard: int) -> NDArray[Any]:
        """Return the heads of one shard's documents."""
        heads = np.frombuffer(self._read(self.shards[shard], "heads"), HEAD)
        stays = self._stays[shard]
        return heads if stays is None else heads[stays]

    def keys(self, band: int) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
        """Yield one band's keys and the documents' numbers: one range is read of each shard."""
        for number, shard in enumerate(self.shards):
            data = self._read(shard, "keys", 8 * shard.count * band, 8 * shard.count)
            keys = np.frombuffer(data, "<u8").astype(np.uint64)
            stays = self._stays[number]
            keys = keys if stays is None else keys[stays]
            yield keys, np.arange(self.bounds[number], self.bounds[number + 1])

    def key_places(
        self, wanted: NDArray[np.bool]
    ) -> list[tuple[str, NDArray[np.bool], NDArray[np.bool]]]:
        """Return each shard's object of keys, which rows are documents, and which are wanted."""
        return [
            (
                shard.paths["keys"],
                np.ones(shard.count, np.bool) if stays is None else stays,
                wanted[first:last],
            )
            for shard, stays, (first, last) in zip(
                self.shards, self._stays, itertools.pairwise(self.bounds.tolist()), strict=True
            )
        ]

    def minima(self, members: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the signatures of some documents, reading each shard that holds any of them."""
        rows = np.empty((len(members), self._width), np.uint32)
        shards = self.shard_of(members)
        for number in np.unique(shards).tolist():
            mine = np.flatnonzero(shards == number)
            data = np.frombuffer(self._read(self.shards[number], "minima"), "<u4")
            all_rows = data.reshape(-1, self._width)
            stays = self._stays[number]
            all_rows = all_rows if stays is None else all_rows[stays]
            rows[mine] = all_rows[members[mine] - self.bounds[number]]
        return rows

    def shard_of(self, members: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the shard that each document lies in."""
        return np.searchsorted(self.bounds, members, side="right").astype(np.int64) - 1

    def _compared(self, shard: Shard, new_ids: NDArray[np.uint64]) -> NDArray[np.bool] | None:
        """Return which of an earlier shard's documents are compared with; None for a new shard.

        Those that it kept, less those of the new crawl itself: a record that is curated again with
        other settings has the id that it had, and would go for itself.
        """
        if not shard.is_earlier:
            return None
        stays = np.frombuffer(self._read(shard, "stays"), np.bool)
        return stays & ~np.isin(self._ids(shard), new_ids)

    def _ids(self, shard: Shard) -> NDArray[np.uint64]:
        """Return the first half of each document's id: 64 bits tell documents apart."""
        ids: NDArray[np.uint64] = np.frombuffer(self._read(shard, "heads"), HEAD)["id"][:, 0]
        return ids

    def _read(self, shard: Shard, kind: str, start: int = 0, size: int = -1) -> bytes:
        with self._store.open(shard.paths[kind]) as file:
            file.seek(start)
            return file.read(size)


class Gathering:
    """Finds, from sketches alone, who may go for whom."""

    def __init__(
        self, sketches: Sketches, config: "DedupConfig", scratch: Path, runtime: Runtime
    ) -> None:
        self.sketches, self._config, self._scratch = sketches, config, scratch
        self._runtime, self._memory = runtime, runtime.sort_memory_mb << 20
        self._threads = min(2, runtime.workers)
        self.verdicts = Verdicts(sketches.count)
        self.spilled_bytes = 0

    def equal_urls(self) -> Groups:
        """Group documents of one address."""
        return self._group(lambda heads: (heads["url"], heads["url"] != 0), "url")

    def equal_texts(self) -> Groups:
        """Group documents of equal texts, those without any word apart."""
        return self._group(lambda heads: (heads["text"][:, 0], heads["num_words"] > 0), "text")

    def equal_words(self) -> Groups:
        """Group documents of the same folded words, those without any apart."""
        return self._group(lambda heads: (heads["words"][:, 0], heads["num_words"] > 0), "words")

    def near_texts(self, out: Output[Any]) -> Groups:
        """Group documents that meet in a band, directly or by a chain."""
        clusters = Clusters(self.sketches.count)
        distinct = ~self.verdicts.is_removed
        for number, (first, last) in enumerate(self._ranges()):
            long = self.sketches.heads_of(number)["num_words"] >= self._config.ngram
            distinct[first:last] &= long
        if self._runtime.executor != "local":
            places = self.sketches.key_places(distinct)
            self.spilled_bytes += join_bands(
                out, clusters, places, self._config.bands, self._runtime
            )
            return self._ordered(*clusters.members())
        for band in range(self._config.bands):
            batches = (
                (keys[distinct[numbers]], numbers[distinct[numbers]])
                for keys, numbers in self.sketches.keys(band)
            )
            self._join(clusters, batches)
            out.progress(band + 1, self._config.bands, unit="bands")
        return self._ordered(*clusters.members())

    def estimated(self, groups: Groups) -> None:
        """Let near documents go by their minima alone."""
        config, verdicts = self._config, self.verdicts
        chosen, scores = choose_keepers(
            self.sketches.minima(groups.members),
            groups.bounds,
            config.min_similarity,
            config.max_keepers,
        )
        keepers = groups.members[chosen]
        new = groups.members < self.sketches.num_new
        verdicts.remove(groups.members[new], keepers[new], NEAR)
        verdicts.similarity[groups.members[new]] = scores[new]

    def _group(self, key_of: Any, exact: str) -> Groups:
        clusters = Clusters(self.sketches.count)
        kept = ~self.verdicts.is_removed

        def batches() -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
            for number, (first, last) in enumerate(self._ranges()):
                keys, wanted = key_of(self.sketches.heads_of(number))
                wanted = wanted & kept[first:last]
                yield keys[wanted], np.arange(first, last)[wanted]

        self._join(clusters, batches())
        members, roots = clusters.members()
        whole = self.sketches.heads[exact]
        same = whole[members] == whole[roots]  # the key is half of a digest
        same = same.all(axis=1) if same.ndim == 2 else same
        return self._ordered(members[same], roots[same])

    def _join(self, clusters: Clusters, batches: Iterable[Any]) -> None:
        self.spilled_bytes += join_keys(
            clusters, batches, self.sketches.count, self._scratch, self._memory, self._threads
        )

    def _ranges(self) -> list[tuple[int, int]]:
        bounds = self.sketches.bounds.tolist()
        return list(itertools.pairwise(bounds))

    def _ordered(self, members: NDArray[np.int64], roots: NDArray[np.int64]) -> Groups:
        """Sort groups' members: earlier crawls, then the preferred, the longest, the smallest id.

        Groups of earlier documents alone are dropped: nothing can go there.
        """
        heads = self.sketches.heads[members]
        ids, is_new = heads["id"], members < self.sketches.num_new
        order = np.lexsort(
            (ids[:, 1], ids[:, 0], -heads["num_characters"], ~heads["preference"], is_new, roots)
        )
        members, roots, is_new = members[order], roots[order], is_new[order]
        starts = np.flatnonzero(np.diff(roots, prepend=-1))
        sizes = np.diff(np.append(starts, len(members)))
        useful = np.add.reduceat(is_new, starts) > 0 if len(starts) else np.empty(0, np.bool)
        useful = useful & (sizes > 1)
        # groups in an order that depends on the documents alone
        first_ids = self.sketches.heads["id"][members[starts]].reshape(-1, 2)
        rank = np.lexsort((first_ids[:, 1], first_ids[:, 0]))
        rank = rank[useful[rank]]
        picked = [np.arange(starts[g], starts[g] + sizes[g]) for g in rank.tolist()]
        rows = np.concatenate([np.empty(0, np.int64), *picked])
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[rank])])
        return Groups(members[rows], bounds.astype(np.int64))


def removals(sketches: Sketches, verdicts: Verdicts, shard: int) -> NDArray[Any]:
    """Return the rows that go from one shard, with the evidence."""
    first, last = int(sketches.bounds[shard]), int(sketches.bounds[shard + 1])
    gone = np.flatnonzero(verdicts.is_removed[first:last]) + first
    rows = np.empty(len(gone), REMOVAL)
    rows["row"] = gone - first
    rows["keeper"] = sketches.heads["id"][verdicts.keepers[gone]].reshape(-1, 2)
    rows["is_earlier"] = verdicts.keepers[gone] >= sketches.num_new
    rows["reason"] = verdicts.reasons[gone]
    rows["num_words"] = sketches.heads["num_words"][gone]
    for name in ("similarity", "containment", "keeper_containment", "novel_words"):
        rows[name] = getattr(verdicts, name)[gone]
    return rows


def pack_ids(ids: Iterable[str]) -> NDArray[np.uint64]:
    """Return ids of 32 hexadecimal digits as pairs of numbers that sort alike."""
    return np.frombuffer(bytes.fromhex("".join(ids)), ">u8").reshape(-1, 2).astype(np.uint64)


def unpack_id(pair: NDArray[np.uint64]) -> str:
    """Return the id of a pair of numbers."""
    return f"{int(pair[0]):016x}{int(pair[1]):016x}"
