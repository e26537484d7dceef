"""Cutting repeats out of documents, and the evidence of each cut."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmpipe.artifacts.output import Output, ShardOutput
from lmpipe.artifacts.types import Documents
from lmpipe.curation.dedup.signatures import pack_ids, unpack_id
from lmpipe.curation.passages.segments import Segments, split
from lmpipe.documents.ledger import BUCKETS, removal
from lmpipe.documents.read import find_rows

if TYPE_CHECKING:
    from lmpipe.curation.passages.config import DedupPassagesConfig

CUT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("action", pa.string(), nullable=False),  # cut: the document stays; or removed
        pa.field("segment", pa.int64(), nullable=False),  # the first one that went
        pa.field("num_segments", pa.int64(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),  # bytes of the text before the cut
        pa.field("end", pa.int64(), nullable=False),
        pa.field("num_words", pa.int64(), nullable=False),
        pa.field("characters", pa.int64(), nullable=False),
        pa.field("keeper", pa.string()),  # null: a Bloom filter does not know
        pa.field("keeper_segment", pa.int64()),  # of the keeper's text before its own cuts
        pa.field("copies", pa.int64()),  # equal passages in all
        pa.field("text", pa.string(), nullable=False),
    ]
)
EXCERPT_BYTES = 400


def reason_of(config: "DedupPassagesConfig") -> str:
    """Return the reason for which documents go."""
    if config.unit != "document":
        return "few_words_left"
    return "seen_before" if config.bloom_memory_mb else "exact_duplicate"


class Cutter:
    """Applies one shard's repeats to its batches, in order.

    Attributes:
        removed: rows for the ledger.
        tables: the evidence, a table of CUT_SCHEMA a batch.
        counts: documents, words and characters.
    """

    def __init__(self, repeats: NDArray[Any], config: "DedupPassagesConfig") -> None:
        self._repeats, self._config, self._first = repeats, config, 0
        self.removed: list[dict[str, Any]] = []
        self.tables: list[pa.Table] = []
        self.counts: Counter[str] = Counter(
            dict.fromkeys(
                ("removed", "cut", "cut_words", "kept_characters", "cut_characters",
                 "dropped_characters"), 0)
        )  # fmt: skip

    def apply(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the batch without what repeats."""
        bounds = np.searchsorted(self._repeats["row"], [self._first, self._first + batch.num_rows])
        mine = self._repeats[bounds[0] : bounds[1]]
        rows, starts = np.unique(mine["row"], return_index=True)
        table = pa.Table.from_batches([batch])
        keep = np.ones(batch.num_rows, np.bool)
        if len(rows):
            places = rows.astype(np.int64) - self._first
            texts = batch.column("text").take(pa.array(places))
            segments = split(texts, self._config.unit)
            ends = np.append(starts[1:], len(mine))
            rests, evidence = {}, []
            for number, place in enumerate(places.tolist()):
                source = _sources(
                    segments, number, mine[starts[number] : ends[number]], self._config
                )
                document = _Document(batch, place, segments, number, source)
                rest = self._treat(document)
                if rest is None:
                    keep[place] = False
                else:
                    rests[place] = rest
                evidence += document.evidence("removed" if rest is None else "cut")
            self.tables.append(pa.Table.from_pylist(evidence, schema=CUT_SCHEMA))
            column = [rests.get(i, t) for i, t in enumerate(batch.column("text").to_pylist())]
            at = table.schema.get_field_index("text")
            field = table.schema.field(at)
            table = table.set_column(at, field, pa.array(column, field.type))
        table = table.filter(pa.array(keep))
        self.counts["kept_characters"] += pc.sum(pc.utf8_length(table["text"])).as_py() or 0
        self._first += batch.num_rows
        return table

    def _treat(self, document: "_Document") -> str | None:
        """Return what remains of a document, or None if that is too little."""
        config, words = self._config, document.num_words
        left = words - document.cut_words
        limit = max(1, config.min_remaining_words, config.min_remaining_fraction * words)
        self.counts["cut_words"] += document.cut_words
        self.counts["cut_characters"] += document.cut_characters
        if config.unit != "document" and left >= limit:
            self.counts["cut"] += 1
            return document.rest
        self.counts["removed"] += 1
        self.counts["dropped_characters"] += len(document.rest)
        reason = reason_of(config)
        is_copy = reason == "exact_duplicate"
        self.removed.append(
            removal(
                document.id,
                "dedup_passages",
                reason,
                score=None if config.unit == "document" else float(left),
                threshold=None if config.unit == "document" else float(limit),
                keeper=document.keeper if is_copy else None,
                similarity=1.0 if is_copy else None,
                url=document.url,
            )
        )
        return None


# One row a segment of a document: whether it goes, and for which one of which document.
_SOURCE = np.dtype(
    [("gone", "?"), ("keeper", "<u8", 2), ("keeper_segment", "<i8"), ("copies", "<i8")]
)


def _sources(
    segments: Segments, number: int, repeats: NDArray[Any], config: "DedupPassagesConfig"
) -> NDArray[Any]:
    """Return what goes of one document; a segment of several repeats goes for the first of them."""
    size = int(segments.offsets[number + 1] - segments.offsets[number])
    source = np.zeros(size, _SOURCE)
    for step in reversed(range(config.length)):  # the first repeat is written last
        at = repeats["first"].astype(np.int64) + step
        source["gone"][at] = True
        source["keeper"][at] = repeats["keeper"]
        source["keeper_segment"][at] = repeats["keeper_first"].astype(np.int64) + step
        source["copies"][at] = repeats["copies"]
    return source


class _Document:
    """One document, its segments, and which of them go."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        place: int,
        segments: Segments,
        number: int,
        source: NDArray[Any],
    ) -> None:
        self.id, self.url = batch.column("id")[place].as_py(), batch.column("url")[place].as_py()
        self._data = batch.column("text")[place].as_py().encode()
        first, last = segments.offsets[number : number + 2].tolist()
        self._bounds = segments.bounds[first : last + 1] - segments.bounds[first]
        self._words = segments.counts[first:last]
        self._source = source
        assert self._bounds[-1] == len(self._data), "the text was cut into other segments"
        self.num_words = int(self._words.sum())
        self.cut_words = int(self._words[source["gone"]].sum())
        self.rest = b"".join(self._runs(~source["gone"])).decode()
        cut = self._runs(source["gone"])
        self.cut_characters = sum(len(piece.decode()) for piece in cut)

    @property
    def keeper(self) -> str | None:
        """The document that the first cut names."""
        first = self._source[self._source["gone"]][0]
        return unpack_id(first["keeper"]) if first["copies"] else None

    def evidence(self, action: str) -> list[dict[str, Any]]:
        """Return a row for each run of segments that one run of another document repeats."""
        gone, source = self._source["gone"], self._source
        goes_on = gone[1:] & gone[:-1]
        goes_on &= (source["keeper"][1:] == source["keeper"][:-1]).all(axis=1)
        is_known = source["copies"][1:] > 0
        goes_on &= (np.diff(source["keeper_segment"]) == 1) | ~is_known
        starts = np.flatnonzero(gone & np.concatenate([[True], ~goes_on]))
        ends = np.flatnonzero(gone & np.concatenate([~goes_on, [True]])) + 1
        runs = zip(starts.tolist(), ends.tolist(), strict=True)
        return [self._row(first, last, action) for first, last in runs]

    def _row(self, first: int, last: int, action: str) -> dict[str, Any]:
        start, end = int(self._bounds[first]), int(self._bounds[last])
        head, is_known = self._source[first], bool(self._source["copies"][first])
        return {
            "id": self.id,
            "action": action,
            "segment": int(first),
            "num_segments": int(last - first),
            "start": start,
            "end": end,
            "num_words": int(self._words[first:last].sum()),
            "characters": len(self._data[start:end].decode()),
            "keeper": unpack_id(head["keeper"]) if is_known else None,
            "keeper_segment": int(head["keeper_segment"]) if is_known else None,
            "copies": int(self._source["copies"][first:last].max()) if is_known else None,
            "text": self._data[start : min(end, start + EXCERPT_BYTES)].decode(errors="ignore"),
        }

    def _runs(self, wanted: NDArray[np.bool]) -> list[bytes]:
        edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).reshape(-1, 2)
        return [self._data[self._bounds[a] : self._bounds[b]] for a, b in edges.tolist()]


def write_cuts(shard: ShardOutput, key: str, tables: list[pa.Table]) -> None:
    """Write one shard's evidence."""
    table = pa.concat_tables([CUT_SCHEMA.empty_table(), *tables])
    name = f"cuts/{key}.parquet"
    with shard.open(name, "wb") as file:
        pq.write_table(table, file, compression="zstd")
    shard.set_rows(name, table.num_rows)


def find_cuts(documents: Documents, document: str) -> list[dict[str, Any]]:
    """Return what was cut out of one document, in order; none if nothing was."""
    for name in documents.names("cuts/"):
        with documents.open(name) as file:
            rows = list(find_rows(file, "id", [document]))
        if rows:
            return rows
    return []


def count_lost_keepers(out: Output[Any], keys: list[str]) -> int:
    """Count the cuts whose keeper was itself removed: that text is in no document any more."""
    gone: list[str] = []
    for digit in BUCKETS:
        with out.store.open(out.files[f"removed/{digit}.parquet"].path) as file:
            gone += pq.read_table(file, columns=["id"])["id"].to_pylist()
    if not gone:
        return 0
    removed, count = np.unique(pack_ids(gone)[:, 0]), 0
    for key in keys:
        with out.store.open(out.files[f"cuts/{key}.parquet"].path) as file:
            keepers = pq.read_table(file, columns=["keeper"])["keeper"].drop_null().to_pylist()
        count += int(np.isin(pack_ids(keepers)[:, 0], removed).sum()) if keepers else 0
    return count
