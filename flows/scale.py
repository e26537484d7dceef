"""A scaling sweep: a few small models, one fitted law, one prediction."""

from flows.recipe import PipelineConfig
from flows.tokenize import Tokens, tokenize
from lmpipe.artifacts.types import ScalingFit
from tasks import training


def scale(recipe: PipelineConfig, tokens: Tokens | None = None) -> ScalingFit:
    """Run the recipe's sweep; alone, it makes the tokens first."""
    tokens = tokens or tokenize(recipe)
    return training.scale(recipe.scale, tokens.shards, tokens.tokenizer)
