"""What counts as a repeated passage."""

from typing import Literal

from pydantic import Field

from lmpipe.artifacts.stage import StageConfig


class DedupPassagesConfig(StageConfig):
    """What a passage is, and what becomes of a document that lost some."""

    unit: Literal["paragraph", "sentences", "document"] = Field(
        "paragraph",
        description="A passage is a line (CCNet), a run of sentences (C4), or a whole document.",
    )
    num_sentences: int = Field(
        3, ge=1, le=64, description="Sentences of a passage, where the unit is sentences."
    )
    min_passage_words: int = Field(
        8,
        ge=1,
        le=10_000,
        description="Passages of fewer words stay: language, code and tables repeat them by "
        "chance.",
    )
    min_remaining_words: int = Field(
        20, ge=0, le=1_000_000, description="A cut document with fewer words left is removed."
    )
    min_remaining_fraction: float = Field(
        0.0, ge=0, le=1, description="So is one with a smaller share of its words left."
    )
    bloom_memory_mb: int = Field(
        0,
        ge=0,
        le=2**20,
        description="Memory of a Bloom filter in place of the exact join; 0: the join, which alone "
        "knows whose passage it was.",
    )
    bloom_false_positive_fraction: float = Field(
        0.001,
        gt=0,
        lt=1,
        description="Share of new passages that the full Bloom filter takes for repeats.",
    )

    @property
    def length(self) -> int:
        """Segments of a passage."""
        return self.num_sentences if self.unit == "sentences" else 1
