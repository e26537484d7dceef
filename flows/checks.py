"""What stages of one recipe ask of each other, looked at before the first of them runs.

A stage's config checks itself, and a stage checks its config against its runtime
(`@stage(check=…)`). What is left are settings of two stages that do not go together, and files of a
source that a stage cannot use: each is known when a run is planned, and would be found by a stage
hours later.
"""

from collections.abc import Sequence

from flows.recipe import PipelineConfig
from lmpipe.alignment.config import AlignmentConfig
from lmpipe.errors import ConfigError
from lmpipe.evaluation.evaluate import data_files

CHAT_MARKERS = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")
SHORTEST_PROMPT = 5  # tokens: the beginning, two markers, an end, and a question of one token


def check_bounds(recipe: PipelineConfig) -> None:
    """Refuse thresholds of select on scores for which the recipe brings in no model."""
    select, sources = recipe.select, recipe.sources
    columns = set(select.ensemble.columns) if select.ensemble else set()
    needed = {
        "max_perplexity": "perplexity_model",
        "max_perplexity_percentile": "perplexity_model",
        "perplexity_buckets": "perplexity_model",
        "max_toxicity": "toxicity_examples",
        "max_nsfw": "nsfw_examples",
        "max_adult_words": "block_lists",
    }
    by_column = {
        "kenlm_perplexity": "perplexity_model",
        "toxicity": "toxicity_examples",
        "nsfw": "nsfw_examples",
    }
    asked = {
        f"select.{key}": name for key, name in needed.items() if getattr(select, key) is not None
    }
    asked |= {f"select.ensemble.columns.{c}": by_column[c] for c in columns & by_column.keys()}
    for key, source in asked.items():
        if getattr(sources, source) is None:
            raise ConfigError(
                f"{key} needs sources.{source}, which is null: no document would have that score; "
                f"give sources.{source}, or take {key} out"
            )


def check_vocabulary(key: str, vocab_size: int, recipe: PipelineConfig) -> None:
    """Refuse a model with fewer tokens than the recipe's tokenizer makes."""
    if 0 < vocab_size < recipe.tokenizer.vocab_size:
        raise ConfigError(
            f"{key}={vocab_size} is smaller than tokenizer.vocab_size="
            f"{recipe.tokenizer.vocab_size}; use 0 to take the tokenizer's"
        )


def check_alignment(key: str, config: AlignmentConfig, recipe: PipelineConfig) -> None:
    """Refuse lengths that the model has no room for, and a tokenizer without the chat markers."""
    longest = recipe.pretrain.model.max_seq_len
    length = getattr(config, "sequence_length", 0)
    if length > longest:
        raise ConfigError(
            f"{key}.sequence_length={length} is more than pretrain.model.max_seq_len={longest}; "
            "use 0 to take the model's, or lower it"
        )
    if config.max_new_tokens + SHORTEST_PROMPT > longest:
        raise ConfigError(
            f"{key}.max_new_tokens={config.max_new_tokens} leaves no room for a prompt in "
            f"pretrain.model.max_seq_len={longest}; use at most {longest - SHORTEST_PROMPT}, less "
            "for longer prompts"
        )
    if missing := [name for name in CHAT_MARKERS if name not in recipe.tokenizer.specials]:
        raise ConfigError(
            f"{key} needs the chat markers, and tokenizer.specials lacks {', '.join(missing)}; "
            "add them"
        )


def one_file(name: str, files: Sequence[str]) -> None:
    """Refuse a source that has to be one file and is several."""
    if len(files) != 1:
        raise ConfigError(
            f"sources.{name} must be one model file, its paths give {len(files)}: "
            f"{', '.join(files[:5])}; name the one"
        )


def task_files(tasks: Sequence[str], files: Sequence[str]) -> None:
    """Refuse tasks of evaluate whose items are not among the benchmarks."""
    for task in tasks:
        for file in data_files(task).values():
            if file not in files:
                raise ConfigError(
                    f"evaluate.tasks: {task!r} reads {file!r}, which sources.benchmarks lacks (it "
                    f"has {', '.join(sorted(files)[:12])}); add the file to the source, or take "
                    f"{task!r} out of evaluate.tasks"
                )
