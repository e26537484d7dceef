"""What counts as a duplicate of a document."""

from typing import Literal

from pydantic import Field

from lmpipe.artifacts.stage import StageConfig


class DedupConfig(StageConfig):
    """What counts as a duplicate, and when to raise the alarm."""

    ngram: int = Field(5, ge=1, le=64, description="Words in a shingle.")
    bands: int = Field(
        14, ge=0, le=256, description="Bands of a signature; 0 removes equal documents only."
    )
    rows: int = Field(8, ge=1, le=64, description="Minima in a band; all must agree to meet.")
    verify: bool = Field(
        True, description="Compare documents that met by their n-grams; else by their minima."
    )
    min_similarity: float = Field(
        0.7,
        ge=0,
        le=1,
        description="Documents that met go if they are that similar (Jaccard) to a kept one; 0 "
        "trusts the bands alone, as FineWeb does, chains included.",
    )
    min_containment: float = Field(
        0.95,
        gt=0,
        le=1,
        description="They also go if a kept one holds this share of their n-grams (verify only).",
    )
    keep: Literal["longest", "best_quality", "earliest"] = Field(
        "longest", description="Which document of a set stays, before length and id decide."
    )
    same_url: bool = Field(
        False, description="Documents of one normalised address are duplicates, whatever they say."
    )
    max_keepers: int = Field(
        1024,
        ge=1,
        le=1_000_000,
        description="With how many kept documents of its cluster a document is compared at most.",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the hash functions.")
    alarm_cluster_size: int = Field(
        1000, ge=2, description="Warn of clusters that are larger: a template met itself."
    )
    alarm_host_fraction: float = Field(
        0.95, gt=0, le=1, description="Warn of hosts that lose a larger share of their documents."
    )
    alarm_host_documents: int = Field(
        20, ge=1, description="Smaller hosts raise no alarm of their own."
    )
    stop_on_alarm: bool = Field(False, description="Fail instead of warning.")
