"""The compiled path of the tokenizer: numba, cached on disk, without the GIL.

numba and not Rust or C, because the library then installs as plain Python. Its price is the first
compilation, some seconds, kept low by few and small functions.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function at its first call, keeping its Python type for the type checker."""
    return cast(Function, njit(nogil=True, cache=True)(function))
