"""`lmpipe bench dedup`: signatures and whole stages, beside datatrove's MinHash and rensa.

One run, the same documents, one core each: `paths` are Parquet files with a column `text`, or WARC
files. Texts are cut into documents of `words` words so that rates compare. Ours is the stage
`dedup` whole, with store, hashes, verification, ledger and evidence; datatrove's is its four stages
with the same bands, rows and n-gram, its own tokeniser for English; rensa makes signatures only,
of n-grams shingled in Python.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.output import Output
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.store import Store
from lmpipe.artifacts.types import Documents
from lmpipe.bench import Row, row
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.curation.dedup.dedup import dedup
from lmpipe.curation.extraction.config import ExtractConfig
from lmpipe.curation.extraction.extract import extract
from lmpipe.documents.ledger import write_ledger
from lmpipe.documents.read import read_documents
from lmpipe.documents.write import DocumentWriter
from lmpipe.runtime import Runtime


class Options(BaseModel):
    """What to deduplicate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: list[str] = Field(min_length=1, description="Parquet files with `text`, or WARC files.")
    words: int = Field(700, ge=10, description="Words of a document.")
    documents: int = Field(20_000, ge=10, description="Documents of ours and rensa, at most.")
    peer_documents: int = Field(600, ge=10, description="Documents of datatrove, at most.")


class BenchTextsConfig(StageConfig):
    """Documents in a scratch file."""

    path: str = Field(description="Parquet file with id and text.")


@stage(version=1, kind="exact")
def bench_texts(out: Output[Documents], config: BenchTextsConfig, *, runtime: Runtime) -> Documents:
    """Write the texts as documents."""
    with out.open("kept/00000.parquet") as file, DocumentWriter(file) as writer:
        writer.write_table(pq.read_table(config.path))
    write_ledger(out, [])
    return out.commit()


def run(options: dict[str, Any]) -> list[Row]:
    """Return documents per second and core."""
    settings = Options.model_validate(options)
    texts = _documents(settings)
    few = texts[: settings.peer_documents]
    with tempfile.TemporaryDirectory(prefix="lmpipe-bench-") as folder:
        whole = _stage_seconds(texts, Path(folder) / "ours")
        found = [
            ("lmpipe", "signatures", len(texts), _best(lambda: _signatures(texts))),
            ("rensa", "signatures", len(few), _best(lambda: _rensa(few))),
            ("lmpipe", "whole stage", len(texts), whole),
            ("datatrove", "four stages", len(few), _datatrove_seconds(few, Path(folder) / "dt")),
        ]
    rates = {(impl, what): count / seconds for impl, what, count, seconds in found}
    rows = [
        row("dedup", impl, f"{what}, {count} x {settings.words} words", "throughput",
            count / seconds, "documents/s/core")
        for impl, what, count, seconds in found
    ]  # fmt: skip
    ratio = rates["lmpipe", "whole stage"] / rates["datatrove", "four stages"]
    return [*rows, row("dedup", "lmpipe", "whole stage", "times datatrove", ratio, "x")]


def _documents(settings: Options) -> list[str]:
    texts: list[str] = []
    for path in settings.paths:
        for text in texts_of(path):
            words = text.split()
            size = settings.words
            texts += [" ".join(words[a : a + size]) for a in range(0, len(words) - size + 1, size)]
            if len(texts) >= settings.documents:
                return texts[: settings.documents]
    return texts


def texts_of(path: str) -> list[str]:
    """Return a file's texts: the column of a Parquet file, or the pages of a WARC file."""
    if path.endswith(".parquet"):
        return [str(text) for text in pq.read_table(path, columns=["text"])["text"].to_pylist()]

    with tempfile.TemporaryDirectory(prefix="lmpipe-bench-") as folder:
        store, pinned = Store(folder), pin("crawl", SourceSpec(paths=(path,)), Path())
        crawl = build(source, pinned.config, {}, store=store,
                      runtime=Runtime(locations=pinned.locations))  # fmt: skip
        config = ExtractConfig(extractor="resiliparse")
        documents = build(extract, config, extract.bind((crawl,)), store=store, runtime=Runtime())
        return [
            t for b in read_documents(documents, ["text"]) for t in b.column("text").to_pylist()
        ]


def _best(work: Callable[[], None]) -> float:
    """Return the shorter of two runs: the first may compile."""
    seconds = []
    for _ in range(2):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def _signatures(texts: list[str]) -> None:
    from lmpipe.curation.dedup.minhash import HashFamily, signatures
    from lmpipe.curation.text.word_hashes import hash_words

    family = HashFamily.from_seed(0, 112)
    for start in range(0, len(texts), 1024):
        signatures(hash_words(pa.array(texts[start : start + 1024])), 5, family)


def _rensa(texts: list[str]) -> None:
    from rensa import RMinHash

    for text in texts:
        words = text.split()
        minhash = RMinHash(num_perm=112, seed=0)
        minhash.update([" ".join(words[at : at + 5]) for at in range(len(words) - 4)])
        minhash.digest()


def _stage_seconds(texts: list[str], folder: Path) -> float:
    folder.mkdir()
    store, runtime = Store(str(folder / "store")), Runtime()
    documents = given_documents(texts, folder, store)
    warm = DedupConfig(seed=1)
    build(dedup, warm, dedup.bind((documents,)), store=store, runtime=runtime)
    begun = time.perf_counter()
    build(dedup, DedupConfig(), dedup.bind((documents,)), store=store, runtime=runtime)
    return time.perf_counter() - begun


def given_documents(texts: list[str], folder: Path, store: Store) -> Documents:
    """Return texts as documents whose ids are their numbers."""
    _write(texts, folder / "texts.parquet")
    config = BenchTextsConfig(path=str(folder / "texts.parquet"))
    return build(bench_texts, config, {}, store=store, runtime=Runtime())


def kept_ids(texts: list[str], config: "DedupConfig") -> list[str]:
    """Return which of the texts, by their numbers as ids, the stage keeps."""
    with tempfile.TemporaryDirectory(prefix="lmpipe-bench-") as folder:
        store = Store(f"{folder}/store")
        documents = given_documents(texts, Path(folder), store)
        result = build(dedup, config, dedup.bind((documents,)), store=store, runtime=Runtime())
        return [i for b in read_documents(result, ["id"]) for i in b.column("id").to_pylist()]


def _write(texts: list[str], path: Path) -> None:
    ids = [f"{number:032x}" for number in range(len(texts))]
    pq.write_table(pa.table({"id": ids, "text": texts}), path)


def _datatrove_seconds(texts: list[str], folder: Path) -> float:
    from datatrove.pipeline.dedup import minhash as peer
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.hashing import HashConfig
    from datatrove.utils.logging import logger

    logger.remove()
    folder.mkdir()
    _write(texts, folder / "in.parquet")
    config = peer.MinhashConfig(
        n_grams=5, num_buckets=14, hashes_per_bucket=8, hash_config=HashConfig(precision=64)
    )

    def reader() -> Any:
        return ParquetReader(str(folder), glob_pattern="in.parquet", doc_progress=False)

    names = {name: str(folder / name) for name in ("signatures", "buckets", "clusters", "out")}

    def signatures(count: int) -> None:
        step = peer.MinhashDedupSignature(output_folder=names["signatures"], config=config)
        documents = reader()(None)
        step.run((d for _, d in zip(range(count), documents, strict=False)), 0, 1)

    signatures(2)  # loads its tokeniser
    shutil.rmtree(names["signatures"])
    begun = time.perf_counter()
    signatures(len(texts))
    for bucket in range(14):
        step = peer.MinhashDedupBuckets(names["signatures"], names["buckets"], config=config)
        step.run(None, bucket, 14)
    peer.MinhashDedupCluster(names["buckets"], names["clusters"], config=config).run(None, 0, 1)
    keep = peer.MinhashDedupFilter(names["clusters"]).run(reader()(None), 0, 1)
    with JsonlWriter(names["out"]) as writer:
        for document in keep:
            writer.write(document)
    return time.perf_counter() - begun
