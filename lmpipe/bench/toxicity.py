"""`lmpipe bench toxicity`: the classifier stage on labelled posts, on a held-out split.

Hate and offensive posts against neither; the split is by a hash of the text, as in the stage.
"""

import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lmpipe.artifacts.build import build
from lmpipe.artifacts.source import SourceSpec, pin, source
from lmpipe.artifacts.store import Store
from lmpipe.bench import Row, row
from lmpipe.curation.quality.config import QualityClassifierConfig
from lmpipe.curation.quality.quality_classifier import quality_classifier
from lmpipe.runtime import Runtime


class Options(BaseModel):
    """Which examples."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    examples: str = Field(description="JSONL (.gz) of {text, class}.")
    label_field: str = Field("class", description="The field that holds the label.")
    rename_labels: dict[str, str] = Field(
        {"hate": "toxic", "offensive": "toxic"}, description="Labels that become one."
    )
    held_out_fraction: float = Field(0.2, gt=0, le=0.5, description="Share that is held out.")


def run(options: dict[str, Any]) -> list[Row]:
    """Return the held-out report as rows."""
    settings = Options.model_validate(options)
    config = QualityClassifierConfig(
        positive_label="toxic",
        label_field=settings.label_field,
        rename_labels=settings.rename_labels,
        held_out_fraction=settings.held_out_fraction,
    )
    with tempfile.TemporaryDirectory(prefix="lmpipe-bench-") as folder:
        store = Store(Path(folder).as_uri())
        pinned = pin("toxicity", SourceSpec(paths=(settings.examples,)), Path())
        runtime = Runtime(locations=pinned.locations)
        examples = build(source, pinned.config, {}, store=store, runtime=runtime)
        model = build(
            quality_classifier, config, {"examples": examples}, store=store, runtime=Runtime()
        )
        report = model.metrics["held_out"]
    case = f"held out {report['examples']} of {report['examples'] + model.metrics['examples']}"
    return [
        row("toxicity", "lmpipe", case, name, float(value), "of 1")
        for name, value in report.items()
        if isinstance(value, float)
    ]
