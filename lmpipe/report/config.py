"""What a report is told."""

from __future__ import annotations

from pydantic import Field

from lmpipe.artifacts.stage import StageConfig


class ReportConfig(StageConfig):
    """What the page is called and how much it quotes."""

    title: str = Field(
        "lmpipe run", min_length=1, max_length=200, description="Heading of the page."
    )
    recipe: str = Field(
        "demo", max_length=400, description="Recipe named in the commands that repeat the run."
    )
    samples_per_reason: int = Field(
        3, ge=0, le=50, description="Removed documents quoted for each reason."
    )
    kept_samples: int = Field(6, ge=0, le=100, description="Kept documents quoted.")
    failed: tuple[str, ...] = Field(
        (), description="Steps that failed or were not run, and why; a run fills it in."
    )
