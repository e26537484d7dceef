"""extract: WARC files → documents.

One archive is one shard: the split does not depend on who works on it. Pages of one archive are
extracted in file order in a killable child (see sandbox.py), and every response that is HTML ends
up either among the documents or, with its reason, in the ledger; all other records are counted by
type.
"""

from collections import Counter
from functools import partial
from typing import Any, Literal

from pydantic import Field

from lmpipe.artifacts.output import Output, ShardOutput, ShardRecord
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Documents, Source
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime


class ExtractConfig(StageConfig):
    """How pages become text."""

    extractor: Literal["cascade", "trafilatura", "trafilatura_fast", "resiliparse"] = Field(
        "trafilatura_fast",
        description="Which extractor finds the main text; cascade: a fast one, and trafilatura_fast"
        " where that one doubts itself.",
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


@stage(version=1, kind="exact")
def extract(
    out: Output[Documents], config: ExtractConfig, source: Source, *, runtime: Runtime
) -> Documents:
    """Extract the main text of every HTML response of a source's WARC files.

    Raises:
        InputError: the source holds no page with text.
    """
    from lmpipe.documents.ledger import assert_conserved, gather_parts, warn_of_low_yield

    names = source.names()
    keys = [f"{number:05d}" for number in range(len(names))]
    work = partial(
        _extract_archive, source=source, names=dict(zip(keys, names, strict=True)), config=config
    )
    records = out.run_shards(keys, work, runtime)
    num_removed = gather_parts(out, keys)
    num_pages = sum(int(record.counts["pages"]) for record in records)
    num_kept = sum(int(record.counts["kept"]) for record in records)
    assert_conserved("extract", num_pages, num_kept, num_removed)
    warn_of_low_yield(out, "extract", num_pages, num_kept, runtime)
    _report(out, records, num_pages, num_kept)
    if num_kept == 0:
        raise InputError(_nothing_kept(source, records))
    return out.commit()


def _extract_archive(
    shard: ShardOutput, key: str, *, source: Source, names: dict[str, str], config: ExtractConfig
) -> None:
    """Extract one archive into one shard of documents."""
    from lmpipe.curation.html import LIMIT_REASONS, MainText
    from lmpipe.curation.warc import Census, WarcPages
    from lmpipe.documents.ledger import removal, write_part
    from lmpipe.documents.schema import DOCUMENT_SCHEMA
    from lmpipe.documents.write import DocumentWriter

    name = names[key]
    census = Census()
    pages = WarcPages(source.local(name), name, source.name, config.max_page_bytes, census)
    texts = MainText(config.extractor, config.max_page_seconds, config.max_page_memory_bytes)
    removed: list[dict[str, Any]] = []
    columns = set(DOCUMENT_SCHEMA.names)
    with shard.open(f"kept/{key}.parquet", "wb") as file, DocumentWriter(file) as writer:
        for page in texts.run(pages.run()):
            fields = page.metadata
            if reason := fields.get("removed"):
                url = fields.get("url") or f"{name}#{fields['warc_offset']}"
                score, bound = fields.get("score"), fields.get("threshold")
                removed.append(
                    removal(page.id, "extract", reason, score=score, threshold=bound, url=url)
                )
                if reason in LIMIT_REASONS:
                    shard.inexact(page.id, reason)
                continue
            row = {column: value for column, value in fields.items() if column in columns}
            writer.write({"id": page.id, "text": page.text, **row})
    shard.set_rows(f"kept/{key}.parquet", writer.num_rows)
    write_part(shard, key, removed)
    shard.counts.update({"kept": writer.num_rows, "pages": census.records["pages"]})
    shard.info.update(
        {
            "file": name,
            "records": dict(census.records),
            "reasons": dict(Counter(row["reason"] for row in removed)),
            "unreadable": census.unreadable,
        }
    )


def _report(
    out: Output[Documents], records: list[ShardRecord], num_pages: int, num_kept: int
) -> None:
    seen: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for record in records:
        seen.update(record.info["records"])
        reasons.update(record.info["reasons"])
        if record.info["unreadable"]:
            out.log(record.info["unreadable"], level="warning")
    out.metric("records", dict(sorted(seen.items())))
    out.metric("removed", dict(sorted(reasons.items())))
    out.metric("unreadable", [r.info["unreadable"] for r in records if r.info["unreadable"]])
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
