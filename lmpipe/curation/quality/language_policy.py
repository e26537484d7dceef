"""What a recipe says of languages, in the codes that its language model says.

Models differ: lid.176 knows Norwegian as `no`, GlotLID as `nob` and `nno`. A recipe may use any of
them. A code that the model never says, and that stands for no other of its codes, is refused:
every document of that language is under another name, or none, and would be removed in silence.
"""

from collections.abc import Collection, Mapping
from typing import TypeVar

from lmpipe.errors import ConfigError

FILE = "languages.json"  # the codes that the model of a signals artifact can say
# ISO 639-3's macrolanguages with the members that models tell apart
_MACROLANGUAGES = {"ak": ("fat", "tw"), "no": ("nb", "nn"), "sh": ("bs", "hr", "sr")}
_SAME = {"gsw": "als"}  # ISO's Alemannic under lid.176's name

T = TypeVar("T")


def by_models_codes(
    by_language: Mapping[str, T], known: Collection[str], where: str
) -> dict[str, T]:
    """Return what is said by language under the codes that a model says.

    Args:
        by_language: what a recipe says, by code.
        known: the model's codes.
        where: the recipe's key, for errors.

    Raises:
        ConfigError: the model never says a language, or two codes are one language to it.
    """
    found: dict[str, T] = {}
    for code, value in by_language.items():
        names = said_as(code, known)
        if not names:
            raise ConfigError(
                f"{where}.{code}: the language model never says {code!r}, so no document would "
                f"have it; it says {' '.join(sorted(known))}. Take {code} out, or give another "
                "sources.language_model"
            )
        for name in names:
            if len(names) > 1 and name in by_language:
                continue  # a member with a say of its own
            if name in found:
                raise ConfigError(
                    f"{where}.{code}: {code!r} and another code of the list are both {name!r} to "
                    "the language model; keep one of them"
                )
            found[name] = value
    return found


def said_as(code: str, known: Collection[str]) -> list[str]:
    """Return a model's codes for a language: its own, its macrolanguage's, or its members'."""
    macros = [macro for macro, members in _MACROLANGUAGES.items() if code in members]
    for names in ([code], [_SAME.get(code, code)], macros, _MACROLANGUAGES.get(code, ())):
        if found := [name for name in names if name in known]:
            return found
    return []
