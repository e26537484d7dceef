"""`lmpipe bench bpe_train`: train a byte-level vocabulary, beside tokenizers and rustbpe.

Each implementation runs in a fresh process, reading the same Parquet files (column `text`) with the
cl100k pattern, so that seconds include reading and peak memory is its own. Ours is run once on a
tiny text before, so that compiled code is on disk, as rustbpe's is in its wheel.
"""

import importlib.util
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.errors import InputError
from lmpipe.tokenization.config import TokenizerConfig
from lmpipe.tokenization.patterns import pattern_regex


class Options(BaseModel):
    """What to train on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: list[str] = Field(min_length=1, description="Parquet files with a column `text`.")
    vocab_sizes: list[int] = Field([8192, 32_768], description="Vocabularies to train.")
    threads: int = Field(2, ge=1, description="Threads of every implementation.")
    peers: bool = Field(True, description="Run the peers that are installed too.")
    repeats: int = Field(1, ge=1, description="Runs of each; the fastest counts.")


class TextFiles:
    """Parquet files that pass for the kept documents of an artifact."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = {f"kept/{i:05d}.parquet": path for i, path in enumerate(paths)}

    def names(self, prefix: str = "") -> list[str]:
        return [name for name in self._paths if name.startswith(prefix)]

    def open(self, name: str) -> IO[bytes]:
        return Path(self._paths[name]).open("rb")


def run(options: dict[str, Any]) -> list[Row]:
    """Return one row per implementation, vocabulary and metric."""
    settings = Options.model_validate(options)
    for path in settings.paths:
        if not Path(path).is_file():
            raise InputError(f"{path} does not exist; give Parquet files with a column `text`")
    rows: list[Row] = []
    for vocab_size in settings.vocab_sizes:
        for impl in implementations(settings.peers):
            runs = [_isolated(impl, settings, vocab_size) for _ in range(settings.repeats)]
            case = f"{vocab_size} tokens, {settings.threads} threads"
            rows.append(row("bpe_train", impl, case, "time", min(runs)[0], "s"))
            peak = max(memory for _, memory in runs)
            rows.append(row("bpe_train", impl, case, "peak_memory", peak, "MB"))
    return rows


def implementations(peers: bool) -> list[str]:
    """Return ours and the peers that are installed."""
    return ["lmpipe"] + [
        name for name in ("tokenizers", "rustbpe") if peers and importlib.util.find_spec(name)
    ]


def _isolated(impl: str, settings: Options, vocab_size: int) -> tuple[float, float]:
    """Run an implementation in a fresh process; return seconds and peak megabytes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, impl, settings.model_dump(), vocab_size).result()


def _measure(impl: str, options: dict[str, Any], vocab_size: int) -> tuple[float, float]:
    settings = Options.model_validate(options)
    os.environ["RAYON_NUM_THREADS"] = str(settings.threads)
    train = {"lmpipe": _train_ours, "tokenizers": _train_tokenizers, "rustbpe": _train_rustbpe}
    if impl == "lmpipe":
        _compile()
    start = time.perf_counter()
    train[impl](settings, vocab_size)
    seconds = time.perf_counter() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _compile() -> None:
    from lmpipe.tokenization.pre_tokens import PreTokenCounts
    from lmpipe.tokenization.training import train_bpe

    counts, other = PreTokenCounts("cl100k", 0, 64), PreTokenCounts("cl100k", 0, 64)
    counts.add_documents(np.frombuffer(b"one two", np.uint8), np.array([0, 7]))
    other.update(counts)
    train_bpe(other, 2, 1)


def _train_ours(settings: Options, vocab_size: int) -> None:
    from lmpipe.tokenization.training import count_pre_tokens, train_bpe

    config = TokenizerConfig(vocab_size=vocab_size, max_training_bytes=1 << 40)  # all of it
    documents: Any = TextFiles(settings.paths)
    counts, _ = count_pre_tokens(documents, config, workers=settings.threads)
    train_bpe(counts, vocab_size - 256, config.min_frequency)


def _train_tokenizers(settings: Options, vocab_size: int) -> None:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern_regex("cl100k", 0)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(_texts(settings.paths), trainer)


def _train_rustbpe(settings: Options, vocab_size: int) -> None:
    rustbpe = importlib.import_module("rustbpe")

    rustbpe.Tokenizer().train_from_iterator(
        _texts(settings.paths), vocab_size, pattern=pattern_regex("cl100k", 0)
    )


def _texts(paths: list[str]) -> Iterator[str]:
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(64, columns=["text"]):
            yield from batch["text"].to_pylist()
