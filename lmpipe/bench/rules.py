"""`lmpipe bench rules`: all rules on one core beside datatrove's filters, and the same decisions.

Speed: the documents are cut into pieces of about 700 words; each implementation sees the same ones,
in one process and one run. Ours computes every measure of every document with its own splitter;
datatrove's filters stop at a document's first broken rule. Decisions: whole documents, datatrove's
splitter (spaCy) plugged into ours, every rule of every document compared.
"""

import importlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from lmpipe.bench import Row, row
from lmpipe.curation.quality.measures import measure
from lmpipe.curation.quality.rules import Thresholds, broken_rules
from lmpipe.curation.text.words import Spans
from lmpipe.errors import InputError

FILTERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "GopherQualityFilter": (
        "gopher_quality_filter", "gopher quality",
        {
            "gopher_short_doc": "gopher_min_words",
            "gopher_long_doc": "gopher_max_words",
            "gopher_below_avg_threshold": "gopher_min_mean_word_length",
            "gopher_above_avg_threshold": "gopher_max_mean_word_length",
            "gopher_too_many_hashes": "gopher_max_hash_word_ratio",
            "gopher_too_many_ellipsis": "gopher_max_ellipsis_word_ratio",
            "gopher_too_many_bullets": "gopher_max_bullet_line_fraction",
            "gopher_too_many_end_ellipsis": "gopher_max_ellipsis_line_fraction",
            "gopher_below_alpha_threshold": "gopher_min_alphabetic_word_fraction",
            "gopher_enough_stop_words": "gopher_min_stop_words",
        },
    ),
    "GopherRepetitionFilter": (
        "gopher_repetition_filter", "gopher repetition",
        {
            "dup_para_frac": "gopher_max_duplicate_paragraph_fraction",
            "dup_para_char_frac": "gopher_max_duplicate_paragraph_character_fraction",
            "dup_line_frac": "gopher_max_duplicate_line_fraction",
            "dup_line_char_frac": "gopher_max_duplicate_line_character_fraction",
            **{f"top_{n}_gram": f"gopher_max_top_{n}_gram" for n in (2, 3, 4)},
            **{f"duplicated_{n}_n_grams": f"gopher_max_duplicate_{n}_gram" for n in range(5, 11)},
        },
    ),
    "C4QualityFilter": (
        "c4_filters", "c4",
        {
            "lorem_ipsum": "c4_no_lorem_ipsum",
            "curly_bracket": "c4_no_curly_bracket",
            "too_few_sentences": "c4_min_sentences",
        },
    ),
    "FineWebQualityFilter": (
        "fineweb_quality_filter", "fineweb",
        {
            "line_punct_ratio": "fineweb_min_punctuated_line_fraction",
            "short_line_ratio": "fineweb_max_short_line_fraction",
            "char_dup_ratio": "fineweb_max_repeated_line_character_fraction",
            "list_ratio": "fineweb_max_newline_word_ratio",
        },
    ),
}  # fmt: skip


class Options(BaseModel):
    """Which documents, and how many."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: list[str] = Field(min_length=1, description="Parquet files with a column `text`.")
    words: int = Field(700, ge=1, description="Words of a timed piece.")
    num_pieces: int = Field(1000, ge=1, description="Pieces that ours is timed on.")
    num_peer_pieces: int = Field(200, ge=0, description="Pieces that datatrove is timed on.")
    first_compared: int = Field(0, ge=0, description="Documents passed over before those.")
    num_compared: int = Field(5000, ge=0, description="Documents whose decisions are compared.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return documents per second of ours and of each filter, and the decisions that differ."""
    settings = Options.model_validate(options)
    texts = [
        text
        for path in settings.paths
        for text in pq.read_table(path, columns=["text"])["text"].to_pylist()
        if text.strip()
    ]
    pieces = _pieces(texts, settings.words)[: settings.num_pieces]
    if not pieces:
        raise InputError(f"no document of {settings.words} words; give longer ones, or words=100")
    measure(pieces[:2])  # compiled before it is timed
    rows = []
    seconds = _seconds(lambda: broken_rules(measure(pieces), Thresholds()))
    case = f"all rules, {settings.words} words"
    rows.append(row("rules", "lmpipe", case, "throughput", len(pieces) / seconds, "documents/s"))
    peer = pieces[: settings.num_peer_pieces]
    if peer:
        rows += _peer_rows(peer, settings.words)
    if settings.num_compared:
        compared = texts[settings.first_compared :][: settings.num_compared]
        differing = disagreements(compared)
        case = f"{len(compared)} documents, all filters"
        rows.append(row("rules", "lmpipe", case, "compared", float(len(compared)), "documents"))
        rows.append(row("rules", "lmpipe", case, "differing", float(len(differing)), "decisions"))
        for kind, count in Counter(_kind(d) for d in differing).items():
            rows.append(row("rules", "lmpipe", kind, "differing", float(count), "decisions"))
    return rows


def _pieces(texts: list[str], num_words: int) -> list[str]:
    """Cut documents at spaces, so that lines and paragraphs stay what they are."""
    found = []
    for text in texts:
        parts = text.split(" ")
        if len(parts) >= num_words:
            found.append(" ".join(parts[:num_words]))
    return found


def _seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Time the fastest of some runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def filters() -> list[tuple[str, Any, dict[str, str]]]:
    """Return datatrove's filters with what their reasons are called here."""
    found = []
    for name, (module, label, names) in FILTERS.items():
        loaded = importlib.import_module(f"datatrove.pipeline.filters.{module}")
        found.append((label, getattr(loaded, name)(), names))
    return found


def _peer_rows(pieces: list[str], num_words: int) -> list[Row]:
    from datatrove.data import Document

    rows = []
    total = 0.0
    for label, block, _ in filters():
        block.filter(Document(text=pieces[0], id="0"))  # the splitter is loaded before it is timed
        documents = [Document(text=text, id=str(n)) for n, text in enumerate(pieces)]
        start = time.perf_counter()
        for document in documents:
            block.filter(document)
        seconds = time.perf_counter() - start
        total += seconds
        case = f"{label}, {num_words} words"
        rows.append(
            row("rules", "datatrove", case, "throughput", len(pieces) / seconds, "documents/s")
        )
    case = f"all rules, {num_words} words"
    rows.append(row("rules", "datatrove", case, "throughput", len(pieces) / total, "documents/s"))
    return rows


def spans_of(text: str, words: list[str]) -> Spans:
    """Find another splitter's words in the text, one after another."""
    starts = np.empty(len(words), dtype=np.int32)
    ends = np.empty(len(words), dtype=np.int32)
    at = 0
    for number, word in enumerate(words):
        start = text.index(word, at)
        at = start + len(word)
        starts[number], ends[number] = start, at
    return starts, ends


def disagreements(texts: list[str]) -> list[str]:
    """Compare each filter's verdict and first reason with our broken rules, on spaCy's words."""
    from datatrove.data import Document
    from datatrove.utils.text import split_into_sentences, split_into_words

    def count(line: str) -> int:
        return len(split_into_sentences(line))

    blocks = filters()
    found = []
    for number, text in enumerate(texts):
        spans = spans_of(text, split_into_words(text))
        broken = broken_rules(measure([text], [spans], count), Thresholds())
        ours = {rule for rule, rows in broken.items() if rows[0]}
        for label, block, names in blocks:
            verdict = block.filter(Document(text=text, id=str(number)))
            reason = None if verdict is True else names.get(verdict[1], verdict[1])
            mine = ours & set(names.values())
            if (reason is None) != (not mine) or (reason and reason not in mine):
                found.append(f"{label}: datatrove {reason}, lmpipe {sorted(mine)}; {number}")
    return found


def _kind(disagreement: str) -> str:
    return disagreement.rsplit(";", 1)[0]
