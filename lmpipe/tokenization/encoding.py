"""Encode and decode with a trained tokenizer: single texts through tiktoken, documents compiled.

tiktoken and not `tokenizers` for single texts, because it encodes two to five times as fast on a
thread; the ids are equal, and both files lie in the artifact. Whole buffers of documents go through
`bulk_encoding.BufferEncoder`, where a published pattern cuts them, and give the same ids again.
"""

import base64
import json
import re
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from lmpipe.artifacts.types import Artifact
from lmpipe.errors import ConfigError, InputError
from lmpipe.tokenization.patterns import recognise

if TYPE_CHECKING:
    from lmpipe.tokenization.bulk_encoding import BufferEncoder

RANKS = "ranks.tiktoken"
_NOTHING: frozenset[str] = frozenset()

# tiktoken 0.14 panics (stack overflow in its regular expressions) on a run of white space somewhere
# between 100,000 and 1,000,000 characters; such texts are cut by the module `regex` instead
LONG_RUN = 50_000


class Encoding:
    """A tokenizer, ready to use.

    Text never becomes a special token, whatever it spells: specials are put in by id, with
    `special`.

    Args:
        ranks: the bytes of every ordinary token, and its id.
        pattern: the regular expression that cuts text into pre-tokens.
        specials: special tokens and their ids; the first ends documents.
    """

    def __init__(self, ranks: dict[bytes, int], pattern: str, specials: dict[str, int]) -> None:
        self.pattern = pattern
        self.specials = specials
        self.vocab_size = len(ranks) + len(specials)
        self._ranks = ranks

    @cached_property
    def tiktoken(self) -> Any:
        """tiktoken's own encoder; the first use compiles its expressions."""
        import tiktoken

        return tiktoken.Encoding(
            "lmpipe",
            pat_str=self.pattern,
            mergeable_ranks=self._ranks,
            special_tokens=self.specials,
            explicit_n_vocab=self.vocab_size,
        )

    def buffer_encoder(self) -> "BufferEncoder | None":
        """Return a compiled encoder that ends documents with EOS; None for a custom pattern."""
        from lmpipe.tokenization.bulk_encoding import BufferEncoder

        rules = recognise(self.pattern)
        return BufferEncoder(self._ranks, *rules, self.eos) if rules else None

    @classmethod
    def load(cls, source: Artifact | Path) -> Self:
        """Load from a Tokenizer artifact, or from a folder that holds its files."""
        if isinstance(source, Artifact):
            meta, data = source.read_bytes("meta.json"), source.read_bytes(RANKS)
        else:
            meta = (source / "meta.json").read_bytes()
            data = (source / RANKS).read_bytes()
        settings = json.loads(meta)
        return cls(parse_ranks(data), settings["pattern"], settings["specials"])

    @property
    def eos(self) -> int:
        """The token that ends every document; it begins and pads sequences too."""
        return next(iter(self.specials.values()))

    def special(self, name: str) -> int:
        """Return the id of a special token."""
        if name not in self.specials:
            raise ConfigError(
                f"the tokenizer has no special token {name!r}; it has {', '.join(self.specials)}"
            )
        return self.specials[name]

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode text, all of it as ordinary text."""
        if self._has_long_run(text):
            return self._encode_by_pre_tokens(text)
        return cast(list[int], self._guarded(self.tiktoken.encode_ordinary, text))

    def encode_numpy(self, text: str) -> NDArray[np.uint32]:
        """Encode text into an array, without a Python integer per token."""
        if self._has_long_run(text):
            return np.array(self._encode_by_pre_tokens(text), np.uint32)
        encode = partial(
            self.tiktoken.encode_to_numpy, allowed_special=_NOTHING, disallowed_special=()
        )
        return cast(NDArray[np.uint32], self._guarded(encode, text))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def decode_bytes(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes of tokens, special tokens as they are spelled."""
        return bytes(self.tiktoken.decode_bytes(list(tokens)))

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token."""
        return bytes(self.tiktoken.decode_single_token_bytes(token))

    def _has_long_run(self, text: str) -> bool:
        return len(text) >= LONG_RUN and re.search(rf"\s{{{LONG_RUN}}}", text) is not None

    def _encode_by_pre_tokens(self, text: str) -> list[int]:
        import regex

        # this module's own \s differs from tiktoken's by \x1c to \x1f
        pattern = self.pattern.replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}")
        encode = self.tiktoken._core_bpe.encode_single_piece
        pre_tokens = (match.group().encode() for match in regex.finditer(pattern, text))
        return [token for pre_token in pre_tokens for token in encode(pre_token)]

    def _guarded(self, encode: Any, text: str) -> Any:
        """Turn tiktoken's failures into an InputError; no `except Exception` catches its panic."""
        try:
            return encode(text)
        except BaseException as error:
            if type(error).__name__ != "PanicException" and not isinstance(error, ValueError):
                raise
            raise InputError(
                f"tiktoken cannot encode a text of {len(text)} characters that begins "
                f"{text[:60]!r} ({error}); remove the document, or choose a simpler pattern"
            ) from error


def text_bytes_of_tokens(tokenizer: Artifact) -> list[int] | None:
    """Return how many bytes of text each token stands for; special tokens stand for none.

    None if the artifact has no ranks.tiktoken, as one that another tool wrote may not.
    """
    if RANKS not in tokenizer.names():
        return None
    sizes = [0] * int(tokenizer.read_json("meta.json")["vocab_size"])
    for token, rank in parse_ranks(tokenizer.read_bytes(RANKS)).items():
        sizes[rank] = len(token)
    return sizes


def parse_ranks(data: bytes) -> dict[bytes, int]:
    """Read tiktoken's file format: base64 of the token, its rank."""
    pairs = (line.split() for line in data.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def format_ranks(ranks: dict[bytes, int]) -> bytes:
    """Write tiktoken's file format."""
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items())
    return b"".join(lines)
