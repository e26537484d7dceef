"""Put the sections together, in the order in which a reader asks."""

from __future__ import annotations

from collections.abc import Sequence

from lmpipe.artifacts.types import Artifact
from lmpipe.report.blocks import Page
from lmpipe.report.config import ReportConfig
from lmpipe.report.read import Run, moment
from lmpipe.report.sections import (
    accounts,
    classifiers,
    contamination,
    data,
    evals,
    glance,
    passages,
    scaling,
    training,
    vocabulary,
)


def make_page(config: ReportConfig, artifacts: Sequence[Artifact]) -> Page:
    """Describe a run."""
    run = Run(artifacts)
    sections = [
        *accounts.failures(config.failed),
        glance.section(run),
        data.funnel(run),
        classifiers.section(run),
        vocabulary.section(run),
        *training.sections(run),
        evals.section(run),
        scaling.section(run),
        contamination.section(run),
        passages.section(run),
        data.removed(run, config.samples_per_reason),
        data.margins(run),
        data.kept(run, config.kept_samples),
        accounts.cost(run),
        accounts.reproduce(run, config.recipe),
        accounts.lineage(run),
    ]
    return Page(config.title, _subtitle(run, config.recipe), sections)


def _subtitle(run: Run, recipe: str) -> str:
    recipe = recipe.partition(" ")[0]
    if not run.artifacts:
        return f"recipe {recipe}, no artifacts"
    made = [a.manifest.provenance for a in run.artifacts]
    last = max(moment(m.finished) for m in made)
    commit = next((m.git_commit[:10] for m in reversed(made) if m.git_commit), "")
    hosts = sorted({m.host for m in made})
    parts = [f"recipe {recipe}", f"finished {last:%Y-%m-%d %H:%M} UTC", ", ".join(hosts)]
    return " · ".join([*parts, f"commit {commit}"] if commit else parts)
