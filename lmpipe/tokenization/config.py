"""What a vocabulary is trained to be, and how it is measured."""

from typing import Self

from pydantic import Field, model_validator

from lmpipe.artifacts.stage import StageConfig
from lmpipe.errors import ConfigError
from lmpipe.tokenization.patterns import PatternName, pattern_regex


class TokenizerConfig(StageConfig):
    """What vocabulary to learn."""

    vocab_size: int = Field(
        32_768, ge=1, le=1 << 20, description="Tokens in all: 256 bytes, merges and specials."
    )
    pattern: PatternName = Field(
        "cl100k", description="How text is cut into pre-tokens that no token crosses."
    )
    custom_pattern: str = Field(
        "", description="The regular expression of pattern=custom (module `regex`)."
    )
    digits: int = Field(
        0, ge=0, le=16, description="Most digits in a pre-token; 0: as the pattern was published."
    )
    min_frequency: int = Field(
        2, ge=1, le=1 << 40, description="Pairs that occur less often are never merged."
    )
    specials: tuple[str, ...] = Field(
        ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"),
        min_length=1,
        description="Special tokens; the first ends documents.",
    )
    max_piece_bytes: int = Field(
        128,
        ge=4,
        le=4096,
        description="Longer pre-tokens are counted in parts in training, which bounds the length "
        "of a token, and the cost of scripts without spaces.",
    )
    max_training_bytes: int = Field(
        1 << 29,
        ge=1,
        description="More text than this is sampled by document id, which bounds memory.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        smallest = 256 + len(self.specials)
        if self.vocab_size < smallest:
            raise ConfigError(
                f"vocab_size={self.vocab_size} must be at least {smallest}: 256 bytes and "
                f"{len(self.specials)} specials; raise vocab_size, or name fewer specials"
            )
        for name in self.specials:
            if not name or self.specials.count(name) > 1:
                raise ConfigError(
                    f"specials={list(self.specials)} must be distinct and not empty: take "
                    f"{name!r} out, or spell it otherwise"
                )
        pattern_regex(self.pattern, self.digits, self.custom_pattern)
        return self

    @property
    def num_merges(self) -> int:
        """How many merges fill the vocabulary."""
        return self.vocab_size - 256 - len(self.specials)


class VocabularyConfig(StageConfig):
    """What is measured, and on how much text."""

    sizes: tuple[int, ...] = Field(
        (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536),
        min_length=1,
        max_length=32,
        description="Vocabularies that are compared, specials included; those that the text cannot "
        "fill are left out.",
    )
    held_out_bytes: int = Field(
        1 << 19, ge=1, le=1 << 32, description="Held-out text of each language that is encoded."
    )
    training_bytes: int = Field(
        1 << 26, ge=1, description="Text that the compared vocabularies learn from, a sample."
    )
    counted_tokens: int = Field(
        1 << 26, ge=1, description="Training tokens in which uses of each token are counted."
    )
