"""What signals computes, and how a quality classifier is trained."""

from typing import Self

from pydantic import Field, model_validator

from lmpipe.artifacts.stage import StageConfig
from lmpipe.curation.quality.rules import LanguageThresholds, Thresholds


class SignalsConfig(StageConfig):
    """What is computed for which documents."""

    language_sample_characters: int = Field(
        400,
        ge=30,
        le=1_000_000,
        description="How much of a document's body is looked at first for its language.",
    )
    language_more_characters: int = Field(
        10_000, ge=30, le=1_000_000, description="How much where shorter looks leave doubt."
    )
    language_certain: float = Field(
        0.5, ge=0, le=1, description="Probability from which one look at the language is enough."
    )
    gate: Thresholds | None = Field(
        None,
        description="Documents that break one of these rules get no costly scores (classifiers, "
        "perplexity); null: all get them. Use select's own thresholds or looser ones.",
    )
    gate_by_language: LanguageThresholds = Field(
        default_factory=dict,
        description="What differs in the gate by language, as select's thresholds_by_language.",
    )

    @model_validator(mode="after")
    def _there_is_a_gate(self) -> Self:
        if self.gate_by_language and self.gate is None:
            raise ValueError(
                f"gate_by_language names {sorted(self.gate_by_language)}, and gate is null: nothing"
                " is gated; give gate: {} for the published bounds, or take gate_by_language out"
            )
        return self


class QualityClassifierConfig(StageConfig):
    """How the classifier is trained."""

    positive_label: str = Field(
        "positive", min_length=1, description="The label of examples to keep; all others are bad."
    )
    label_field: str = Field(
        "label", min_length=1, description="The examples' field that holds the label."
    )
    rename_labels: dict[str, str] = Field(
        default_factory=dict,
        description="Other names for labels, such as {hate: toxic, offensive: toxic}: several "
        "become one.",
    )
    dimensions: int = Field(16, ge=1, le=1024, description="Size of a word's vector.")
    buckets: int = Field(
        100_000, ge=1_000, le=50_000_000, description="Hash buckets of word bigrams."
    )
    word_ngrams: int = Field(2, ge=1, le=5, description="Longest run of words that is a feature.")
    min_count: int = Field(2, ge=1, le=1000, description="Rarer words are left out.")
    epochs: int = Field(15, ge=1, le=1000, description="Passes over the examples.")
    learning_rate: float = Field(0.5, gt=0, le=5, description="Initial learning rate.")
    held_out_fraction: float = Field(
        0.1, ge=0, le=0.5, description="Examples kept for the report, chosen by a hash of the text."
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Seed of the initial weights.")


class ToxicityClassifierConfig(QualityClassifierConfig):
    """The same, for labelled posts."""

    positive_label: str = Field("toxic", min_length=1, description="The label of toxic examples.")


class NsfwClassifierConfig(QualityClassifierConfig):
    """The same, for what is not safe for work."""

    positive_label: str = Field("nsfw", min_length=1, description="The label of unsafe examples.")
