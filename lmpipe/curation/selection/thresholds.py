"""Apply select's bounds to a batch of documents' columns."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lmpipe.artifacts.types import Documents
from lmpipe.curation.quality.rules import RULES, Bounds
from lmpipe.curation.selection.perplexity_buckets import (
    COLUMN as BUCKET,
)
from lmpipe.curation.selection.perplexity_buckets import (
    RANKS,
    Cuts,
    PerplexityBuckets,
    labels_of,
    nearest_cuts,
)
from lmpipe.curation.selection.sampling import Ensemble, bands, pareto_limits, quantile_edges
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


class Verdicts:
    """Which rows of a batch break which bounds, in the order the bounds were applied.

    Attributes:
        labels: columns that the bounds make: each row's part of its language by perplexity, its
            band of several scores. None and NaN stand in rows that an earlier bound removed.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.keep = np.ones(num_rows, dtype=np.bool_)
        self.labels: dict[str, NDArray[Any]] = {}
        self.rules: list[tuple[str, NDArray[np.bool_], NDArray[Any], NDArray[np.float64]]] = []

    def add(
        self, rule: str, breaks: NDArray[np.bool_], scores: NDArray[Any], thresholds: Any
    ) -> None:
        """Apply one bound; thresholds may differ by row."""
        self.rules.append((rule, breaks, scores, np.broadcast_to(thresholds, self.num_rows)))
        self.keep &= ~breaks


@dataclass(frozen=True)
class Limits:
    """Bounds that are counted over all documents, before any is judged.

    Attributes:
        scored: the languages with a perplexity; others have no model and pass its bounds.
    """

    scored: frozenset[str] = frozenset()
    perplexity: dict[str, float] = field(default_factory=dict)  # by language
    cutoffs: dict[str, Cuts] = field(default_factory=dict)  # of head and tail, by language
    quality: float | None = None
    edges: dict[str, list[float]] = field(default_factory=dict)  # of an ensemble, by column


def ledger_rows(batch: pa.RecordBatch, verdicts: Verdicts) -> list[dict[str, Any]]:
    """Return the ledger rows of the documents that are not kept."""
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
    return rows


def judge_all(batch: pa.RecordBatch, config: "SelectConfig", limits: Limits) -> Verdicts:
    """Apply every bound, those that compare with other documents too, in the order of COUNTED."""
    verdicts = judge(batch, config, limits)
    if config.top_quality_fraction is not None:
        values = _values(batch, "quality_score", "top_quality_fraction", verdicts.keep)
        breaks = verdicts.keep & (values < np.float32(limits.quality))
        verdicts.add("top_quality_fraction", breaks, values, limits.quality)
    if config.perplexity_buckets is not None:
        _judge_bucket(verdicts, batch, config.perplexity_buckets, limits)
    if config.ensemble is not None:
        _judge_ensemble(verdicts, batch, config.ensemble, limits)
    if config.max_perplexity_percentile is not None:
        _judge_percentile(verdicts, batch, limits)
    return verdicts


def _judge_bucket(
    verdicts: Verdicts, batch: pa.RecordBatch, config: PerplexityBuckets, limits: Limits
) -> None:
    values = _perplexities(batch, "perplexity_buckets", verdicts.keep, limits.scored)
    none = (np.nan, np.nan)
    languages = batch.column("language").to_pylist()
    cuts = np.array([limits.cutoffs.get(name or "", none) for name in languages], dtype=np.float64)
    cuts = cuts.reshape(-1, 2)
    labels = labels_of(values, cuts)
    labels[~verdicts.keep] = None
    kept = np.isin(labels, config.keep)
    bounds = nearest_cuts(values, cuts, config.keep)
    verdicts.add("perplexity_bucket", verdicts.keep & ~kept, values, bounds)
    verdicts.labels[BUCKET] = labels


def _judge_ensemble(
    verdicts: Verdicts, batch: pa.RecordBatch, config: Ensemble, limits: Limits
) -> None:
    columns = {name: _score(verdicts, batch, name, "ensemble") for name in config.columns}
    found = bands(columns, config, limits.edges)
    found[~verdicts.keep] = np.nan
    verdicts.labels[BAND] = found
    verdicts.add("ensemble_band", verdicts.keep & (found < config.min_band), found, config.min_band)


def _score(verdicts: Verdicts, batch: pa.RecordBatch, name: str, bound: str) -> NDArray[Any]:
    """Return a column that documents are ranked by; of buckets the head is best."""
    if name != BUCKET:
        return _values(batch, name, bound, verdicts.keep)
    ranks = [RANKS.get(label, np.nan) for label in verdicts.labels[BUCKET]]
    return np.array(ranks, dtype=np.float32)


def _known(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def judge(batch: pa.RecordBatch, config: "SelectConfig", limits: Limits) -> Verdicts:
    """Apply every bound that looks at one document alone."""
    verdicts = Verdicts(batch.num_rows)
    if config.languages:
        _judge_language(verdicts, batch, config)
    languages = batch.column("language").to_pylist() if config.thresholds_by_language else ()
    bounds_of_rules = Bounds(config.thresholds, config.thresholds_by_language, languages)
    for rule in RULES:
        threshold = bounds_of_rules.of(rule)
        if threshold is not None:
            values = _values(batch, rule.column, rule.name, None)
            verdicts.add(rule.name, rule.breaks(values, threshold), values, threshold)
    if config.min_quality_score is not None:
        values = _values(batch, "quality_score", "min_quality_score", verdicts.keep)
        bound = config.min_quality_score
        verdicts.add("min_quality_score", values < np.float32(bound), values, bound)
    if config.quality_pareto_alpha is not None:
        values = _values(batch, "quality_score", "quality_pareto_alpha", verdicts.keep)
        ids = batch.column("id").to_pylist()
        bounds = pareto_limits(ids, config.quality_pareto_alpha, config.draw_seed)
        verdicts.add("quality_pareto_draw", values <= bounds, values, bounds)
    for bound_name, column in _SAFETY.items():
        most = getattr(config, bound_name)
        if most is not None:
            values = _values(batch, column, bound_name, verdicts.keep)
            verdicts.add(bound_name, values > np.float32(most), values, most)
    if config.remove_blocked and "is_blocked" in batch.schema.names:
        listed = batch.column("is_blocked").fill_null(False).to_numpy(zero_copy_only=False)
        verdicts.add("blocked", listed, listed.astype(np.float32), 0.5)
    if config.max_perplexity is not None:
        values = _perplexities(batch, "max_perplexity", verdicts.keep, limits.scored)
        bound = config.max_perplexity
        verdicts.add("max_perplexity", values > np.float32(bound), values, bound)
    return verdicts


def find_limits(documents: Documents, config: "SelectConfig") -> Limits:
    """Count the bounds that depend on all documents, each among those kept by what is before it."""
    limits = Limits(scored=_scored_languages(documents, config))
    fraction = config.top_quality_fraction
    if fraction is not None:
        quality = ("quality_score",)
        scores = _kept_values(documents, config, limits, quality, "top_quality_fraction")
        values = np.sort(scores["quality_score"])
        # the lowest score that is in the top share; equal scores stay together
        at = min(len(values) - 1, int(np.ceil(len(values) * (1 - fraction))))
        limits = replace(limits, quality=float(values[at]) if len(values) else 0.0)
    if config.perplexity_buckets is not None:
        buckets = config.perplexity_buckets
        found = _kept_perplexities(documents, config, limits, "perplexity_buckets")
        cutoffs = {language: buckets.cuts_of(values) for language, values in found.items()}
        limits = replace(limits, cutoffs=cutoffs | buckets.cutoffs)
    if config.ensemble is not None:
        names = tuple(config.ensemble.columns)
        scores = _kept_values(documents, config, limits, names, "ensemble")
        edges = {
            name: quantile_edges(scores[name], config.ensemble.num_bands)
            if len(scores[name]) else [] for name in names
        }  # fmt: skip
        limits = replace(limits, edges=edges)
    percentile = config.max_perplexity_percentile
    if percentile is not None:
        found = _kept_perplexities(documents, config, limits, "max_perplexity_percentile")
        counted = {
            language: float(np.percentile(values.astype(np.float64), percentile))
            for language, values in found.items()
        }
        limits = replace(limits, perplexity=counted | config.perplexity_bounds)
    return limits


# bounds that compare with other documents, in the order they are applied
COUNTED = (
    "top_quality_fraction", "perplexity_buckets", "ensemble", "max_perplexity_percentile"
)  # fmt: skip


def _before(config: "SelectConfig", bound: str) -> "SelectConfig":
    """Return the bounds that are applied before one of the counted ones."""
    later = COUNTED[COUNTED.index(bound) :]
    return config.model_copy(update=dict.fromkeys(later))


def columns_for(config: "SelectConfig") -> list[str]:
    """Return the columns that the bounds look at."""
    columns = {"id", "language", "language_score", "quality_score", "kenlm_perplexity", "num_words"}
    columns |= {rule.column for rule in RULES}
    columns |= {column for name, column in _SAFETY.items() if getattr(config, name) is not None}
    columns |= set(config.ensemble.columns) - {BUCKET} if config.ensemble else set()
    columns |= {"is_blocked"} if config.remove_blocked else set()
    return sorted(columns)


def _kept_values(
    documents: Documents, config: "SelectConfig", limits: Limits, names: tuple[str, ...], bound: str
) -> dict[str, NDArray[Any]]:
    before = _before(config, bound)
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for batch in read_documents(documents, columns_for(config)):
        verdicts = judge_all(batch, before, limits)
        for name in names:
            found[name].append(_score(verdicts, batch, name, bound)[verdicts.keep])
    empty = np.zeros(0, dtype=np.float32)
    return {name: np.concatenate([empty, *parts]) for name, parts in found.items()}


def _uses_perplexity(config: "SelectConfig") -> bool:
    return (
        config.max_perplexity is not None
        or config.max_perplexity_percentile is not None
        or config.perplexity_buckets is not None
    )


def _scored_languages(documents: Documents, config: "SelectConfig") -> frozenset[str]:
    """Return the languages in which a document has a perplexity, and those with stored bounds.

    Raises:
        InputError: a bound on perplexity, and not one document has any.
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
            "a bound on perplexity needs the column kenlm_perplexity, which is null for all "
            f"{num_documents} documents. Give sources.perplexity_model a KenLM model and run "
            "`signals`, or set the bound to null"
        )
    stored = config.perplexity_buckets.cutoffs if config.perplexity_buckets else {}
    return frozenset(found | stored.keys() | config.perplexity_bounds.keys())


def _perplexities(
    batch: pa.RecordBatch, bound: str, needed: NDArray[np.bool_], scored: frozenset[str]
) -> NDArray[Any]:
    """Return the perplexities; only a language without a model may have none."""
    languages = batch.column("language").to_pylist()
    has_model = np.array([(name or "") in scored for name in languages], dtype=np.bool_)
    return _values(batch, "kenlm_perplexity", bound, needed & has_model)


def _kept_perplexities(
    documents: Documents, config: "SelectConfig", limits: Limits, bound: str
) -> dict[str, NDArray[Any]]:
    """Return the perplexities by language of what the bounds before this one keep."""
    before = _before(config, bound)
    found: dict[str, list[NDArray[Any]]] = {}
    for batch in read_documents(documents, columns_for(config)):
        keep = judge_all(batch, before, limits).keep
        scores = _perplexities(batch, bound, keep, limits.scored)
        languages = np.array([name or "" for name in batch.column("language").to_pylist()])
        for language in sorted(set(languages[keep].tolist()) & limits.scored):
            found.setdefault(language, []).append(scores[keep & (languages == language)])
    return {language: np.concatenate(parts) for language, parts in found.items()}


def _judge_percentile(verdicts: Verdicts, batch: pa.RecordBatch, limits: Limits) -> None:
    values = _perplexities(batch, "max_perplexity_percentile", verdicts.keep, limits.scored)
    languages = batch.column("language").to_pylist()
    highest = [limits.perplexity.get(name or "", np.inf) for name in languages]
    bounds = np.array(highest, dtype=np.float64)
    breaks = verdicts.keep & (values > bounds)
    verdicts.add("max_perplexity_percentile", breaks, values, bounds)


def _judge_language(verdicts: Verdicts, batch: pa.RecordBatch, config: "SelectConfig") -> None:
    found = batch.column("language").to_pylist()
    scores = _values(batch, "language_score", "languages", None)
    bounds = np.array([config.languages.get(n or "", np.nan) for n in found], dtype=np.float64)
    if config.short_text_score is not None:
        short = _values(batch, "num_words", "short_text_words", None) < config.short_text_words
        bounds[short & ~np.isnan(bounds)] = config.short_text_score
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
