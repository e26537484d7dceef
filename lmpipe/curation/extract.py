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
from typing import Any, Literal

from pydantic import Field

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Documents, Source
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime

ORIGIN = ("url", "date", "warc_path", "warc_offset", "warc_record_id")


class ExtractConfig(StageConfig):
    """How pages become text."""

    extractor: Literal["cascade", "trafilatura", "trafilatura_fast", "resiliparse"] = Field(
        "cascade",
        description="Which extractor finds the main text; cascade: trafilatura's rules, made fast,"
        " where a page names its content, else a walk over its blocks, and trafilatura where that"
        " finds little.",
    )
    max_page_bytes: int = Field(
        10_000_000, ge=1_000, le=1 << 30, description="Larger pages, once decoded, are removed."
    )
    max_page_seconds: float = Field(
        20.0, gt=0, le=3600, description="CPU time after which a page is given up."
    )
    max_page_memory_bytes: int = Field(
        2 << 30, ge=64 << 20, le=1 << 40, description="Memory that one page may take."
    )
    split_bytes: int = Field(
        256 << 20,
        ge=0,
        le=1 << 50,
        description="Larger archives are split at records into ranges of this size; 0: never.",
    )


@stage(version=7, kind="exact")
def extract(
    out: Output[Documents], config: ExtractConfig, source: Source, *, runtime: Runtime
) -> Documents:
    """Extract the main text of every HTML response of a source's WARC and ARC files.

    The text of WET files is taken as it is.

    Raises:
        InputError: the source holds no page with text.
    """
    from lmpipe.curation.yields import check_hosts, check_yield, hosts_of
    from lmpipe.documents.ledger import assert_conserved, gather_parts

    ranges = _ranges(source, config.split_bytes)
    keys = list(ranges)
    work = partial(_extract_range, source=source, ranges=ranges, config=config)
    records = out.run_shards(keys, work, runtime)
    num_removed = gather_parts(out, keys)
    _gather_origins(out, keys)
    out.metric("revisits", _count_revisits(out, keys))
    num_pages = sum(int(record.counts["pages"]) for record in records)
    num_kept = sum(int(record.counts["kept"]) for record in records)
    assert_conserved("extract", num_pages, num_kept, num_removed)
    _report(out, records, num_pages, num_kept)
    if num_kept == 0:
        raise InputError(_nothing_kept(source, records))
    check_yield(out, "extract", num_pages, num_kept, runtime)
    check_hosts(out, "extract", hosts_of(records), runtime)
    return out.commit()


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
    shard: ShardOutput,
    key: str,
    *,
    source: Source,
    ranges: dict[str, tuple[str, tuple[int, int] | None]],
    config: ExtractConfig,
) -> None:
    """Extract the records of one archive, or of a range of it, into one shard of documents."""
    from lmpipe.curation.html import LIMIT_REASONS, MainText
    from lmpipe.curation.warc import Census, WarcPages
    from lmpipe.curation.yields import HostCounts
    from lmpipe.documents.ledger import removal, write_part
    from lmpipe.documents.schema import DOCUMENT_SCHEMA
    from lmpipe.documents.write import DocumentWriter

    name, byte_range = ranges[key]
    census = Census()
    path = source.local(name)
    pages = WarcPages(path, name, source.name, config.max_page_bytes, census, byte_range)
    texts = MainText(config.extractor, config.max_page_seconds, config.max_page_memory_bytes)
    removed: list[dict[str, Any]] = []
    origins: list[dict[str, Any]] = []
    authors: Counter[str] = Counter()
    hosts = HostCounts()
    columns = set(DOCUMENT_SCHEMA.names)
    with shard.open(f"kept/{key}.parquet", "wb") as file, DocumentWriter(file) as writer:
        for page in texts.run(pages.run()):
            fields = page.metadata
            reason = fields.get("removed")
            hosts.add([fields.get("host")], [not reason])
            if reason:
                url = fields.get("url") or f"{name}#{fields['warc_offset']}"
                score, bound = fields.get("score"), fields.get("threshold")
                removed.append(
                    removal(page.id, "extract", reason, score=score, threshold=bound, url=url)
                )
                origins.append({"id": page.id, **{name: fields.get(name) for name in ORIGIN}})
                if reason in LIMIT_REASONS:
                    shard.inexact(page.id, reason)
                continue
            row = {column: value for column, value in fields.items() if column in columns}
            authors[fields["extractor"]] += 1
            writer.write({"id": page.id, "text": page.text, **row})
    shard.set_rows(f"kept/{key}.parquet", writer.num_rows)
    write_part(shard, key, removed)
    shard.write_bytes(f"parts/{key}.origins", json.dumps(origins).encode())
    shard.counts.update({"kept": writer.num_rows, "pages": census.records["pages"]})
    shard.info.update(
        {
            "file": name,
            "records": dict(census.records),
            "reasons": dict(Counter(row["reason"] for row in removed)),
            "unreadable": census.unreadable,
            "authors": dict(authors),
            "hosts": hosts.counts,
        }
    )
    for kind, hashes in (("originals", census.originals), ("revisits", census.revisits)):
        shard.write_bytes(f"parts/{key}.{kind}", array("Q", hashes).tobytes())


def _gather_origins(out: Output[Documents], keys: list[str]) -> None:
    """Write where the removed pages came from, which the ledger does not hold, by id."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from lmpipe.documents.schema import DOCUMENT_SCHEMA

    rows = []
    for key in keys:
        rows += json.loads(out.store.read(out.files.pop(f"parts/{key}.origins").path) or b"[]")
    schema = pa.schema([DOCUMENT_SCHEMA.field(name) for name in ("id", *ORIGIN)])
    table = pa.Table.from_pylist(sorted(rows, key=lambda row: str(row["id"])), schema=schema)
    with out.open("origins.parquet") as file:
        pq.write_table(table, file, compression="zstd")
    out.set_rows("origins.parquet", table.num_rows)


def _count_revisits(out: Output[Documents], keys: list[str]) -> dict[str, int]:
    """Count the revisit records, and those whose original is in the input; drop the parts."""
    parts = {
        kind: [out.files.pop(f"parts/{key}.{kind}") for key in keys]
        for kind in ("originals", "revisits")
    }
    revisits: Counter[int] = Counter()
    for part in parts["revisits"]:
        revisits.update(array("Q", out.store.read(part.path) or b""))
    resolved = 0
    for part in parts["originals"] if revisits else []:
        for original in set(array("Q", out.store.read(part.path) or b"")):
            resolved += revisits.pop(original, 0)
    return {"records": resolved + revisits.total(), "original_in_input": resolved}


def _report(
    out: Output[Documents], records: list[ShardRecord], num_pages: int, num_kept: int
) -> None:
    seen: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    authors: Counter[str] = Counter()
    for record in records:
        seen.update(record.info["records"])
        reasons.update(record.info["reasons"])
        authors.update(record.info["authors"])
        for message in record.info["unreadable"]:
            out.log(message, level="warning")
    out.metric("records", dict(sorted(seen.items())))
    out.metric("removed", dict(sorted(reasons.items())))
    out.metric("unreadable", [message for r in records for message in r.info["unreadable"]])
    out.metric("extractors", dict(sorted(authors.items())))
    out.metric("input", num_pages)
    out.metric("kept", num_kept)
    out.table("records", [{"kind": kind, "count": count} for kind, count in seen.most_common()])
    out.table("removed", [{"reason": why, "count": count} for why, count in reasons.most_common()])


def _nothing_kept(source: Source, records: list[ShardRecord]) -> str:
    seen: Counter[str] = Counter()
    for record in records:
        seen.update(record.info["records"])
        seen.update({f"removed: {why}": count for why, count in record.info["reasons"].items()})
    return (
        f"extract kept no page of source {source.name!r} ({len(records)} files). Its records: "
        + (", ".join(f"{kind} {count}" for kind, count in seen.most_common(8)) or "none")
        + ". Only HTML responses with status 200 are pages"
    )
