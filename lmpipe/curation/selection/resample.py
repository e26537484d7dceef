"""resample: draw the documents that look most like a target's texts, by DSIR's weights.

Three passes over the shards: counts of hashed n-grams, weights, and the draw. The draw keeps the
documents with the highest log weight plus noise; both are in the ledger's score for the others.
"""

import gzip
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmpipe.artifacts.output import Output, ShardOutput
from lmpipe.artifacts.stage import stage
from lmpipe.artifacts.types import Documents, Source
from lmpipe.curation.selection.config import ResampleConfig
from lmpipe.documents.ledger import removal
from lmpipe.documents.stage import StoredPart, map_documents, part_keys, scan_documents
from lmpipe.documents.text_files import json_lines, parse_json, read_text_file
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime


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
    from lmpipe.curation.selection.dsir import bucket_counts, log_ratios

    count = partial(_count, num_buckets=config.num_buckets)
    counted = scan_documents(out, documents, "count", count, runtime)
    pool = sum((np.array(r.info["counts"]) for r in counted), np.zeros(config.num_buckets, int))
    ratios = log_ratios(bucket_counts(target_texts(target), config.num_buckets), pool)
    weigh = partial(_weigh, seed=config.seed, ratios=ratios)
    weighed = scan_documents(out, documents, "weigh", weigh, runtime)
    scores = np.sort(np.concatenate([np.zeros(0), *(r.info["scores"] for r in weighed)]))
    num_sampled = max(1, round(config.kept_fraction * len(scores)))
    threshold = float(scores[-num_sampled]) if len(scores) else 0.0
    keys = part_keys(documents)
    by_key = {key: record.info["scores"] for key, record in zip(keys, weighed, strict=True)}
    mapped = map_documents(
        out, documents, partial(_sample, scores=by_key, threshold=threshold), runtime
    )
    out.metric("limit", threshold)
    return mapped.finish(guard_hosts=False)


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
    shard: ShardOutput, key: str, batches: Callable[..., Iterator[pa.RecordBatch]], num_buckets: int
) -> None:
    from lmpipe.curation.selection.dsir import bucket_counts

    total = np.zeros(num_buckets, dtype=np.int64)
    for batch in batches(["text"]):
        total += bucket_counts(batch.column("text").to_pylist(), num_buckets)
    shard.info["counts"] = total.tolist()


def _weigh(
    shard: ShardOutput,
    key: str,
    batches: Callable[..., Iterator[pa.RecordBatch]],
    seed: int,
    ratios: NDArray[np.float64],
) -> None:
    from lmpipe.curation.selection.dsir import gumbel, log_weights

    scores: list[float] = []
    for batch in batches(["id", "text"]):
        noise = gumbel(batch.column("id").to_pylist(), seed)
        scores += (log_weights(batch.column("text").to_pylist(), ratios) + noise).tolist()
    shard.info["scores"] = scores


def _sample(part: StoredPart, *, scores: dict[str, list[float]], threshold: float) -> None:
    start = 0
    for batch in part.batches():
        found = np.array(scores[part.key][start : start + batch.num_rows])
        start += batch.num_rows
        keep = found >= threshold
        removed = [
            removal(
                batch.column("id")[row].as_py(),
                "resample",
                "not_drawn",
                score=float(found[row]),
                threshold=threshold,
                url=batch.column("url")[row].as_py(),
            )
            for row in np.flatnonzero(~keep).tolist()
        ]
        part.settle(batch, batch.filter(pa.array(keep)), removed)
