"""Former names of parameters and fields, which are taken still, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from lazaretto.errors import InvalidOption

P = ParamSpec("P")
T = TypeVar("T")


def with_present_names(
    owner: str, present: Mapping[str, str], values: Mapping[str, Any], *, depth: int = 2
) -> dict[str, Any]:
    """Return values by their present names. Raises InvalidOption for one that has both.

    `present`: the present name by the former one. `depth`: how far up the caller is that is warned.
    """
    renamed = dict(values)
    for former in present.keys() & values.keys():
        name = present[former]
        if name in values:
            raise InvalidOption(f"expected {owner} to be given {name}, got {former} too, its former name")
        warnings.warn(f"{owner}: {former} is called {name} now", DeprecationWarning, stacklevel=depth + 1)
        renamed[name] = renamed.pop(former)
    return renamed


def formerly(**present: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Take parameters of a function under former names, too: `former="present"`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> T:
            if not present.keys().isdisjoint(named):
                values: Any = with_present_names(function.__name__, present, named, depth=2)
                named = values
            return function(*arguments, **named)

        return call

    return decorate
