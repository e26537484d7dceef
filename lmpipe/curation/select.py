"""select: keep the documents whose signals are within the recipe's bounds.

Only columns are read to decide, so another threshold costs seconds. A document that breaks several
rules is removed once: under the first rule in the order language, rules, quality, perplexity, with
all of them listed beside it.
"""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, field_validator, model_validator

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Documents
from lmpipe.curation.draws import Ensemble
from lmpipe.curation.language import policy_language
from lmpipe.curation.language_policy import in_models_terms
from lmpipe.curation.perplexity_buckets import COLUMN as BUCKET
from lmpipe.curation.perplexity_buckets import PerplexityBuckets
from lmpipe.curation.rules import RULES, LanguageThresholds, Thresholds
from lmpipe.documents.stage import MappedDocuments, StoredPart, map_documents
from lmpipe.errors import did_you_mean
from lmpipe.runtime import Runtime

if TYPE_CHECKING:
    from lmpipe.curation.bounds import Limits, Verdicts


LEARNED = ("quality_score", "kenlm_perplexity", "toxicity", "nsfw")
ENSEMBLE_COLUMNS = sorted(
    {*LEARNED, *(rule.column for rule in RULES), "num_words", "num_adult_words", BUCKET}
)
MARGIN_SAMPLES = 2  # documents on either side of each bound


class SelectConfig(StageConfig):
    """Bounds on the signals; a bound that is null removes nothing."""

    languages: dict[str, float] = Field(
        {"en": 0.65},
        description="Languages to keep, each with its lowest probability; empty: all languages.",
    )
    short_text_words: int = Field(
        0,
        ge=0,
        le=10_000,
        description="Texts of fewer words are short: a language model knows little of them.",
    )
    short_text_score: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Lowest language probability of short texts, in any language of the list; "
        "null: the list's own.",
    )
    thresholds: Thresholds = Field(
        Thresholds(), description="Bounds of the Gopher, C4 and FineWeb rules."
    )
    thresholds_by_language: LanguageThresholds = Field(
        default_factory=dict,
        description="What differs in a language that is kept, such as {de: {gopher_min_stop_words: "
        "null, gopher_max_mean_word_length: 12}}.",
    )
    min_quality_score: float | None = Field(
        None, ge=0, le=1, description="Lowest score of the quality classifier; null: off."
    )
    top_quality_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Keep this share by quality score, counted among documents that the bounds "
        "before it keep; null: off.",
    )
    quality_pareto_alpha: float | None = Field(
        None,
        gt=0,
        le=100,
        description="Keep a document if a Pareto draw of this shape exceeds 1 - its quality score "
        "(GPT-3 took 9); null: off.",
    )
    draw_seed: int = Field(0, ge=0, le=2**63 - 1, description="Of draws by hash(seed, id).")
    ensemble: Ensemble | None = Field(
        None, description="Bands of several scores, counted among documents otherwise kept."
    )
    max_toxicity: float | None = Field(
        None, ge=0, le=1, description="Highest score of the toxicity classifier; null: off."
    )
    max_nsfw: float | None = Field(
        None, ge=0, le=1, description="Highest score of the NSFW classifier; null: off."
    )
    max_adult_words: int | None = Field(
        None, ge=0, le=10**6, description="Most words of the language's adult list; null: off."
    )
    remove_blocked: bool = Field(
        True, description="Remove pages whose host or address is on a block list."
    )
    max_perplexity: float | None = Field(
        None, gt=0, le=1e12, description="Highest KenLM perplexity; null: off."
    )
    max_perplexity_percentile: float | None = Field(
        None,
        gt=0,
        lt=100,
        description="Keep this best percentage of each language by perplexity, as CCNet's head; "
        "counted among documents that all other bounds keep; null: off.",
    )
    perplexity_bounds: dict[str, float] = Field(
        default_factory=dict,
        description="Stored limits by language in place of counted ones: an earlier run's metric "
        "perplexity_limits. Languages beside them are counted.",
    )
    perplexity_buckets: PerplexityBuckets | None = Field(
        None,
        description="Label documents head, middle or tail of their language by perplexity, as "
        "CCNet; counted among documents that the bounds before it keep; null: no labels.",
    )

    @field_validator("perplexity_bounds")
    @classmethod
    def _normalise_bounds(cls, bounds: dict[str, float]) -> dict[str, float]:
        normal = {policy_language(code): limit for code, limit in sorted(bounds.items())}
        if len(normal) < len(bounds):
            raise ValueError(f"perplexity_bounds names one language twice: {sorted(bounds)}")
        for code, limit in normal.items():
            if not 0 < limit < float("inf"):
                raise ValueError(f"perplexity_bounds.{code}={limit} must be a perplexity above 0")
        return normal

    @field_validator("languages")
    @classmethod
    def _normalise(cls, languages: dict[str, float]) -> dict[str, float]:
        normal = {policy_language(code): score for code, score in languages.items()}
        if len(normal) < len(languages):
            raise ValueError(f"languages names one language twice: {sorted(languages)}")
        for code, score in normal.items():
            if not 0 <= score <= 1:
                raise ValueError(f"languages.{code}={score} must lie in [0, 1]")
        return dict(sorted(normal.items()))

    @model_validator(mode="after")
    def _bounds_are_of_kept_languages(self) -> Self:
        """Refuse bounds that no document would meet: the language is removed before they apply."""
        cutoffs = self.perplexity_buckets.cutoffs if self.perplexity_buckets else {}
        for name, by_language in (
            ("thresholds_by_language", self.thresholds_by_language),
            ("perplexity_bounds", self.perplexity_bounds),
            ("perplexity_buckets.cutoffs", cutoffs),
        ):
            dropped = sorted(by_language.keys() - self.languages.keys()) if self.languages else []
            if dropped:
                raise ValueError(
                    f"{name}.{dropped[0]}: select removes {dropped[0]!r}, only "
                    f"{', '.join(self.languages)} are kept; add languages.{dropped[0]} with its "
                    f"lowest probability, or take {' and '.join(dropped)} out of {name}"
                )
        return self

    @model_validator(mode="after")
    def _nothing_is_given_in_vain(self) -> Self:
        if self.perplexity_bounds and self.max_perplexity_percentile is None:
            raise ValueError(
                "perplexity_bounds stand in place of counted limits, and max_perplexity_percentile "
                "is null: give it (0 to 100), or take perplexity_bounds out"
            )
        if self.short_text_score is not None and not self.short_text_words:
            raise ValueError(
                f"short_text_score={self.short_text_score:g} is for texts of fewer than "
                "short_text_words words, which is 0: give it, or take short_text_score out"
            )
        return self

    @model_validator(mode="after")
    def _ensemble_has_its_columns(self) -> Self:
        for column in self.ensemble.columns if self.ensemble else ():
            if column not in ENSEMBLE_COLUMNS:
                hint = did_you_mean(column, ENSEMBLE_COLUMNS)
                raise ValueError(f"ensemble.columns.{column}: no such score; {hint}")
            if column == BUCKET and self.perplexity_buckets is None:
                raise ValueError(f"ensemble.columns.{column} needs perplexity_buckets: {{}}")
        return self


@stage(version=4, kind="exact")
def select(
    out: Output[Documents], config: SelectConfig, documents: Documents, *, runtime: Runtime
) -> Documents:
    """Keep documents within all bounds; every other one goes to the ledger with its reasons.

    Raises:
        InputError: nothing is kept, or a bound has no signal to look at.
        ConfigError: a language that the documents' language model never says.
    """
    from lmpipe.curation.bounds import find_limits
    from lmpipe.curation.margins import nearest_of
    from lmpipe.curation.perplexity_buckets import joined

    config = in_models_terms(config, documents)
    limits = find_limits(documents, config)
    work = partial(_select, config=config, limits=limits)
    mapped = map_documents(out, documents, work, runtime)
    _report(out, mapped)
    mapped.require_kept(_nothing_kept(mapped))
    records = mapped.records
    margins = nearest_of((record.info["margins"] for record in records), MARGIN_SAMPLES)
    out.write_json("margins.json", margins)
    out.metric("perplexity_limits", limits.perplexity)
    out.metric("min_top_quality", limits.quality)
    out.metric("ensemble_edges", limits.edges)
    if config.ensemble is not None:
        bands = mapped.counter("bands")
        out.metric("ensemble_bands", {band: bands[band] for band in sorted(bands, key=int)})
    if config.perplexity_buckets is not None:
        out.metric("perplexity_cutoffs", {name: [*cuts] for name, cuts in limits.cutoffs.items()})
        out.metric("perplexity_buckets", joined(record.info["buckets"] for record in records))
    return mapped.finish()


def _select(part: StoredPart, *, config: SelectConfig, limits: "Limits") -> None:
    """Decide on one part; text is copied as it is."""
    import numpy as np
    import pyarrow as pa

    from lmpipe.curation.bounds import BAND, judge_all, ledger_rows
    from lmpipe.curation.margins import Margins
    from lmpipe.curation.perplexity_buckets import BucketCounts

    margins = Margins(MARGIN_SAMPLES)
    buckets, bands, broken = BucketCounts(), Counter[int](), Counter[str]()
    for batch in part.batches():
        verdicts = judge_all(batch, config, limits)
        keep = verdicts.keep
        removed = ledger_rows(batch, verdicts)
        margins.add(batch, verdicts)
        if BUCKET in verdicts.labels:
            labels = verdicts.labels[BUCKET].tolist()
            buckets.add(batch.column("language").to_pylist(), labels, keep.tolist())
        if BAND in verdicts.labels:
            found = verdicts.labels[BAND]
            bands.update(found[~np.isnan(found)].astype(int).tolist())
        broken.update(reason for row in removed for reason in row["reasons"])
        part.settle(batch, _labelled(batch, verdicts).filter(pa.array(keep)), removed)
    part.info["margins"] = margins.found
    part.info["buckets"] = buckets.counts
    part.info["bands"] = {str(band): count for band, count in bands.items()}
    part.info["broken"] = dict(broken)


def _labelled(batch: Any, verdicts: "Verdicts") -> Any:
    """Return a batch with the columns that its bounds made."""
    import pyarrow as pa

    from lmpipe.documents.schema import DOCUMENT_SCHEMA

    for name, values in verdicts.labels.items():
        field = DOCUMENT_SCHEMA.field(name)
        column = pa.array(values, from_pandas=True).cast(field.type)
        at = batch.schema.get_field_index(name)
        if at < 0:  # written before this column was known
            batch = batch.append_column(field, column)
        else:
            batch = batch.set_column(at, field, column)
    return batch


def _report(out: Output[Documents], mapped: MappedDocuments) -> None:
    first, broken = mapped.reasons, mapped.counter("broken")
    out.metric("removed", dict(sorted(first.items())))
    out.metric("broken", dict(sorted(broken.items())))
    out.table(
        "removed",
        [
            {"rule": rule, "removed first": first[rule], "broken": count}
            for rule, count in broken.most_common()
        ],
    )


def _nothing_kept(mapped: MappedDocuments) -> str:
    if not mapped.num_input:
        return "select got no documents; look at what the stage before removed"
    if mapped.num_kept:
        return ""
    rule, count = mapped.reasons.most_common(1)[0]
    return (
        f"select kept none of {mapped.num_input} documents. {rule} removed most: {count}. Loosen "
        "its bound in the recipe's `select`; `lmpipe whatif signals --set KEY=VALUE` shows what "
        "that would keep"
    )
