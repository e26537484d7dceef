"""Clean documents to a tokenizer and token shards."""

from typing import NamedTuple

from flows.curate import Curated, curate
from flows.recipe import PipelineConfig
from lmpipe.artifacts.types import Tokenizer, TokenShards
from tasks.tokenization import shards, tokenizer


class Tokens(NamedTuple):
    """Token shards and the tokenizer that made them."""

    shards: TokenShards
    tokenizer: Tokenizer


def tokenize(recipe: PipelineConfig, curated: Curated | None = None) -> Tokens:
    """Train the tokenizer and encode the documents; alone, it curates first."""
    documents = (curated or curate(recipe)).documents
    trained = tokenizer(recipe.tokenizer, documents)
    return Tokens(shards(recipe.shards, documents, trained), trained)
