"""Apply select's thresholds to a batch of documents' columns."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmpipe.artifacts.types import Documents
from lmpipe.curation.quality.rules import RULES, BatchThresholds
from lmpipe.curation.selection.perplexity_buckets import (
    COLUMN as BUCKET,
)
from lmpipe.curation.selection.perplexity_buckets import (
    RANKS,
    BucketThresholds,
    PerplexityBuckets,
    labels_of,
    nearest_thresholds,
)
from lmpipe.curation.selection.sampling import Ensemble, bands, pareto_thresholds, quantile_edges
from lmpipe.documents.ledger import removal
from lmpipe.documents.read import read_documents
from lmpipe.errors import InputError

if TYPE_CHECKING:
    from lmpipe.curation.selection.config import SelectConfig


BAND = "ensemble_band"
_SAFETY = {
    "max_toxicity": "toxicity",
    "max_nsfw": "nsfw",
    "max_adult_words": "num_adult_words",
}


class Verdict(NamedTuple):
    """Which rows of a batch one rule removes; scores and thresholds of all rows."""

    rule: str
    breaks: NDArray[np.bool_]
    scores: NDArray[Any]
    thresholds: NDArray[np.float64]


class Verdicts:
    """Which rows of a batch break which thresholds, in the order the thresholds were applied.

    Attributes:
        labels: columns that the thresholds make: each row's part of its language by perplexity, its
            band of several scores. None and NaN stand in rows that an earlier threshold removed.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.keep = np.ones(num_rows, dtype=np.bool_)
        self.labels: dict[str, NDArray[Any]] = {}
        self.rules: list[Verdict] = []

    def add(
        self, rule: str, breaks: NDArray[np.bool_], scores: NDArray[Any], thresholds: Any
    ) -> None:
        """Apply one threshold; thresholds may differ by row."""
        by_row = np.broadcast_to(thresholds, self.num_rows)
        self.rules.append(Verdict(rule, breaks, scores, by_row))
        self.keep &= ~breaks


@dataclass(frozen=True)
class CountedThresholds:
    """Thresholds that are counted over all documents, before any is judged.

    Attributes:
        scored: the languages with a perplexity; others have no model and pass its thresholds.
    """

    scored: frozenset[str] = frozenset()
    perplexity: dict[str, float] = field(default_factory=dict)  # by language
    buckets: dict[str, BucketThresholds] = field(default_factory=dict)  # by language
    quality: float | None = None
    edges: dict[str, list[float]] = field(default_factory=dict)  # of an ensemble, by column


def ledger_rows(batch: pa.RecordBatch, verdicts: Verdicts) -> list[dict[str, Any]]:
    """Return the ledger rows of the documents that are not kept."""
    ids, urls = batch.column("id"), batch.column("url")
    rows = []
    for row in np.flatnonzero(~verdicts.keep).tolist():
        broken = [verdict for verdict in verdicts.rules if verdict.breaks[row]]
        first = broken[0]
        rows.append(
            removal(
                ids[row].as_py(),
                "select",
                first.rule,
                reasons=[verdict.rule for verdict in broken],
                score=_known(first.scores[row]),
                threshold=_known(first.thresholds[row]),
                url=urls[row].as_py(),
            )
        )
    return rows


def judge_all(
    batch: pa.RecordBatch, config: "SelectConfig", counted: CountedThresholds
) -> Verdicts:
    """Apply every threshold; those that compare with other documents come last, as in COUNTED."""
    verdicts = judge(batch, config, counted)
    if config.top_quality_fraction is not None:
        values = _values(batch, "quality_score", "top_quality_fraction", verdicts.keep)
        breaks = verdicts.keep & (values < np.float32(counted.quality))
        verdicts.add("top_quality_fraction", breaks, values, counted.quality)
    if config.perplexity_buckets is not None:
        _judge_bucket(verdicts, batch, config.perplexity_buckets, counted)
    if config.ensemble is not None:
        _judge_ensemble(verdicts, batch, config.ensemble, counted)
    if config.max_perplexity_percentile is not None:
        _judge_percentile(verdicts, batch, counted)
    return verdicts


def _judge_bucket(
    verdicts: Verdicts, batch: pa.RecordBatch, config: PerplexityBuckets, counted: CountedThresholds
) -> None:
    values = _perplexities(batch, "perplexity_buckets", verdicts.keep, counted.scored)
    none = (np.nan, np.nan)
    languages = batch.column("language").to_pylist()
    pairs = np.array([counted.buckets.get(n or "", none) for n in languages], dtype=np.float64)
    pairs = pairs.reshape(-1, 2)
    labels = labels_of(values, pairs)
    labels[~verdicts.keep] = None
    kept = np.isin(labels, config.keep)
    thresholds = nearest_thresholds(values, pairs, config.keep)
    verdicts.add("perplexity_bucket", verdicts.keep & ~kept, values, thresholds)
    verdicts.labels[BUCKET] = labels


def _judge_ensemble(
    verdicts: Verdicts, batch: pa.RecordBatch, config: Ensemble, counted: CountedThresholds
) -> None:
    columns = {name: _score(verdicts, batch, name, "ensemble") for name in config.columns}
    found = bands(columns, config, counted.edges)
    found[~verdicts.keep] = np.nan
    verdicts.labels[BAND] = found
    verdicts.add("ensemble_band", verdicts.keep & (found < config.min_band), found, config.min_band)


def _score(verdicts: Verdicts, batch: pa.RecordBatch, name: str, threshold: str) -> NDArray[Any]:
    """Return a column that documents are ranked by; of buckets the head is best."""
    if name != BUCKET:
        return _values(batch, name, threshold, verdicts.keep)
    ranks = [RANKS.get(label, np.nan) for label in verdicts.labels[BUCKET]]
    return np.array(ranks, dtype=np.float32)


def _known(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def judge(batch: pa.RecordBatch, config: "SelectConfig", counted: CountedThresholds) -> Verdicts:
    """Apply every threshold that looks at one document alone."""
    verdicts = Verdicts(batch.num_rows)
    if config.languages:
        _judge_language(verdicts, batch, config)
    languages = batch.column("language").to_pylist() if config.thresholds_by_language else ()
    thresholds_of_rules = BatchThresholds(
        config.thresholds, config.thresholds_by_language, languages
    )
    for rule in RULES:
        threshold = thresholds_of_rules.of(rule)
        if threshold is not None:
            values = _values(batch, rule.column, rule.name, None)
            verdicts.add(rule.name, rule.breaks(values, threshold), values, threshold)
    if config.min_quality_score is not None:
        values = _values(batch, "quality_score", "min_quality_score", verdicts.keep)
        threshold = config.min_quality_score
        verdicts.add("min_quality_score", values < np.float32(threshold), values, threshold)
    if config.quality_pareto_alpha is not None:
        values = _values(batch, "quality_score", "quality_pareto_alpha", verdicts.keep)
        ids = batch.column("id").to_pylist()
        thresholds = pareto_thresholds(ids, config.quality_pareto_alpha, config.draw_seed)
        verdicts.add("quality_pareto_draw", values <= thresholds, values, thresholds)
    for name, column in _SAFETY.items():
        most = getattr(config, name)
        if most is not None:
            values = _values(batch, column, name, verdicts.keep)
            verdicts.add(name, values > np.float32(most), values, most)
    if config.remove_blocked and "is_blocked" in batch.schema.names:
        listed = batch.column("is_blocked").fill_null(False).to_numpy(zero_copy_only=False)
        verdicts.add("blocked", listed, listed.astype(np.float32), 0.5)
    if config.max_perplexity is not None:
        values = _perplexities(batch, "max_perplexity", verdicts.keep, counted.scored)
        threshold = config.max_perplexity
        verdicts.add("max_perplexity", values > np.float32(threshold), values, threshold)
    return verdicts


def count_thresholds(documents: Documents, config: "SelectConfig") -> CountedThresholds:
    """Count what depends on all documents, each among those that the thresholds before it keep."""
    counted = CountedThresholds(scored=_scored_languages(documents, config))
    fraction = config.top_quality_fraction
    if fraction is not None:
        quality = ("quality_score",)
        scores = _kept_values(documents, config, counted, quality, "top_quality_fraction")
        values = np.sort(scores["quality_score"])
        # the lowest score that is in the top share; equal scores stay together
        at = min(len(values) - 1, int(np.ceil(len(values) * (1 - fraction))))
        counted = replace(counted, quality=float(values[at]) if len(values) else 0.0)
    if config.perplexity_buckets is not None:
        buckets = config.perplexity_buckets
        found = _kept_perplexities(documents, config, counted, "perplexity_buckets")
        pairs = {language: buckets.thresholds_of(values) for language, values in found.items()}
        counted = replace(counted, buckets=pairs | buckets.cutoffs)
    if config.ensemble is not None:
        names = tuple(config.ensemble.columns)
        scores = _kept_values(documents, config, counted, names, "ensemble")
        edges = {
            name: quantile_edges(scores[name], config.ensemble.num_bands)
            if len(scores[name]) else [] for name in names
        }  # fmt: skip
        counted = replace(counted, edges=edges)
    percentile = config.max_perplexity_percentile
    if percentile is not None:
        found = _kept_perplexities(documents, config, counted, "max_perplexity_percentile")
        by_language = {
            language: float(np.percentile(values.astype(np.float64), percentile))
            for language, values in found.items()
        }
        counted = replace(counted, perplexity=by_language | config.perplexity_bounds)
    return counted


# thresholds that compare with other documents, in the order they are applied
COUNTED = (
    "top_quality_fraction", "perplexity_buckets", "ensemble", "max_perplexity_percentile"
)  # fmt: skip


def _before(config: "SelectConfig", threshold: str) -> "SelectConfig":
    """Return the thresholds that are applied before one of the counted ones."""
    later = COUNTED[COUNTED.index(threshold) :]
    return config.model_copy(update=dict.fromkeys(later))


def columns_for(config: "SelectConfig") -> list[str]:
    """Return the columns that the thresholds look at."""
    columns = {"id", "language", "language_score", "quality_score", "kenlm_perplexity", "num_words"}
    columns |= {rule.column for rule in RULES}
    columns |= {column for name, column in _SAFETY.items() if getattr(config, name) is not None}
    columns |= set(config.ensemble.columns) - {BUCKET} if config.ensemble else set()
    columns |= {"is_blocked"} if config.remove_blocked else set()
    return sorted(columns)


def _kept_values(
    documents: Documents,
    config: "SelectConfig",
    counted: CountedThresholds,
    names: tuple[str, ...],
    threshold: str,
) -> dict[str, NDArray[Any]]:
    before = _before(config, threshold)
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for batch in read_documents(documents, columns_for(config)):
        verdicts = judge_all(batch, before, counted)
        for name in names:
            found[name].append(_score(verdicts, batch, name, threshold)[verdicts.keep])
    empty = np.zeros(0, dtype=np.float32)
    return {name: np.concatenate([empty, *parts]) for name, parts in found.items()}


def _uses_perplexity(config: "SelectConfig") -> bool:
    return (
        config.max_perplexity is not None
        or config.max_perplexity_percentile is not None
        or config.perplexity_buckets is not None
    )


def _scored_languages(documents: Documents, config: "SelectConfig") -> frozenset[str]:
    """Return the languages in which a document has a perplexity, and those with stored thresholds.

    Raises:
        InputError: a threshold on perplexity, and not one document has any.
    """
    if not _uses_perplexity(config):
        return frozenset()
    found: set[str] = set()
    num_documents = 0
    for batch in read_documents(documents, ["language", "kenlm_perplexity"], 16_384):
        num_documents += batch.num_rows
        scored = batch.filter(batch.column("kenlm_perplexity").is_valid())
        found |= {name or "" for name in scored.column("language").unique().to_pylist()}
    if num_documents and not found:
        raise InputError(
            "a threshold on perplexity needs the column kenlm_perplexity, which is null for all "
            f"{num_documents} documents. Give sources.perplexity_model a KenLM model and run "
            "`signals`, or set the threshold to null"
        )
    stored = config.perplexity_buckets.cutoffs if config.perplexity_buckets else {}
    return frozenset(found | stored.keys() | config.perplexity_bounds.keys())


def _perplexities(
    batch: pa.RecordBatch, threshold: str, needed: NDArray[np.bool_], scored: frozenset[str]
) -> NDArray[Any]:
    """Return the perplexities; only a language without a model may have none."""
    languages = batch.column("language").to_pylist()
    has_model = np.array([(name or "") in scored for name in languages], dtype=np.bool_)
    return _values(batch, "kenlm_perplexity", threshold, needed & has_model)


def _kept_perplexities(
    documents: Documents, config: "SelectConfig", counted: CountedThresholds, threshold: str
) -> dict[str, NDArray[Any]]:
    """Return the perplexities by language of what the thresholds before this one keep."""
    before = _before(config, threshold)
    found: dict[str, list[NDArray[Any]]] = {}
    for batch in read_documents(documents, columns_for(config)):
        keep = judge_all(batch, before, counted).keep
        scores = _perplexities(batch, threshold, keep, counted.scored)
        languages = np.array([name or "" for name in batch.column("language").to_pylist()])
        for language in sorted(set(languages[keep].tolist()) & counted.scored):
            found.setdefault(language, []).append(scores[keep & (languages == language)])
    return {language: np.concatenate(parts) for language, parts in found.items()}


def _judge_percentile(
    verdicts: Verdicts, batch: pa.RecordBatch, counted: CountedThresholds
) -> None:
    values = _perplexities(batch, "max_perplexity_percentile", verdicts.keep, counted.scored)
    languages = batch.column("language").to_pylist()
    highest = [counted.perplexity.get(name or "", np.inf) for name in languages]
    thresholds = np.array(highest, dtype=np.float64)
    breaks = verdicts.keep & (values > thresholds)
    verdicts.add("max_perplexity_percentile", breaks, values, thresholds)


def _judge_language(verdicts: Verdicts, batch: pa.RecordBatch, config: "SelectConfig") -> None:
    found = batch.column("language").to_pylist()
    scores = _values(batch, "language_score", "languages", None)
    thresholds = np.array([config.languages.get(n or "", np.nan) for n in found], dtype=np.float64)
    if config.short_text_score is not None:
        short = _values(batch, "num_words", "short_text_words", None) < config.short_text_words
        thresholds[short & ~np.isnan(thresholds)] = config.short_text_score
    foreign = np.isnan(thresholds)
    verdicts.add("language", foreign, scores, np.nan)
    low = ~foreign & (scores < thresholds.astype(np.float32))
    verdicts.add("language_score", low, scores, thresholds)


def _values(
    batch: pa.RecordBatch, column: str, threshold: str, needed: NDArray[np.bool_] | None
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
            f"{threshold} needs the column {column}, which is null for {int(missing.sum())} of "
            f"{batch.num_rows} documents (first: row {row}). Run `signals` with the model that "
            "computes it and a gate no stricter than select's thresholds, or set this one to null"
        )
    return values
