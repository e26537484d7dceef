"""extract: WARC files → documents.

An archive is one shard, or several where it is larger than `split_bytes`: a shard holds the records
that begin in one range of bytes (see record_starts.py). The split depends on the archives alone, so
who works on it changes no byte, and a killed run goes on with the ranges that are not done. Pages
are extracted in file order in a killable child (see sandbox.py), and every response that is HTML
ends up either among the documents or, with its reason, in the ledger (origins.parquet says where
it came from); all other records are counted by type.
"""

import json
from array import array
from collections import Counter
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Documents, Source
from lmpipe.curation.extraction.config import ExtractConfig
from lmpipe.documents.ledger import removal
from lmpipe.documents.schema import DOCUMENT_SCHEMA
from lmpipe.documents.stage import DocumentPart, MappedDocuments, make_documents
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

ORIGIN = ("url", "date", "warc_path", "warc_offset", "warc_record_id")


@stage(version=7, kind="exact")
def extract(
    out: Output[Documents], config: ExtractConfig, source: Source, *, runtime: Runtime
) -> Documents:
    """Extract the main text of every HTML response of a source's WARC and ARC files.

    The text of WET files is taken as it is.

    Raises:
        InputError: the source holds no page with text, or the same archive twice.
    """
    _refuse_copies(source)
    ranges = _ranges(source, config.split_bytes)
    work = partial(_extract_range, source=source, ranges=ranges, config=config)
    mapped = make_documents(out, list(ranges), work, runtime)
    _gather_origins(out, list(ranges))
    out.metric("revisits", _count_revisits(out, list(ranges)))
    _report(out, mapped)
    if mapped.num_kept == 0:
        raise InputError(_nothing_kept(source, mapped))
    return mapped.finish()


def _refuse_copies(source: Source) -> None:
    """Refuse one archive under two names: its records have one id each, and would be there twice.

    Reading it once would leave the other name out of every count without a word.
    """
    seen: dict[tuple[str, int], str] = {}
    for file in source.manifest.config["files"]:
        first = seen.setdefault((file["sha256"], file["bytes"]), file["name"])
        if first != file["name"] and file["bytes"]:
            raise InputError(
                f"source {source.name!r}: {first} and {file['name']} hold the same bytes "
                f"({file['bytes']}, sha256 {file['sha256'][:12]}…), so every page would come twice "
                "under one id; take one of them out of the source's paths"
            )


def _ranges(source: Source, split_bytes: int) -> dict[str, tuple[str, tuple[int, int] | None]]:
    """Return {shard key: (file, range of bytes, or None for all of it)} in input order."""
    ranges: dict[str, tuple[str, tuple[int, int] | None]] = {}
    sizes = {str(file["name"]): int(file["bytes"]) for file in source.manifest.config["files"]}
    for number, name in enumerate(source.names()):
        parts = -(-sizes[name] // split_bytes) if split_bytes else 1
        if parts <= 1:
            ranges[f"{number:05d}"] = name, None
            continue
        for part in range(parts):
            low = part * split_bytes
            ranges[f"{number:05d}-{part:05d}"] = name, (low, low + split_bytes)
    return ranges


def _extract_range(
    part: DocumentPart,
    *,
    source: Source,
    ranges: dict[str, tuple[str, tuple[int, int] | None]],
    config: ExtractConfig,
) -> None:
    """Extract the records of one archive, or of a range of it, into one part."""
    from lmpipe.curation.crawl.warc import Census, WarcPages
    from lmpipe.curation.extraction.extractors import LIMIT_REASONS, MainText

    name, byte_range = ranges[part.key]
    census = Census()
    path = source.local(name)
    pages = WarcPages(path, name, source.name, config.max_page_bytes, census, byte_range)
    texts = MainText(config.extractor, config.max_page_seconds, config.max_page_memory_bytes)
    origins: list[dict[str, Any]] = []
    extractors: Counter[str] = Counter()
    columns = set(DOCUMENT_SCHEMA.names)
    for page in texts.run(pages.run()):
        fields = page.metadata
        if reason := fields.get("removed"):
            url = fields.get("url") or f"{name}#{fields['warc_offset']}"
            score, bound = fields.get("score"), fields.get("threshold")
            row = removal(page.id, "extract", reason, score=score, threshold=bound, url=url)
            part.refuse(row, fields.get("host"))
            origins.append({"id": page.id, **{name: fields.get(name) for name in ORIGIN}})
            if reason in LIMIT_REASONS:
                part.shard.inexact(page.id, reason)
            continue
        extractors[fields["extractor"]] += 1
        known = {column: value for column, value in fields.items() if column in columns}
        part.keep({"id": page.id, "text": page.text, **known})
    num_pages = census.records["pages"]
    assert part.num_input == num_pages, f"{name}: {part.num_input} of {num_pages} pages came out"
    part.shard.write_bytes(f"parts/{part.key}.origins", json.dumps(origins).encode())
    part.info.update(
        file=name,
        records=dict(census.records),
        unreadable=census.unreadable,
        extractors=dict(extractors),
    )
    for kind, hashes in (("originals", census.originals), ("revisits", census.revisits)):
        part.shard.write_bytes(f"parts/{part.key}.{kind}", array("Q", hashes).tobytes())


def _gather_origins(out: Output[Documents], keys: list[str]) -> None:
    """Write where the removed pages came from, which the ledger does not hold, by id."""
    rows = []
    for key in keys:
        rows += json.loads(out.store.read(out.take(f"parts/{key}.origins")) or b"[]")
    schema = pa.schema([DOCUMENT_SCHEMA.field(name) for name in ("id", *ORIGIN)])
    table = pa.Table.from_pylist(sorted(rows, key=lambda row: str(row["id"])), schema=schema)
    with out.open("origins.parquet") as file:
        pq.write_table(table, file, compression="zstd")
    out.set_rows("origins.parquet", table.num_rows)


def _count_revisits(out: Output[Documents], keys: list[str]) -> dict[str, int]:
    """Count the revisit records, and those whose original is in the input; drop the parts."""
    parts = {
        kind: [out.take(f"parts/{key}.{kind}") for key in keys]
        for kind in ("originals", "revisits")
    }
    revisits: Counter[int] = Counter()
    for part in parts["revisits"]:
        revisits.update(array("Q", out.store.read(part) or b""))
    resolved = 0
    for part in parts["originals"] if revisits else []:
        for original in set(array("Q", out.store.read(part) or b"")):
            resolved += revisits.pop(original, 0)
    return {"records": resolved + revisits.total(), "original_in_input": resolved}


def _report(out: Output[Documents], mapped: MappedDocuments) -> None:
    seen = mapped.counter("records")
    unreadable = [message for record in mapped.records for message in record.info["unreadable"]]
    for message in unreadable:
        out.log(message, level="warning")
    out.metric("records", dict(sorted(seen.items())))
    out.metric("unreadable", unreadable)
    out.metric("extractors", dict(sorted(mapped.counter("extractors").items())))
    out.table("records", [{"kind": kind, "count": count} for kind, count in seen.most_common()])
    mapped.report_reasons()


def _nothing_kept(source: Source, mapped: MappedDocuments) -> str:
    seen = mapped.counter("records")
    seen.update({f"removed: {why}": count for why, count in mapped.reasons.items()})
    return (
        f"extract kept no page of source {source.name!r} ({len(mapped.records)} files). Its "
        "records: "
        + (", ".join(f"{kind} {count}" for kind, count in seen.most_common(8)) or "none")
        + ". Only HTML responses with status 200 are pages"
    )
