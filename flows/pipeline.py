"""The whole DAG on one screen: raw crawl in, an aligned and evaluated model and a report out."""

from flows.align import align
from flows.curate import curate
from flows.evaluate import evaluate
from flows.recipe import PipelineConfig
from flows.tokenize import tokenize
from lmpipe.artifacts.types import Report
from tasks import training
from tasks.evaluation import report


def pipeline(recipe: PipelineConfig) -> Report:
    """Run a recipe from WARC files to the report."""
    curated = curate(recipe)
    tokens = tokenize(recipe, curated)
    base = training.pretrain(recipe.pretrain, tokens.shards, tokens.tokenizer, tokens.others)
    aligned = align(recipe, base)
    scores = evaluate(recipe, [base, *aligned])
    artifacts = [*curated.stages, tokens.tokenizer, tokens.shards, base, *aligned, *scores]
    return report(recipe.report, artifacts)
