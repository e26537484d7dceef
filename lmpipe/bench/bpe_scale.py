"""`lmpipe bench bpe_scale`: time and memory of BPE training over the amount of text, up to 1 GB.

More text than is at hand is made of it: the same documents again, their words permuted between
documents, so that pre-tokens stay those of the language and documents those of no one. That happens
before the measured time and in another process, each size trains in a fresh one.
"""

import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.bench.bpe_train import TextFiles, _compile
from lmpipe.errors import InputError
from lmpipe.report.svg import HEIGHT, WIDTH, Line, line_chart
from lmpipe.tokenization.config import TokenizerConfig

GROUP_BYTES = 1 << 24  # of text in a row group: what a thread holds
STYLE = (
    "svg{background:#fff;font:12px sans-serif}text{fill:#59636f}.grid{stroke:#e3e6ea}"
    ".axis,.tick{stroke:#59636f}.line{fill:none;stroke:#2563c9;stroke-width:2}.dot{fill:#2563c9}"
)


class Options(BaseModel):
    """How much to train on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: list[str] = Field(min_length=1, description="Parquet files with a column `text`.")
    megabytes: list[int] = Field(
        [10, 30, 100, 300, 1000], min_length=1, description="Sizes of the text."
    )
    vocab_size: int = Field(32_768, ge=257, description="Vocabulary to train.")
    threads: int = Field(2, ge=1, description="Threads.")
    plot: str = Field("", description="File that the plots are drawn into, SVG; empty: none.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return seconds of counting and of learning, CPU seconds and peak memory at each size."""
    settings = Options.model_validate(options)
    for path in settings.paths:
        if not Path(path).is_file():
            raise InputError(f"{path} does not exist; give Parquet files with a column `text`")
    rows: list[Row] = []
    points: list[dict[str, float]] = []
    for megabytes in sorted(settings.megabytes):
        with tempfile.TemporaryDirectory(prefix="lmpipe-bench-") as folder:
            paths = _alone(permuted_text, settings.paths, megabytes * 1_000_000, Path(folder))
            found = _alone(_train, paths, settings.vocab_size, settings.threads)
        points.append({"megabytes": float(megabytes), **found})
        case = f"{megabytes} MB, {settings.vocab_size} tokens, {settings.threads} threads"
        rows += [
            row("bpe_scale", "lmpipe", case, "count", found["count"], "s"),
            row("bpe_scale", "lmpipe", case, "learn", found["learn"], "s"),
            row("bpe_scale", "lmpipe", case, "cpu", found["cpu"], "s"),
            row("bpe_scale", "lmpipe", case, "peak_memory", found["peak_mb"], "MB"),
            row("bpe_scale", "lmpipe", case, "distinct_pieces", found["pre_tokens"], "pre-tokens"),
        ]
    if settings.plot:
        Path(settings.plot).write_text(draw(points), encoding="utf-8")
    return rows


def permuted_text(paths: list[str], num_bytes: int, folder: Path) -> list[str]:
    """Write documents of `num_bytes` together as Parquet; return the files."""
    texts = pa.chunked_array(
        [chunk for path in paths for chunk in pq.read_table(path, columns=["text"])["text"].chunks]
    ).cast(pa.large_string())
    sizes = pc.binary_length(texts).to_numpy()
    files: list[str] = []
    while num_bytes > 0:
        num_documents = int(np.searchsorted(np.cumsum(sizes), num_bytes)) + 1
        part = texts.slice(0, num_documents)
        words = pc.split_pattern(part.combine_chunks(), " ")
        order = np.random.default_rng(len(files)).permutation(len(words.flatten()))
        permuted = pa.ListArray.from_arrays(words.offsets, words.flatten().take(pa.array(order)))
        made = pc.binary_join(permuted, pa.scalar(" ", pa.large_string()))
        files.append(str(folder / f"{len(files):05d}.parquet"))
        written = int(pc.sum(pc.binary_length(made)).as_py())
        pq.write_table(
            pa.table({"text": made}),
            files[-1],
            row_group_size=max(1, GROUP_BYTES * len(made) // max(1, written)),
            use_dictionary=False,
            compression="zstd",
        )
        num_bytes -= written
    return files


def _alone(work: Any, *arguments: Any) -> Any:
    """Call a function in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *arguments).result()


def _train(paths: list[str], vocab_size: int, threads: int) -> dict[str, float]:
    from lmpipe.tokenization.training import count_pre_tokens, train_bpe

    config = TokenizerConfig(vocab_size=vocab_size, max_training_bytes=1 << 40)  # all of it
    documents: Any = TextFiles(paths)
    _compile()
    start, cpu = time.perf_counter(), time.process_time()
    counts, _ = count_pre_tokens(documents, config, workers=threads)
    counted = time.perf_counter()
    train_bpe(counts, vocab_size - 256, config.min_frequency)
    learnt = time.perf_counter()
    return {
        "count": counted - start,
        "learn": learnt - counted,
        "cpu": time.process_time() - cpu,  # of all threads; other programs lengthen it little
        "peak_mb": _peak_bytes() / 1e6,
        "pre_tokens": len(counts),
    }


def _peak_bytes() -> int:
    """Return the peak of this program alone: ru_maxrss begins with that of the parent."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def draw(points: list[dict[str, float]]) -> str:
    """Return one SVG of CPU time and of memory over the amount of text."""
    sizes = [point["megabytes"] for point in points]
    drawings: list[str] = []
    for title, values in (
        ("CPU seconds", [point["cpu"] for point in points]),
        ("peak MB", [point["peak_mb"] for point in points]),
    ):
        chart = line_chart(
            title, [Line(title, sizes, values, dots=True)], x_label="MB of text", y_label=title
        )
        assert chart is not None
        inner = chart.svg.partition(">")[2].rpartition("</svg>")[0]
        drawings.append(
            f'<g transform="translate({len(drawings) * (WIDTH + 20):.0f} 0)">{inner}</g>'
        )
    box = f"0 0 {2 * WIDTH + 20:.0f} {HEIGHT:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" width="{2 * WIDTH + 20:.0f}">'
        f"<style>{STYLE}</style>{''.join(drawings)}</svg>\n"
    )
