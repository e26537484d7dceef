"""The store's root where neither an option nor a recipe names one."""

import os

VARIABLE = "LMPIPE_STORE"


DEFAULT = "artifacts"


def default_root(folder: str = "") -> str:
    """Return the root where neither an option nor a recipe names one.

    Args:
        folder: of the recipe file; empty: the working directory.
    """
    return os.environ.get(VARIABLE) or os.path.join(folder, DEFAULT)  # noqa: PTH118 stays relative
