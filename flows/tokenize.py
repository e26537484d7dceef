"""Clean documents to a tokenizer and token shards."""

from typing import NamedTuple

from flows.curate import Curated, benchmarks, bring_in, curate
from flows.recipe import PipelineConfig
from lmpipe.artifacts.types import Tokenizer, TokenShards
from tasks.curation import decontaminate, mask
from tasks.sources import import_documents
from tasks.tokenization import shards, tokenizer


class Tokens(NamedTuple):
    """Token shards, the tokenizer that made them, and the other token sets of a mixture."""

    shards: TokenShards
    tokenizer: Tokenizer
    others: list[TokenShards]


def tokenize(recipe: PipelineConfig, curated: Curated | None = None) -> Tokens:
    """Train the tokenizer and encode the documents; alone, it curates first."""
    documents = (curated or curate(recipe)).documents
    trained = tokenizer(recipe.tokenizer, documents)
    own = shards(recipe.shards, documents, trained)
    others = [_token_set(recipe, name, trained) for name in recipe.mixed_in]
    return Tokens(own, trained, others)


def _token_set(recipe: PipelineConfig, name: str, trained: Tokenizer) -> TokenShards:
    """Bring a source of a mixture in: not filtered, but searched for evaluation items."""
    files = bring_in(recipe, f"mixture-{name}", recipe.sources.mixture[name])
    documents = import_documents(recipe.import_documents, files, label=name)
    documents = decontaminate(recipe.decontaminate, documents, benchmarks(recipe), label=name)
    if recipe.mask is not None:
        documents = mask(recipe.mask, documents, label=name)
    return shards(recipe.shards, documents, trained, label=name)
