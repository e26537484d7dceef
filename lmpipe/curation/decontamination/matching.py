"""From occurrences of items' n-grams to flagged documents, and from those to clean ones."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.curation.decontamination.look_alikes import hash_look_alikes
from lmpipe.curation.decontamination.ngram_index import NgramIndex
from lmpipe.documents.ledger import removal

if TYPE_CHECKING:
    from lmpipe.curation.decontamination.config import DecontaminateConfig

# One row for each occurrence of an indexed n-gram: document, n-gram, bytes of the text. Part p of
# an item that a document nearly holds has one row too, with -1 - p for the n-gram and its share.
HIT = np.dtype(
    [("document", "<i8"), ("gram", "<i8"), ("start", "<i8"), ("end", "<i8"), ("share", "<f8")]
)
LEAKED_SHARE = 0.5  # a document that holds so much of an item does so by no common phrase
OVERLAP_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("item", pa.int64(), nullable=False),
        pa.field("part", pa.string(), nullable=False),
        pa.field("share", pa.float64(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)
EXCERPT_BYTES = 400


@dataclass(frozen=True)
class Flag:
    """One document that holds one item.

    Attributes:
        document: number over all shards.
        part: number of the item's text in the index that the document holds most of.
        share: share of that text's n-grams that the document holds, the template's not counted.
        shares: the same of each of the item's texts that the document holds any of, by label.
        spans: bytes of the document's text that hold any of the item's texts, merged.
    """

    document: int
    part: int
    share: float
    shares: dict[str, float]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Findings:
    """All flags, and what did not count.

    Attributes:
        index: the items' n-grams.
        bounds: shard number i holds documents `bounds[i]:bounds[i + 1]`.
        flags: sorted by document, best match first.
        boilerplate: a part of each item that isolated boilerplate or template met, with the
            documents that hold it and are not flagged by the item.
    """

    index: NgramIndex
    bounds: NDArray[np.int64]
    flags: list[Flag]
    boilerplate: dict[int, tuple[int, ...]]

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
    words = hash_look_alikes(texts)
    hits = index.scan(words)
    rows = np.zeros(len(hits.texts), HIT)
    rows["document"], rows["gram"] = hits.texts + first, hits.grams
    rows["start"], rows["end"] = hits.starts, hits.ends
    near = np.array(
        [
            (
                match.text + first,
                -1 - match.part,
                words.starts[match.first],
                words.ends[match.after - 1],
                match.share,
            )
            for match in index.near.scan(words)
        ],
        HIT,
    )
    return np.concatenate([rows, near])


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
) -> tuple[list[Flag], dict[int, tuple[int, ...]]]:
    """Return the flags, and the parts that isolated boilerplate met with the documents.

    An n-gram of many documents counts where it is not isolated: with LEAKED_SHARE of the item's.
    """
    exact = hits[hits["gram"] >= 0]
    pairs = np.unique(exact[["document", "gram"]])
    num_documents = np.bincount(pairs["gram"], minlength=len(index.grams))
    own = index.num_owning_items <= config.template_items
    rare = own.copy()
    if config.boilerplate_documents:
        rare &= num_documents <= config.boilerplate_documents
    num_own = index.num_grams_among(own)
    held: dict[tuple[int, int], list[int]] = {}  # n-grams of its own, and the rare among them
    for document, gram in pairs.tolist():
        for part in index.owners_of(gram).tolist():
            counts = held.setdefault((document, part), [0, 0])
            counts[0] += bool(own[gram])
            counts[1] += bool(rare[gram])
    best: dict[tuple[int, str], tuple[float, int]] = {}
    shares: dict[tuple[int, str], dict[str, float]] = {}
    for (document, part), (num_held, num_rare) in held.items():
        if not num_held:
            continue
        share = num_held / int(num_own[part])
        item = (document, index.parts[part].item.name)
        shares.setdefault(item, {})[index.parts[part].label] = share
        counts_here = share >= config.min_share and (num_rare or share >= LEAKED_SHARE)
        if counts_here and (share, -part) > best.get(item, (-1.0, 0)):
            best[item] = (share, -part)
    spans = _spans(exact[own[exact["gram"]]], index, best.keys())
    _add_near(hits[hits["gram"] < 0], index, config, best, shares, spans)
    flags = [
        Flag(document, -part, share, shares[document, item], spans[document, item])
        for (document, item), (share, part) in best.items()
    ]
    flags.sort(key=lambda flag: (flag.document, -flag.share, flag.part))
    return flags, _isolated(held, index, best.keys())


def _add_near(
    near: NDArray[Any],
    index: NgramIndex,
    config: "DecontaminateConfig",
    best: dict[tuple[int, str], tuple[float, int]],
    shares: dict[tuple[int, str], dict[str, float]],
    spans: dict[tuple[int, str], tuple[tuple[int, int], ...]],
) -> None:
    """Add the items that documents hold with typing errors, where nothing flagged them as it is."""
    flagged = set(best)
    for document, number, start, end, share in np.sort(near, order=["share", "document"]).tolist():
        part = index.parts[-1 - number]
        item = (document, part.item.name)
        if share >= config.min_share and item not in flagged:  # the best of its parts comes last
            best[item] = (share, 1 + number)
            shares[item] = {**shares.get(item, {}), part.label: share}
            spans[item] = ((start, end),)


def _isolated(
    held: dict[tuple[int, int], list[int]], index: NgramIndex, flagged: Collection[tuple[int, str]]
) -> dict[int, tuple[int, ...]]:
    """Return a part of each item that was met without a flag, and the documents.

    The template alone says nothing of an item that other documents were flagged by.
    """
    everywhere = {item for _, item in flagged}
    found: dict[str, tuple[int, set[int]]] = {}
    for (document, part), (num_held, _) in held.items():
        item = index.parts[part].item.name
        if (document, item) not in flagged and (num_held or item not in everywhere):
            found.setdefault(item, (part, set()))[1].add(document)
    return {part: tuple(sorted(documents)) for _, (part, documents) in sorted(found.items())}


def _spans(
    hits: NDArray[Any], index: NgramIndex, wanted: Collection[tuple[int, str]]
) -> dict[tuple[int, str], tuple[tuple[int, int], ...]]:
    """Return the merged bytes, in order, where each wanted document holds each wanted item."""
    merged: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for document, gram, start, end, _ in np.sort(hits, order=["document", "start"]).tolist():
        for item in {index.parts[part].item.name for part in index.owners_of(gram).tolist()}:
            if (document, item) not in wanted:
                continue
            spans = merged.setdefault((document, item), [])
            if spans and start <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(spans[-1][1], end))
            else:
                spans.append((start, end))
    return {key: tuple(spans) for key, spans in merged.items()}


def report(
    index: NgramIndex,
    findings: Findings,
    remaining: Collection[int],
    digests: Mapping[str, str],
) -> dict[str, Any]:
    """Return what training and evaluation need to know, benchmark by benchmark.

    An item is `found` if a document held it, and `dirty` if a document still does, `unsure` if
    isolated boilerplate or the template met it elsewhere, `unchecked` if it is too short to be
    looked for; else it is clean.

    Args:
        remaining: the flagged documents that were neither removed nor cut.
        digests: of each benchmark's lines; item numbers mean those and no others.
    """
    benchmarks: dict[str, Any] = {}
    parts = index.parts
    checked = {part.item.name for part in parts if part.is_checked}
    for row in findings.table():
        benchmarks[row["benchmark"]] = {
            **{key.replace(" ", "_"): value for key, value in row.items() if key != "benchmark"},
            "sha256": digests[row["benchmark"]],
            "found": {},
            "dirty": [],
            "unsure": {},
            "unchecked": sorted(
                {
                    part.item.index
                    for part in parts
                    if part.item.benchmark == row["benchmark"] and part.item.name not in checked
                }
            ),
        }
    for flag in findings.flags:
        item = parts[flag.part].item
        found = benchmarks[item.benchmark]["found"]
        entry = found.setdefault(str(item.index), {"documents": 0, "remaining": 0, "shares": {}})
        entry["documents"] += 1
        entry["remaining"] += flag.document in remaining
        for label, share in flag.shares.items():
            entry["shares"][label] = max(entry["shares"].get(label, 0.0), round(share, 6))
    for benchmark in benchmarks.values():
        benchmark["dirty"] = sorted(
            int(number) for number, entry in benchmark["found"].items() if entry["remaining"]
        )
    unsure: set[int] = set()
    for part, documents in findings.boilerplate.items():
        item = parts[part].item
        benchmarks[item.benchmark]["unsure"][str(item.index)] = {"documents": len(documents)}
        unsure.update(documents)
    flagged = {flag.document for flag in findings.flags}
    return {
        "documents": int(findings.bounds[-1]),
        "flagged_documents": len(flagged),
        "contaminated_documents": len(remaining),
        "unsure_documents": len(unsure - flagged),
        "benchmarks": benchmarks,
    }


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
    return {
        key: out.temporary(f"flags/{key}", json.dumps(flags).encode())
        for key, flags in zip(keys, of_shard, strict=True)
    }


class Remover:
    """Applies one shard's flags to its batches, in order.

    Attributes:
        removed: rows for the ledger.
        overlaps: rows of OVERLAP_SCHEMA.
        num_cut: documents that lost lines or spans and stay.
        remaining: rows of flagged documents that stay as they are.
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
        self.remaining: list[int] = []

    def apply(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the batch as the policy wants it: documents gone, texts cut, or all as it was."""
        flagged = [row for row in self._of_row if self._first <= row < self._first + batch.num_rows]
        keep = np.ones(batch.num_rows, np.bool)
        texts: dict[int, str] = {}
        for row in flagged:
            place = row - self._first
            text = batch.column("text")[place].as_py()
            action, rest = self._treat(text, self._of_row[row])
            if action == "removed":
                keep[place] = False
            elif action == "cut":
                texts[place] = rest
            else:
                self.remaining.append(row)
            self._note(batch, place, self._of_row[row], text.encode(), action)
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

    def _treat(self, text: str, flags: list[dict[str, Any]]) -> tuple[str, str]:
        """Return what becomes of a flagged document: removed, cut or kept, and its text then."""
        if self._config.remove == "nothing":
            return "kept", text
        if self._config.remove == "document":
            return "removed", ""
        spans = merge_spans([tuple(span) for flag in flags for span in flag["spans"]])
        cut = cut_lines if self._config.remove == "paragraph" else cut_spans
        rest = cut(text, spans)
        few = hash_look_alikes([rest]).counts[0] < max(1, self._config.min_remaining_words)
        return ("removed", "") if few else ("cut", rest)

    def _note(
        self,
        batch: pa.RecordBatch,
        place: int,
        flags: list[dict[str, Any]],
        text: bytes,
        action: str,
    ) -> None:
        best, id_ = flags[0], batch.column("id")[place].as_py()
        if action == "removed":
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
        self.overlaps += [
            {
                "id": id_,
                "benchmark": flag["benchmark"],
                "item": flag["item"],
                "part": flag["part"],
                "share": flag["share"],
                "action": action,
                "start": start,
                "end": end,
                "text": text[start : min(end, start + EXCERPT_BYTES)].decode(errors="ignore"),
            }
            for flag in flags
            for start, end in flag["spans"]
        ]


def merge_spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order, those that touch as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def cut_lines(text: str, spans: list[tuple[int, int]]) -> str:
    """Return the text without the lines that overlap a span of its bytes."""
    lines, at = [], 0
    for line in text.encode().split(b"\n"):
        end = at + len(line)
        if not any(start < end and stop > at for start, stop in spans):
            lines.append(line)
        at = end + 1
    return b"\n".join(lines).decode()


def cut_spans(text: str, spans: list[tuple[int, int]]) -> str:
    """Return the text without some spans of its bytes, which begin and end at words."""
    data, pieces, at = text.encode(), [], 0
    for start, end in spans:
        pieces.append(data[at:start])
        at = end
    return b"".join([*pieces, data[at:]]).decode()


def write_overlaps(shard: ShardOutput, key: str, rows: list[dict[str, Any]]) -> None:
    """Write one shard's evidence."""
    name = f"overlaps/{key}.parquet"
    with shard.open(name, "wb") as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=OVERLAP_SCHEMA), file, compression="zstd")
    shard.set_rows(name, len(rows))
