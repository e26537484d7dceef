"""A scaling sweep: a few small models, one fitted law, one prediction, and a page about them."""

from functools import partial

from flows.checks import check_vocabulary
from flows.curate import curate
from flows.recipe import PipelineConfig
from flows.tokenize import tokenize
from lmpipe.artifacts.types import Report
from tasks import training
from tasks.evaluation import report


def scale(recipe: PipelineConfig) -> Report:
    """Make the tokens, run the recipe's sweep on them, and report."""
    curated = curate(recipe)
    tokens = tokenize(recipe, curated)
    vocab_size = recipe.scale.model.vocab_size
    check = partial(check_vocabulary, "scale.model.vocab_size", vocab_size, recipe)
    fit = training.scale(recipe.scale, tokens.shards, tokens.tokenizer, check=check)
    command = f"{recipe.report.recipe} --flow scale"  # what the page says repeats it
    page = recipe.report.model_copy(update={"recipe": command})
    return report(page, [*curated.stages, tokens.tokenizer, tokens.shards, fit])
