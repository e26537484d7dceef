"""`lmpipe bench dedup_passages`: what passages go from real documents, and how fast, on one core.

The stage whole, with store, evidence and ledger: paragraphs, runs of three sentences, and whole
documents, each by the exact join, and paragraphs by a Bloom filter. `copies` repeats the documents
with other words at each line's end, so that the copies are new text, for a larger input.
"""

import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.store import Store
from lmpipe.bench import Row, row
from lmpipe.bench.dedup import given_documents, texts_of
from lmpipe.curation.passages.config import DedupPassagesConfig
from lmpipe.curation.passages.dedup_passages import dedup_passages
from lmpipe.runtime import Runtime

CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("paragraphs", {}),
    ("paragraphs, Bloom filter of 16 MB", {"bloom_memory_mb": 16}),
    ("3 sentences", {"unit": "sentences"}),
    ("documents", {"unit": "document"}),
)


class Options(BaseModel):
    """Which documents."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: list[str] = Field(min_length=1, description="Parquet files with `text`, or WARC files.")
    copies: int = Field(1, ge=1, le=1000, description="How often the documents are taken.")
    memory_mb: int = Field(512, ge=16, description="As runtime.sort_memory_mb.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return rates, shares and the process's peak memory."""
    settings = Options.model_validate(options)
    texts = [text for path in settings.paths for text in texts_of(path) if text.strip()]
    texts += [
        text.replace("\n", f" copy{number}\n") + f" copy{number}"
        for number in range(1, settings.copies)
        for text in texts
    ]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    rows = []
    with tempfile.TemporaryDirectory(prefix="lmpipe-bench-") as folder:
        store, runtime = Store(f"{folder}/store"), Runtime(sort_memory_mb=settings.memory_mb)
        documents = given_documents(texts, Path(folder), store)
        inputs = dedup_passages.bind((documents,))
        build(dedup_passages, DedupPassagesConfig(min_passage_words=9), inputs, store=store,
              runtime=runtime)  # fmt: skip  # compiles
        for name, config in CASES:
            begun = time.perf_counter()
            made = build(dedup_passages, DedupPassagesConfig(**config), inputs, store=store,
                         runtime=runtime)  # fmt: skip
            seconds, found = time.perf_counter() - begun, made.metrics
            whole = sum(found[f"{n}_characters"] for n in ("kept", "cut", "dropped"))
            case = f"{len(texts)} documents, {megabytes:.0f} MB, {name}"
            for metric, value, unit in (
                ("throughput", megabytes / seconds, "MB/s/core"),
                ("passages", found["passages"], "passages"),
                ("repeats", found["repeats"], "passages"),
                ("characters cut", 100 * found["cut_characters"] / whole, "%"),
                ("documents removed", found["input"] - found["kept"], "documents"),
                ("expected errors", found.get("bloom_expected_errors", 0.0), "passages"),
            ):
                rows.append(row("dedup_passages", "lmpipe", case, metric, value, unit))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return [*rows, row("dedup_passages", "lmpipe", "all cases", "peak", peak, "MB")]
