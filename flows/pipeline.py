"""The whole DAG on one screen: raw crawl in, an aligned and evaluated model and a report out."""

from flows.align import align
from flows.curate import curate, optional
from flows.evaluate import evaluate
from flows.pretrain import pretrain
from flows.recipe import PipelineConfig
from flows.tokenize import tokenize
from lmpipe.artifacts.types import Report
from tasks.evaluation import report
from tasks.tokenization import vocabulary


def pipeline(recipe: PipelineConfig) -> Report:
    """Run a recipe from WARC files to the report."""
    curated = curate(recipe)
    tokens = tokenize(recipe, curated)
    documents, gpt2 = curated.documents, optional(recipe, "gpt2")
    measured = vocabulary(recipe.vocabulary, documents, tokens.tokenizer, tokens.shards, gpt2)
    base = pretrain(recipe, tokens)
    aligned = align(recipe, base)
    scores = evaluate(recipe, [base, *aligned])
    artifacts = [*curated.stages, tokens.tokenizer, tokens.shards, measured]
    return report(recipe.report, [*artifacts, base, *aligned, *scores])
