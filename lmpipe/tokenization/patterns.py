r"""Pre-tokenisation: how text is cut into pre-tokens that no merge crosses.

The patterns are those published with GPT-2 and with tiktoken's cl100k_base and o200k_base, with the
number of digits in a pre-token as an option. Training cuts with a compiled scanner of the same
language (`pre_tokens.py`); encoders run the regular expression itself. A custom pattern is cut by
the module `regex`, some 30 times slower.

\s stands for Unicode's White_Space, as in tiktoken and in tokenizers, without \x1c … \x1f.
"""

from typing import Literal, cast

from lmpipe.errors import ConfigError

PatternName = Literal["gpt2", "cl100k", "o200k", "custom"]

_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}%s| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CL100K = (
    _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    + r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PUBLISHED: dict[str, tuple[str, str]] = {
    "gpt2": (_GPT2, "+"),
    "cl100k": (_CL100K, "{1,3}"),
    "o200k": (_O200K, "{1,3}"),
}
FAMILIES: dict[str, int] = {"gpt2": 0, "cl100k": 1, "o200k": 2}


def pattern_regex(name: PatternName, digits: int, custom: str = "") -> str:
    """Return the regular expression of a pattern.

    Args:
        digits: the most digits in a pre-token; 0 is what the pattern was published with.
        custom: the expression when the name is "custom".
    """
    if name == "custom":
        if digits:
            raise ConfigError(
                f"digits={digits} has no meaning for a custom pattern: write it into custom_pattern"
            )
        _check_custom(custom)
        # what the expression leaves out is a pre-token by the character: encoding loses no text
        return rf"{custom}|[\s\S]"
    template, published = _PUBLISHED[name]
    return template % (f"{{1,{digits}}}" if digits else published)


def recognise(pattern: str) -> tuple[int, int] | None:
    """Return family and most digits of a published pattern, as the compiled scanner takes them."""
    for name in FAMILIES:
        for digits in range(17):
            if pattern_regex(cast(PatternName, name), digits) == pattern:
                return FAMILIES[name], max_digits(cast(PatternName, name), digits)
    return None


def max_digits(name: PatternName, digits: int) -> int:
    """Return the most digits in a pre-token; without a limit, a number too large to matter."""
    return digits or {"gpt2": 2**31, "cl100k": 3, "o200k": 3}[name]


def _check_custom(pattern: str) -> None:
    import regex

    if not pattern:
        raise ConfigError("pattern=custom needs a regular expression in custom_pattern")
    try:
        empty = regex.match(pattern, "") is not None
    except regex.error as error:
        raise ConfigError(
            f"custom_pattern={pattern!r} is no regular expression: {error}"
        ) from error
    if empty:
        raise ConfigError(f"custom_pattern={pattern!r} matches the empty string; use + for *")
