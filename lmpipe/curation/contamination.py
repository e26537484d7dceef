"""From occurrences of items' n-grams to flagged documents, and from those to clean ones."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.curation.ngram_index import NgramIndex
from lmpipe.curation.word_hashes import hash_words
from lmpipe.documents.ledger import removal

if TYPE_CHECKING:
    from lmpipe.curation.decontaminate import DecontaminateConfig

# One row for each occurrence of an indexed n-gram: document, n-gram, bytes of the text.
HIT = np.dtype([("document", "<i8"), ("gram", "<i8"), ("start", "<i8"), ("end", "<i8")])
OVERLAP_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("item", pa.int64(), nullable=False),
        pa.field("part", pa.string(), nullable=False),
        pa.field("share", pa.float64(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)
EXCERPT_BYTES = 400
MAX_PLANTED = 64
FILLER = "the weather in the harbour stayed as grey as anyone there could remember"


@dataclass(frozen=True)
class Flag:
    """One document that holds one item.

    Attributes:
        document: number over all shards.
        part: number of the item's text in the index that the document holds most of.
        share: share of that text's n-grams that the document holds, boilerplate not counted.
        spans: bytes of the document's text that hold any of the item's texts, merged.
    """

    document: int
    part: int
    share: float
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Findings:
    """All flags, and what did not count.

    Attributes:
        index: the items' n-grams.
        bounds: shard number i holds documents `bounds[i]:bounds[i + 1]`.
        flags: sorted by document, best match first.
        boilerplate: a part of each item that only boilerplate or template met, with the number of
            documents of its most frequent n-gram.
    """

    index: NgramIndex
    bounds: NDArray[np.int64]
    flags: list[Flag]
    boilerplate: dict[int, int]

    def table(self) -> list[dict[str, Any]]:
        """Return one row a benchmark."""
        parts = self.index.parts
        rows: dict[str, dict[str, Any]] = {}
        items: dict[str, dict[str, set[int]]] = {}
        for part in parts:
            of = items.setdefault(part.item.benchmark, {"all": set(), "checked": set()})
            of["all"].add(part.item.index)
            if part.is_checked:
                of["checked"].add(part.item.index)
        for benchmark, of in sorted(items.items()):
            mine = [f for f in self.flags if parts[f.part].item.benchmark == benchmark]
            rows[benchmark] = {
                "benchmark": benchmark,
                "items": len(of["all"]),
                "too short": len(of["all"] - of["checked"]),
                "contaminated items": len({parts[f.part].item.index for f in mine}),
                "documents": len({f.document for f in mine}),
                "boilerplate items": len(
                    {
                        parts[p].item.index
                        for p in self.boilerplate
                        if parts[p].item.benchmark == benchmark
                    }
                ),
            }
        return list(rows.values())


def scan_texts(index: NgramIndex, texts: Any, first: int) -> NDArray[Any]:
    """Return the occurrences of indexed n-grams in a batch whose first document has a number."""
    hits = index.scan(hash_words(texts))
    rows = np.empty(len(hits.texts), HIT)
    rows["document"], rows["gram"] = hits.texts + first, hits.grams
    rows["start"], rows["end"] = hits.starts, hits.ends
    return rows


def decide(
    out: Output[Any], scans: list[ShardRecord], index: NgramIndex, config: "DecontaminateConfig"
) -> Findings:
    """Gather the shards' occurrences, drop what is boilerplate, and flag documents.

    The scans are taken out of the artifact: their use ends here.
    """
    counts = [int(record.counts["documents"]) for record in scans]
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    parts = [np.empty(0, HIT)]
    for record, first in zip(scans, bounds[:-1].tolist(), strict=True):
        (file,) = record.files
        del out.files[file.name]
        rows = np.frombuffer(out.store.read(file.path) or b"", HIT).copy()
        rows["document"] += first
        parts.append(rows)
    flags, boilerplate = flag_documents(np.concatenate(parts), index, config)
    return Findings(index, bounds, flags, boilerplate)


def flag_documents(
    hits: NDArray[Any], index: NgramIndex, config: "DecontaminateConfig"
) -> tuple[list[Flag], dict[int, int]]:
    """Return the flags, and the parts that only boilerplate met."""
    pairs = np.unique(hits[["document", "gram"]])
    num_documents = np.bincount(pairs["gram"], minlength=len(index.grams))
    counts = index.num_owning_items <= config.template_items
    if config.boilerplate_documents:
        counts &= num_documents <= config.boilerplate_documents
    found: dict[tuple[int, int], int] = {}
    boilerplate: dict[str, tuple[int, int]] = {}
    for document, gram in pairs.tolist():
        for part in index.owners_of(gram).tolist():
            if counts[gram]:
                found[document, part] = found.get((document, part), 0) + 1
            else:
                most = max(
                    boilerplate.get(index.parts[part].item.name, (0, 0))[1], num_documents[gram]
                )
                boilerplate[index.parts[part].item.name] = (part, int(most))
    best: dict[tuple[int, str], tuple[float, int]] = {}
    for (document, part), number in found.items():
        share = number / index.parts[part].num_grams
        item = (document, index.parts[part].item.name)
        if share >= config.min_share and (share, -part) > best.get(item, (-1.0, 0)):
            best[item] = (share, -part)
    spans = _spans(hits[counts[hits["gram"]]], index, best.keys())
    flags = [
        Flag(document, -part, share, spans[document, item])
        for (document, item), (share, part) in best.items()
    ]
    flags.sort(key=lambda flag: (flag.document, -flag.share, flag.part))
    flagged = {index.parts[flag.part].item.name for flag in flags}
    unflagged = (most for item, most in sorted(boilerplate.items()) if item not in flagged)
    return flags, dict(unflagged)


def _spans(
    hits: NDArray[Any], index: NgramIndex, wanted: Collection[tuple[int, str]]
) -> dict[tuple[int, str], tuple[tuple[int, int], ...]]:
    """Return the merged bytes, in order, where each wanted document holds each wanted item."""
    merged: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for document, gram, start, end in np.sort(hits, order=["document", "start"]).tolist():
        for item in {index.parts[part].item.name for part in index.owners_of(gram).tolist()}:
            if (document, item) not in wanted:
                continue
            spans = merged.setdefault((document, item), [])
            if spans and start <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(spans[-1][1], end))
            else:
                spans.append((start, end))
    return {key: tuple(spans) for key, spans in merged.items()}


def find_planted(index: NgramIndex, config: "DecontaminateConfig") -> tuple[int, list[str]]:
    """Hide items in filler, in capitals and with other punctuation; return how many, and the lost.

    Items that hold n-grams of their benchmark's template are not planted: they flag less by design.
    """
    template = index.num_owning_items > config.template_items
    checked = [
        number
        for number, part in enumerate(index.parts)
        if part.is_checked and not template[index.grams_of(number)].any()
    ]
    chosen = checked[:: max(1, len(checked) // MAX_PLANTED)][:MAX_PLANTED]
    texts = []
    for number in chosen:
        part = index.parts[number]
        words = dict(part.item.contaminating)[part.label].split()
        texts.append(f"{FILLER}. «{' , '.join(words).swapcase()}»! {FILLER}.")
    alone = config.model_copy(update={"boilerplate_documents": 0})
    flags, _ = flag_documents(scan_texts(index, texts, 0), index, alone)
    found = {(flag.document, index.parts[flag.part].item.name) for flag in flags}
    lost = [
        index.parts[number].item.name
        for place, number in enumerate(chosen)
        if (place, index.parts[number].item.name) not in found
    ]
    return len(chosen), lost


def report(index: NgramIndex, findings: Findings) -> dict[str, Any]:
    """Return what evaluation needs: each benchmark's dirty items, and what was not looked for."""
    benchmarks: dict[str, Any] = {}
    for row in findings.table():
        benchmarks[row["benchmark"]] = {
            **{key.replace(" ", "_"): value for key, value in row.items() if key != "benchmark"},
            "dirty": {},
            "boilerplate": {},
        }
    for flag in findings.flags:
        item = index.parts[flag.part].item
        dirty = benchmarks[item.benchmark]["dirty"]
        entry = dirty.setdefault(str(item.index), {"documents": 0, "share": 0.0})
        entry["documents"] += 1
        entry["share"] = max(entry["share"], round(flag.share, 6))
    for part, most in findings.boilerplate.items():
        item = index.parts[part].item
        benchmarks[item.benchmark]["boilerplate"][str(item.index)] = {"documents": most}
    return {"benchmarks": benchmarks}


def store_flags(out: Output[Any], findings: Findings, keys: list[str]) -> dict[str, str]:
    """Put each shard's flags where its worker finds them; they are no part of the artifact."""
    of_shard: list[list[dict[str, Any]]] = [[] for _ in keys]
    for flag in findings.flags:
        shard = int(np.searchsorted(findings.bounds, flag.document, side="right")) - 1
        part = findings.index.parts[flag.part]
        of_shard[shard].append(
            {
                "row": int(flag.document - findings.bounds[shard]),
                "benchmark": part.item.benchmark,
                "item": part.item.index,
                "part": part.label,
                "share": flag.share,
                "spans": flag.spans,
            }
        )
    paths = {}
    for key, flags in zip(keys, of_shard, strict=True):
        out.write_json(f"flags/{key}", flags)
        paths[key] = out.files.pop(f"flags/{key}").path
    return paths


class Remover:
    """Applies one shard's flags to its batches, in order.

    Attributes:
        removed: rows for the ledger.
        overlaps: rows of OVERLAP_SCHEMA.
        num_cut: documents that lost lines and stay.
    """

    def __init__(self, flags: bytes, config: "DecontaminateConfig") -> None:
        self._config = config
        self._of_row: dict[int, list[dict[str, Any]]] = {}
        for flag in json.loads(flags):
            self._of_row.setdefault(flag["row"], []).append(flag)
        self._first = 0
        self.removed: list[dict[str, Any]] = []
        self.overlaps: list[dict[str, Any]] = []
        self.num_cut = 0

    def apply(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the batch without flagged documents, or without their flagged lines."""
        flagged = [row for row in self._of_row if self._first <= row < self._first + batch.num_rows]
        keep = np.ones(batch.num_rows, np.bool)
        texts: dict[int, str] = {}
        for row in flagged:
            place = row - self._first
            text = batch.column("text")[place].as_py()
            rest = self._cut(text, self._of_row[row])
            if rest is None:
                keep[place] = False
            else:
                texts[place] = rest
            self._note(batch, place, self._of_row[row], text.encode(), rest is None)
        self._first += batch.num_rows
        table = pa.Table.from_batches([batch])
        if texts:
            column = [texts.get(i, t) for i, t in enumerate(batch.column("text").to_pylist())]
            number = table.schema.get_field_index("text")
            table = table.set_column(
                number, table.schema.field(number), pa.array(column, pa.string())
            )
        self.num_cut += len(texts)
        return table.filter(pa.array(keep))

    def _cut(self, text: str, flags: list[dict[str, Any]]) -> str | None:
        """Return the text without the lines that overlap a span; None: the document goes."""
        if self._config.remove == "document":
            return None
        spans = [span for flag in flags for span in flag["spans"]]
        lines, at = [], 0
        for line in text.encode().split(b"\n"):
            end = at + len(line)
            if not any(start < end and stop > at for start, stop in spans):
                lines.append(line)
            at = end + 1
        rest = b"\n".join(lines).decode()
        few = hash_words([rest]).counts[0] < max(1, self._config.min_remaining_words)
        return None if few else rest

    def _note(
        self,
        batch: pa.RecordBatch,
        place: int,
        flags: list[dict[str, Any]],
        text: bytes,
        removed: bool,
    ) -> None:
        best, id_ = flags[0], batch.column("id")[place].as_py()
        if removed:
            self.removed.append(
                removal(
                    id_,
                    "decontaminate",
                    f"contaminated_by_{best['benchmark']}",
                    reasons=[f"{flag['benchmark']}:{flag['item']}" for flag in flags[:16]],
                    score=best["share"],
                    threshold=self._config.min_share,
                    url=batch.column("url")[place].as_py(),
                )
            )
        for flag in flags:
            start, end = flag["spans"][0]
            self.overlaps.append(
                {
                    "id": id_,
                    "benchmark": flag["benchmark"],
                    "item": flag["item"],
                    "part": flag["part"],
                    "share": flag["share"],
                    "action": "removed" if removed else "cut",
                    "text": text[start : min(end, start + EXCERPT_BYTES)].decode(errors="ignore"),
                }
            )


def write_overlaps(shard: ShardOutput, key: str, rows: list[dict[str, Any]]) -> None:
    """Write one shard's evidence."""
    name = f"overlaps/{key}.parquet"
    with shard.open(name, "wb") as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=OVERLAP_SCHEMA), file, compression="zstd")
    shard.set_rows(name, len(rows))
