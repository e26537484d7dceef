"""WARC files to clean documents: extract, measure, select, deduplicate, decontaminate, mask."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from flows.checks import check_bounds, one_file
from flows.pins import pin_source
from flows.recipe import PipelineConfig
from lmpipe.artifacts.source import SourceSpec
from lmpipe.artifacts.types import Artifact, Documents, Model, Source
from tasks.curation import (
    decontaminate,
    dedup,
    dedup_passages,
    extract,
    mask,
    quality_classifier,
    resample,
    select,
    signals,
)
from tasks.sources import import_documents, source


class Curated(NamedTuple):
    """Clean documents, and what was made on the way."""

    documents: Documents
    stages: list[Artifact]


def curate(recipe: PipelineConfig) -> Curated:
    """Turn a recipe's crawl into clean documents."""
    origin, documents = _raw_documents(recipe)
    language_model = bring_in(recipe, "language_model", recipe.sources.language_model, one_file)
    examples = bring_in(recipe, "quality_examples", recipe.sources.quality_examples)
    quality = quality_classifier(recipe.quality_classifier, examples)
    toxicity, nsfw = _classifier(recipe, "toxicity"), _classifier(recipe, "nsfw")
    measured = signals(
        recipe.signals,
        documents,
        language_model,
        quality,
        optional(recipe, "perplexity_model"),
        toxicity,
        nsfw,
        optional(recipe, "block_lists"),
    )
    selected = select(recipe.select, measured, check=partial(check_bounds, recipe))
    unique = dedup(recipe.dedup, selected, _earlier_crawls(recipe))
    classifiers = [model for model in (quality, toxicity, nsfw) if model is not None]
    stages: list[Artifact] = [origin, documents, *classifiers, measured, selected, unique]
    if recipe.dedup_passages is not None:
        unique = dedup_passages(recipe.dedup_passages, unique)
        stages.append(unique)
    target = optional(recipe, "resample_target")
    if target is not None:
        unique = resample(recipe.resample, unique, target)
        stages.append(unique)
    clean = decontaminate(recipe.decontaminate, unique, benchmarks(recipe))
    stages.append(clean)
    if recipe.mask is not None:
        clean = mask(recipe.mask, clean)
        stages.append(clean)
    return Curated(clean, stages)


def _raw_documents(recipe: PipelineConfig) -> tuple[Source, Documents]:
    """Return where the documents come from, and the documents: extracted or imported."""
    if recipe.sources.crawl is not None:
        crawl = bring_in(recipe, "crawl", recipe.sources.crawl)
        return crawl, extract(recipe.extract, crawl)
    assert recipe.sources.documents is not None, "the recipe was checked"
    files = bring_in(recipe, "documents", recipe.sources.documents)
    return files, import_documents(recipe.import_documents, files)


def _earlier_crawls(recipe: PipelineConfig) -> list[Documents]:
    """Return the crawls that a new one must not repeat."""
    if not recipe.dedup_index:
        return []
    from lmpipe.curation.dedup.index import open_index

    return open_index(recipe.settings().store, recipe.dedup_index)


def _classifier(recipe: PipelineConfig, name: str) -> Model | None:
    """Return the classifier of a kind whose labelled examples the recipe gives."""
    examples = optional(recipe, f"{name}_examples")
    if examples is None:
        return None
    return quality_classifier(getattr(recipe, f"{name}_classifier"), examples, label=name)


def optional(recipe: PipelineConfig, name: str) -> Source | None:
    """Return a source that a recipe may leave out."""
    spec = getattr(recipe.sources, name)
    return bring_in(recipe, name, spec) if spec else None


def benchmarks(recipe: PipelineConfig) -> Source:
    """Return the recipe's eval items."""
    return bring_in(recipe, "benchmarks", recipe.sources.benchmarks)


def bring_in(
    recipe: PipelineConfig,
    name: str,
    spec: SourceSpec,
    check: Callable[[str, list[str]], None] | None = None,
) -> Source:
    """Return a source, its files pinned as they are now, or were if they are away.

    Args:
        check: takes the source's and the files' names; raises what its reader would.
    """
    pinned = pin_source(recipe, name, spec)
    if check is not None:
        check(name, [file.name for file in pinned.config.files])
    return source.pinned(pinned)
