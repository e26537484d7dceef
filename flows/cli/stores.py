"""Which store a command looks into: one answer for all of them.

`--store` says it outright; `--recipe` means the store of that recipe; else it is what LMPIPE_STORE
names, else `artifacts` in the working directory. A recipe that names no store takes LMPIPE_STORE
too, so that `lmpipe run` and `lmpipe ls` never look in different places.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from flows.store_root import DEFAULT, VARIABLE, default_root
from lmpipe.errors import ConfigError

if TYPE_CHECKING:
    from lmpipe.artifacts.store import Store

Root = Annotated[
    str,
    typer.Option("--store", help=f"The store's root; else {VARIABLE}, else ./{DEFAULT}."),
]
Recipe = Annotated[
    str, typer.Option("--recipe", help="The store of this recipe: a name (demo) or a YAML file.")
]


def open_store(root: str, recipe: str) -> "Store":
    """Return the store that a command's options mean.

    Raises:
        ConfigError: both are given, or there is no such recipe.
    """
    from lmpipe.artifacts.store import Store

    if root and recipe:
        raise ConfigError(f"give either --store or a recipe, got {root!r} and {recipe!r}")
    if recipe:
        from flows.recipe import load_recipe

        return load_recipe(recipe).settings().store
    return Store(root or default_root())


def named_recipe(argument: str, option: str, is_needed: bool = False) -> str:
    """Return the recipe that a command was given, as its argument or by --recipe.

    Raises:
        ConfigError: both name one, or neither does where one is needed.
    """
    if argument and option:
        raise ConfigError(f"give one recipe, got {argument!r} and --recipe {option!r}")
    if is_needed and not argument and not option:
        raise ConfigError("give a recipe: its name, such as demo, or a YAML file")
    return argument or option
