"""The thresholds of select, and the draw of resample."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from lmpipe.artifacts.stage import StageConfig
from lmpipe.curation.quality.language import policy_language
from lmpipe.curation.quality.rules import RULES, LanguageThresholds, Thresholds
from lmpipe.curation.selection.perplexity_buckets import COLUMN as BUCKET
from lmpipe.curation.selection.perplexity_buckets import PerplexityBuckets
from lmpipe.curation.selection.sampling import Ensemble
from lmpipe.errors import did_you_mean

LEARNED = ("quality_score", "kenlm_perplexity", "toxicity", "nsfw")


ENSEMBLE_COLUMNS = sorted(
    {*LEARNED, *(rule.column for rule in RULES), "num_words", "num_adult_words", BUCKET}
)


class SelectConfig(StageConfig):
    """Thresholds on the signals; a threshold that is null removes nothing."""

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
        Thresholds(), description="Thresholds of the Gopher, C4 and FineWeb rules."
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
        description="Keep this share by quality score, counted among documents that the thresholds "
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
        "counted among documents that all other thresholds keep; null: off.",
    )
    perplexity_bounds: dict[str, float] = Field(
        default_factory=dict,
        description="Stored thresholds by language in place of counted ones: an earlier run's "
        "metric perplexity_limits. Languages beside them are counted.",
    )
    perplexity_buckets: PerplexityBuckets | None = Field(
        None,
        description="Label documents head, middle or tail of their language by perplexity, as "
        "CCNet; counted among documents that the thresholds before it keep; null: no labels.",
    )

    @field_validator("perplexity_bounds")
    @classmethod
    def _normalise_perplexities(cls, thresholds: dict[str, float]) -> dict[str, float]:
        normal = {
            policy_language(code): threshold for code, threshold in sorted(thresholds.items())
        }
        if len(normal) < len(thresholds):
            raise ValueError(f"perplexity_bounds names one language twice: {sorted(thresholds)}")
        for code, threshold in normal.items():
            if not 0 < threshold < float("inf"):
                raise ValueError(
                    f"perplexity_bounds.{code}={threshold} must be a perplexity above 0"
                )
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
    def _thresholds_are_of_kept_languages(self) -> Self:
        """Refuse thresholds that no document meets: its language is removed before they apply."""
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
                "perplexity_bounds stand in place of counted ones, and max_perplexity_percentile "
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


class ResampleConfig(StageConfig):
    """How many documents are drawn, and by what."""

    kept_fraction: float = Field(0.5, gt=0, le=1, description="Share of documents that is drawn.")
    num_buckets: int = Field(
        10_000, ge=16, le=10_000_000, description="Buckets that words and word pairs hash into."
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Of the draw by hash(seed, id).")
