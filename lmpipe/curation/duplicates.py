"""Sketches of documents, and who is whose duplicate: the gathering between dedup's two passes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.artifacts.store import Store
from lmpipe.curation.clusters import Clusters
from lmpipe.curation.minhash import HashFamily, band_keys, choose_keepers, signatures
from lmpipe.curation.word_hashes import hash_words

if TYPE_CHECKING:
    from lmpipe.curation.dedup import DedupConfig

# One row a document: what is needed to tell equal documents and to prefer one of them.
HEAD = np.dtype(
    [("id", "<u8", 2), ("digest", "<u8", 2), ("num_characters", "<i8"), ("num_words", "<i8")]
)
# One row a removed document: its row in the shard, and why it goes.
REMOVAL = np.dtype([("row", "<i8"), ("keeper", "<u8", 2), ("similarity", "<f8"), ("exact", "?")])


def sketch_batch(
    batch: pa.RecordBatch, ngram: int, family: HashFamily
) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Return heads and signatures of a batch of documents (columns id and text)."""
    words = hash_words(batch.column("text"))
    heads = np.empty(batch.num_rows, HEAD)
    heads["id"] = pack_ids(batch.column("id").to_pylist())
    heads["digest"] = words.digests
    heads["num_characters"] = pc.utf8_length(batch.column("text")).to_numpy(zero_copy_only=False)
    heads["num_words"] = words.counts
    return heads, signatures(words, ngram, family)


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


@dataclass(frozen=True)
class Duplicates:
    """Who goes for whom. Documents are numbered over all shards in input order.

    Attributes:
        heads: one row a document.
        bounds: shard number i holds documents `bounds[i]:bounds[i + 1]`.
        keepers: for each document the number of the one that stays for it; its own if it stays.
        similarity: estimated similarity with the keeper.
        exact: it equals its keeper.
        cluster_sizes: number of documents that met one another, directly or by a chain.
    """

    heads: NDArray[Any]
    bounds: NDArray[np.int64]
    keepers: NDArray[np.int64]
    similarity: NDArray[np.float64]
    exact: NDArray[np.bool]
    cluster_sizes: NDArray[np.int64]

    @property
    def num_documents(self) -> int:
        """Number of documents that came in."""
        return len(self.heads)

    @property
    def is_removed(self) -> NDArray[np.bool]:
        """Whether each document goes."""
        removed: NDArray[np.bool] = self.keepers != np.arange(len(self.keepers))
        return removed

    def removals(self, shard: int) -> NDArray[Any]:
        """Return the rows that go from one shard."""
        first, last = self.bounds[shard], self.bounds[shard + 1]
        gone = np.flatnonzero(self.is_removed[first:last]) + first
        rows = np.empty(len(gone), REMOVAL)
        rows["row"] = gone - first
        rows["keeper"] = self.heads["id"][self.keepers[gone]]
        rows["similarity"] = self.similarity[gone]
        rows["exact"] = self.exact[gone]
        return rows


def find_duplicates(
    out: Output[Any], sketches: list[ShardRecord], config: "DedupConfig"
) -> Duplicates:
    """Gather the shards' sketches: equal documents first, then near ones among the rest."""
    reader = _Sketches(out.store, sketches, config.bands, config.bands * config.rows)
    heads = reader.heads()
    rank = preference(heads)
    keepers = equal_keepers(heads, rank)
    distinct = np.flatnonzero(
        (keepers == np.arange(len(heads))) & (heads["num_words"] >= config.ngram)
    )
    clusters = Clusters(len(heads))
    for band in range(config.bands):
        clusters.join_equal(reader.keys(band)[distinct], distinct)
        out.progress(band + 1, config.bands, unit="bands")
    near, similarity, sizes = near_keepers(reader, clusters.roots(), distinct, rank, config)
    exact = keepers != np.arange(len(heads))
    final = near[keepers]  # an equal document's keeper may itself go for a longer near one
    exact &= final == keepers
    return Duplicates(heads, reader.bounds, final, similarity[keepers], exact, sizes)


def preference(heads: NDArray[Any]) -> NDArray[np.int64]:
    """Rank documents: the longest first, of equally long ones the smallest id."""
    ids = heads["id"]
    order = np.lexsort((ids[:, 1], ids[:, 0], -heads["num_characters"]))
    rank = np.empty(len(heads), np.int64)
    rank[order] = np.arange(len(heads))
    return rank


def equal_keepers(heads: NDArray[Any], rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each document the preferred one of those with its words; without words, itself."""
    keepers = np.arange(len(heads), dtype=np.int64)
    wordy = np.flatnonzero(heads["num_words"] > 0)
    digests = heads["digest"][wordy]
    order = np.lexsort((rank[wordy], digests[:, 1], digests[:, 0]))
    digests, wordy = digests[order], wordy[order]
    starts = np.ones(len(wordy), np.bool)
    starts[1:] = (digests[1:] != digests[:-1]).any(axis=1)
    firsts = np.flatnonzero(starts)
    if len(firsts):
        keepers[wordy] = wordy[firsts[np.cumsum(starts) - 1]]
    return keepers


def near_keepers(
    reader: "_Sketches",
    roots: NDArray[np.int64],
    distinct: NDArray[np.int64],
    rank: NDArray[np.int64],
    config: "DedupConfig",
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Choose keepers in each cluster of documents that met.

    Returns:
        For each document its keeper and their similarity, and the clusters' sizes.
    """
    keepers = np.arange(len(roots), dtype=np.int64)
    similarity = np.ones(len(roots), np.float64)
    order = distinct[np.lexsort((rank[distinct], roots[distinct]))]
    _, sizes = np.unique(roots[order], return_counts=True)
    shared = sizes > 1
    members = order[np.repeat(shared, sizes)]
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[shared])])
    chosen, scores = choose_keepers(
        reader.minima(members), bounds, config.min_similarity, config.max_keepers
    )
    keepers[members] = members[chosen]
    similarity[members] = scores
    return keepers, similarity, np.sort(sizes[shared])[::-1]


def pack_ids(ids: Iterable[str]) -> NDArray[np.uint64]:
    """Return ids of 32 hexadecimal digits as pairs of numbers that sort alike."""
    return np.frombuffer(bytes.fromhex("".join(ids)), ">u8").reshape(-1, 2).astype(np.uint64)


def unpack_id(pair: NDArray[np.uint64]) -> str:
    """Return the id of a pair of numbers."""
    return f"{int(pair[0]):016x}{int(pair[1]):016x}"


class _Sketches:
    """The sketches that a stage's shards wrote, read as arrays over all documents."""

    def __init__(self, store: Store, records: list[ShardRecord], bands: int, width: int) -> None:
        self._store = store
        self._paths = [
            {file.name.rpartition(".")[2]: file.path for file in record.files} for record in records
        ]
        self._width = width
        counts = [int(record.counts["documents"]) for record in records]
        self.bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])

    def heads(self) -> NDArray[Any]:
        """Return one row a document."""
        return np.concatenate(
            [np.empty(0, HEAD)] + [np.frombuffer(self._read(p["heads"]), HEAD) for p in self._paths]
        )

    def keys(self, band: int) -> NDArray[np.uint64]:
        """Return one band's keys of all documents: one range is read of each shard."""
        parts = [np.empty(0, np.uint64)]
        for paths, size in zip(self._paths, np.diff(self.bounds).tolist(), strict=True):
            data = self._read(paths["keys"], 8 * size * band, 8 * size)
            parts.append(np.frombuffer(data, "<u8").astype(np.uint64))
        return np.concatenate(parts)

    def minima(self, members: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the signatures of some documents, reading each shard that holds any of them."""
        rows = np.empty((len(members), self._width), np.uint32)
        shards = np.searchsorted(self.bounds, members, side="right") - 1
        for shard in np.unique(shards).tolist():
            mine = np.flatnonzero(shards == shard)
            data = np.frombuffer(self._read(self._paths[shard]["minima"]), "<u4")
            rows[mine] = data.reshape(-1, self._width)[members[mine] - self.bounds[shard]]
        return rows

    def _read(self, path: str, start: int = 0, size: int = -1) -> bytes:
        with self._store.open(path) as file:
            file.seek(start)
            return file.read(size)
