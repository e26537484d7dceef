"""resample: draw the documents that look most like a target's texts, by DSIR's weights.

Three passes over the shards: counts of hashed n-grams, weights, and the draw. The draw keeps the
documents with the highest log weight plus noise; both are in the ledger's score for the others.
"""

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from lmpipe.artifacts.output import Output, ShardOutput
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Documents, Source
from lmpipe.documents.text_files import json_lines, parse_json, read_text_file
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime


class ResampleConfig(StageConfig):
    """How many documents are drawn, and by what."""

    kept_fraction: float = Field(0.5, gt=0, le=1, description="Share of documents that is drawn.")
    num_buckets: int = Field(
        10_000, ge=16, le=10_000_000, description="Buckets that words and word pairs hash into."
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Of the draw by hash(seed, id).")


@stage(version=2, kind="exact")
def resample(
    out: Output[Documents],
    config: ResampleConfig,
    documents: Documents,
    target: Source,
    *,
    runtime: Runtime,
) -> Documents:
    """Draw documents whose hashed n-grams are distributed as the target's (DSIR)."""
    from lmpipe.curation.dsir import bucket_counts, log_ratios
    from lmpipe.curation.yields import check_yield
    from lmpipe.documents.ledger import assert_conserved, gather_parts
    from lmpipe.documents.read import count_documents, shard_names

    names = {Path(name).stem: name for name in shard_names(documents)}
    shared: dict[str, Any] = {"config": config, "documents": documents, "names": names}
    counted = out.run_shards([f"count-{k}" for k in names], partial(_count, **shared), runtime)
    pool = sum((np.array(r.info["counts"]) for r in counted), np.zeros(config.num_buckets, int))
    ratios = log_ratios(bucket_counts(target_texts(target), config.num_buckets), pool)
    work = partial(_weigh, **shared, ratios=ratios)
    weighed = out.run_shards([f"weigh-{key}" for key in names], work, runtime)
    scores = np.sort(np.concatenate([np.zeros(0), *(r.info["scores"] for r in weighed)]))
    num_input = count_documents(documents)
    num_drawn = max(1, round(config.kept_fraction * num_input))
    limit = float(scores[-num_drawn]) if num_input else 0.0
    by_key = {r.key.removeprefix("weigh-"): r.info["scores"] for r in weighed}
    draw = partial(_draw, documents=documents, names=names, scores=by_key, limit=limit)
    records = out.run_shards(list(names), draw, runtime)
    kept = sum(int(record.counts["kept"]) for record in records)
    assert_conserved("resample", num_input, kept, gather_parts(out, list(names)))
    check_yield(out, "resample", num_input, kept, runtime)
    out.metric("input", num_input)
    out.metric("kept", kept)
    out.metric("limit", limit)
    return out.commit()


def target_texts(target: Source) -> list[str]:
    """Read the target: JSONL (.gz) with a field text, or one text a file.

    Raises:
        InputError: a line without text, or no text at all.
    """
    texts: list[str] = []
    for name in target.names():
        if ".jsonl" not in name:
            texts.append(read_text_file(target.local(name)))
            continue
        data = target.local(name).read_bytes()
        for number, line in json_lines(gzip.decompress(data) if name.endswith(".gz") else data):
            try:
                texts.append(str(parse_json(line)["text"]))
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f'{name} line {number} is no {{"text"}} object: {error!r}'
                ) from error
    if not any(text.strip() for text in texts):
        raise InputError(f"source {target.name!r} holds no text to resample towards")
    return texts


def _count(
    shard: ShardOutput,
    key: str,
    *,
    config: ResampleConfig,
    documents: Documents,
    names: dict[str, str],
) -> None:
    from lmpipe.curation.dsir import bucket_counts
    from lmpipe.documents.read import read_shard

    total = np.zeros(config.num_buckets, dtype=np.int64)
    for batch in read_shard(documents, names[key.removeprefix("count-")], ["text"]):
        total += bucket_counts(batch.column("text").to_pylist(), config.num_buckets)
    shard.info["counts"] = total.tolist()


def _weigh(
    shard: ShardOutput,
    key: str,
    *,
    config: ResampleConfig,
    documents: Documents,
    names: dict[str, str],
    ratios: Any,
) -> None:
    from lmpipe.curation.dsir import gumbel, log_weights
    from lmpipe.documents.read import read_shard

    scores: list[float] = []
    for batch in read_shard(documents, names[key.removeprefix("weigh-")], ["id", "text"]):
        noise = gumbel(batch.column("id").to_pylist(), config.seed)
        scores += (log_weights(batch.column("text").to_pylist(), ratios) + noise).tolist()
    shard.info["scores"] = scores


def _draw(
    shard: ShardOutput,
    key: str,
    *,
    documents: Documents,
    names: dict[str, str],
    scores: dict[str, list[float]],
    limit: float,
) -> None:
    import pyarrow as pa

    from lmpipe.documents.ledger import removal, write_part
    from lmpipe.documents.read import read_shard
    from lmpipe.documents.write import DocumentWriter

    removed = []
    name = f"kept/{key}.parquet"
    start = 0
    with shard.open(name, "wb") as file, DocumentWriter(file) as writer:
        for batch in read_shard(documents, names[key]):
            found = np.array(scores[key][start : start + batch.num_rows])
            start += batch.num_rows
            keep = found >= limit
            writer.write_table(batch.filter(pa.array(keep)))
            for row in np.flatnonzero(~keep).tolist():
                removed.append(
                    removal(
                        batch.column("id")[row].as_py(),
                        "resample",
                        "not_drawn",
                        score=float(found[row]),
                        threshold=limit,
                        url=batch.column("url")[row].as_py(),
                    )
                )
    shard.set_rows(name, writer.num_rows)
    write_part(shard, key, removed)
    shard.counts["kept"] = writer.num_rows
