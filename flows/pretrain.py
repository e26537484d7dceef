"""Token shards to a base model."""

from functools import partial

from flows.checks import check_vocabulary
from flows.recipe import PipelineConfig
from flows.tokenize import Tokens, tokenize
from lmpipe.artifacts.types import Checkpoint
from tasks import training


def pretrain(recipe: PipelineConfig, tokens: Tokens | None = None) -> Checkpoint:
    """Pretrain the recipe's model; alone, it makes the tokens first."""
    tokens = tokens or tokenize(recipe)
    vocab_size = recipe.pretrain.model.vocab_size
    return training.pretrain(
        recipe.pretrain,
        tokens.shards,
        tokens.tokenizer,
        tokens.others,
        check=partial(check_vocabulary, "pretrain.model.vocab_size", vocab_size, recipe),
    )
