"""Apply select's bounds to a batch of documents' columns."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmpipe.artifacts.types import Documents
from lmpipe.curation.rules import RULES
from lmpipe.documents.ledger import removal
from lmpipe.documents.read import read_documents
from lmpipe.errors import InputError

if TYPE_CHECKING:
    from lmpipe.curation.select import SelectConfig


class Verdicts:
    """Which rows of a batch break which bounds, in the order the bounds were applied."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.keep = np.ones(num_rows, dtype=np.bool_)
        self.rules: list[tuple[str, NDArray[np.bool_], NDArray[Any], NDArray[np.float64]]] = []

    def add(
        self, rule: str, breaks: NDArray[np.bool_], scores: NDArray[Any], thresholds: Any
    ) -> None:
        """Apply one bound; thresholds may differ by row."""
        self.rules.append((rule, breaks, scores, np.broadcast_to(thresholds, self.num_rows)))
        self.keep &= ~breaks


def decide(
    batch: pa.RecordBatch, config: "SelectConfig", limits: dict[str, float]
) -> tuple[NDArray[np.bool_], list[dict[str, Any]]]:
    """Return which rows are kept, and the ledger rows of the others."""
    verdicts = judge_all(batch, config, limits)
    ids, urls = batch.column("id"), batch.column("url")
    rows = []
    for row in np.flatnonzero(~verdicts.keep).tolist():
        broken = [(rule, s[row], t[row]) for rule, breaks, s, t in verdicts.rules if breaks[row]]
        rule, score, threshold = broken[0]
        rows.append(
            removal(
                ids[row].as_py(),
                "select",
                rule,
                reasons=[name for name, _, _ in broken],
                score=_known(score),
                threshold=_known(threshold),
                url=urls[row].as_py(),
            )
        )
    return verdicts.keep, rows


def judge_all(batch: pa.RecordBatch, config: "SelectConfig", limits: dict[str, float]) -> Verdicts:
    """Apply every bound, those that compare with other documents too."""
    verdicts = judge(batch, config)
    if config.max_perplexity_percentile is not None:
        _judge_percentile(verdicts, batch, limits)
    return verdicts


def _known(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def judge(batch: pa.RecordBatch, config: "SelectConfig") -> Verdicts:
    """Apply every bound that looks at one document alone."""
    verdicts = Verdicts(batch.num_rows)
    if config.languages:
        _judge_language(verdicts, batch, config.languages)
    for rule in RULES:
        threshold = rule.threshold(config.thresholds)
        if threshold is not None:
            values = _values(batch, rule.column, rule.name, None)
            verdicts.add(rule.name, rule.breaks(values, threshold), values, threshold)
    if config.min_quality_score is not None:
        values = _values(batch, "quality_score", "min_quality_score", verdicts.keep)
        bound = config.min_quality_score
        verdicts.add("min_quality_score", values < np.float32(bound), values, bound)
    if config.max_perplexity is not None:
        values = _values(batch, "kenlm_perplexity", "max_perplexity", verdicts.keep)
        bound = config.max_perplexity
        verdicts.add("max_perplexity", values > np.float32(bound), values, bound)
    return verdicts


def perplexity_limits(documents: Documents, config: "SelectConfig") -> dict[str, float]:
    """Return each language's perplexity at the percentile, among documents otherwise kept."""
    percentile = config.max_perplexity_percentile
    if percentile is None:
        return {}
    columns = ["language", "language_score", "quality_score", "kenlm_perplexity"]
    columns += sorted({rule.column for rule in RULES})
    values: dict[str, list[NDArray[Any]]] = {}
    for batch in read_documents(documents, columns):
        keep = judge(batch, config).keep
        scores = _values(batch, "kenlm_perplexity", "max_perplexity_percentile", keep)
        languages = np.array(batch.column("language").to_pylist(), dtype=object)
        for language in sorted({name or "" for name in languages[keep]}):
            chosen = keep & (languages == (language or None))
            values.setdefault(language, []).append(scores[chosen])
    return {
        language: float(np.percentile(np.concatenate(parts).astype(np.float64), percentile))
        for language, parts in values.items()
    }


def _judge_percentile(verdicts: Verdicts, batch: pa.RecordBatch, limits: dict[str, float]) -> None:
    values = _values(batch, "kenlm_perplexity", "max_perplexity_percentile", verdicts.keep)
    languages = batch.column("language").to_pylist()
    bounds = np.array([limits.get(name or "", np.inf) for name in languages], dtype=np.float64)
    breaks = verdicts.keep & (values > bounds)
    verdicts.add("max_perplexity_percentile", breaks, values, bounds)


def _judge_language(verdicts: Verdicts, batch: pa.RecordBatch, languages: dict[str, float]) -> None:
    found = batch.column("language").to_pylist()
    scores = _values(batch, "language_score", "languages", None)
    bounds = np.array([languages.get(name or "", np.nan) for name in found], dtype=np.float64)
    foreign = np.isnan(bounds)
    verdicts.add("language", foreign, scores, np.nan)
    low = ~foreign & (scores < bounds.astype(np.float32))
    verdicts.add("language_score", low, scores, bounds)


def _values(
    batch: pa.RecordBatch, column: str, bound: str, needed: NDArray[np.bool_] | None
) -> NDArray[Any]:
    """Return a column as floats, nulls as NaN.

    Raises:
        InputError: a row that still counts has no value: its signal was never computed.
    """
    array = batch.column(column)
    values: NDArray[Any] = array.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    missing = np.isnan(values) if needed is None else np.isnan(values) & needed
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise InputError(
            f"{bound} needs the column {column}, which is null for {int(missing.sum())} of "
            f"{batch.num_rows} documents (first: row {row}). Run `signals` with the model that "
            "computes it and a gate no stricter than select's thresholds, or set the bound to null"
        )
    return values
