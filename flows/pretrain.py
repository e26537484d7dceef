"""Token shards to a base model."""

from flows.recipe import PipelineConfig
from flows.tokenize import Tokens, tokenize
from lmpipe.artifacts.types import Checkpoint
from tasks import training


def pretrain(recipe: PipelineConfig, tokens: Tokens | None = None) -> Checkpoint:
    """Pretrain the recipe's model; alone, it makes the tokens first."""
    tokens = tokens or tokenize(recipe)
    return training.pretrain(recipe.pretrain, tokens.shards, tokens.tokenizer, tokens.others)
