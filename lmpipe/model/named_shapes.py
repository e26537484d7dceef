"""Hold a function's tensors to the shape letters that their names end in.

    @checked_shapes
    def weighted_sum(loss_BT, weights_B, mask_BT): ...

`loss_BT` must have two dimensions, `weights_B` one, and both as many rows: B is one number in a
call. Without that a column (B, 1) against rows (B) broadcasts to (B, B) and gives a number, of no
meaning and without an error. Alternative not taken: jaxtyping's annotations checked at run time,
which need a second library for the checking and say less in their messages.

Cost: about 5 microseconds a call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from lmpipe.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def shape_letters(function: Callable[..., Any]) -> dict[str, str]:
    """Return the parameters of a function whose names end in shape letters, with these."""
    ends = {name: name.rpartition("_") for name in inspect.signature(function).parameters}
    return {name: end for name, (_, bar, end) in ends.items() if bar and end.isupper()}


def checked_shapes(function: F) -> F:
    """Make a function refuse tensors whose shapes are not those of its parameters' names.

    Raises:
        ConfigError: on a call; it names the function, the tensor, its shape, and what it must be.
    """
    signature, letters_of = inspect.signature(function), shape_letters(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        seen: dict[str, tuple[int, str]] = {}
        for name, letters in letters_of.items():
            if given.get(name) is None:  # left out, or optional
                continue
            shape = tuple(given[name].shape)
            if len(shape) != len(letters):
                raise ConfigError(
                    f"{function.__name__}: {name} has the shape {shape}, it must have "
                    f"{len(letters)} dimension(s), {letters}; it would be broadcast, so index or "
                    "squeeze it"
                )
            for letter, size in zip(letters, shape, strict=True):
                first, of = seen.setdefault(letter, (size, name))
                if size != first:
                    raise ConfigError(
                        f"{function.__name__}: {name} has the shape {shape}, where {letter} is "
                        f"{size}; {of} has {letter} = {first}, and both must be one size"
                    )
        return function(*args, **kwargs)

    return cast(F, checked)
