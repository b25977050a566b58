"""Checks shared by all options, with errors that name the expected and actual values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeGuard, TypeVar

from lazaretto.errors import EntityNotFound, InvalidOption, LazarettoError
from lazaretto.model.clock import to_micros
from lazaretto.model.other_names import written_here

T = TypeVar("T")
#: Made once: a union costs more than the check.
_NUMBER = int | float

#: A duration as it may be given: seconds, or a timedelta.
GivenDuration = float | timedelta

#: Names that an unknown one is compared with at most, and those that an error tells.
_MOST_COMPARED = 1_000
_MOST_NAMED = 100

_SURROGATE = re.compile("[\ud800-\udfff]")

#: The longest duration an option takes, in seconds: about 29,000 years, Service Bus's "for ever".
FOREVER = 922_337_203_685.0


def shown(value: object) -> str:
    """Return a value as an error message shows it: its repr, cut to a length one can read."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({type(value).__name__}, {len(text)} characters)"


def suggestion(name: object, known: Iterable[str], *, more: bool = False) -> str:
    """Return "; did you mean 'x'?" for the known name most like `name`, else the names there are, if any.

    `more`: there are more than the known ones.
    """
    names = list(known)
    if not names:
        return "; none exists"
    # Thousands take a long time, and mean nothing to who reads them.
    close = difflib.get_close_matches(str(name), names, n=1) if len(names) <= _MOST_COMPARED else []
    if close:
        return f"; did you mean {close[0]!r}?"
    there = "there are, among others" if more else "there are"
    others = f" and {len(names) - _MOST_NAMED} others" if len(names) > _MOST_NAMED and not more else ""
    return f"; {there}: {', '.join(sorted(names)[:_MOST_NAMED])}{others}"


def not_found(plain: str, path: str, others: Iterable[str], *, more: bool = False) -> EntityNotFound:
    """Return the error for a path where nothing is, with the path most like it.

    `more`: there are more than the others.
    """
    names = tuple(others)
    # That nothing exists is true only if all were looked at.
    hint = suggestion(path, names, more=more) if names or not more else ""
    error = EntityNotFound(f"{plain}{hint}")
    error.plain, error.path, error.others, error.more = plain, path, names, more
    return error


def without_unseen(error: LazarettoError, sees: Callable[[str], bool]) -> LazarettoError:
    """Return an error that names, beside what was asked for, only entities which somebody sees."""
    if isinstance(error, InvalidOption) and error.plain is not None:
        return error if all(map(sees, error.entities)) else InvalidOption(error.plain)
    if not isinstance(error, EntityNotFound) or error.plain is None:
        return error
    names = [name for name in error.others if sees(name)]
    # That nothing else exists would not be true.
    if not names:
        return EntityNotFound(error.plain)
    return not_found(error.plain, error.path, names, more=error.more)


def refuse_unknown(some: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise InvalidOption for the first name in `some` that is not in `known`."""
    names = list(known)
    for name in some:
        if name not in names:
            here = written_here(what, name, some)
            advice = suggestion(name, names) if here is None else f": here that is {here}"
            raise InvalidOption(f"unknown option {name!r} of {what}{advice}")


def whole(name: str, value: object, low: int, high: int) -> int:
    """Return `value` if it is an integer within `low` and `high`, else raise InvalidOption."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidOption(f"expected {name} to be an integer from {low} to {high}, got {shown(value)}")
    return int(value)


def flag(name: str, value: object) -> bool:
    """Return `value` if it is a bool, else raise InvalidOption."""
    if not isinstance(value, bool):
        raise InvalidOption(f"expected {name} to be True or False, got {shown(value)}")
    return value


def function(name: str, value: T) -> T:
    """Return `value` if it can be called or is None, else raise InvalidOption."""
    if value is not None and not callable(value):
        raise InvalidOption(f"expected {name} to be a function or None, got {shown(value)}")
    return value


def is_aware(value: object) -> TypeGuard[datetime]:
    """Return whether a value is a datetime with a time zone."""
    return isinstance(value, datetime) and value.utcoffset() is not None


def seconds(name: str, value: object, low: float = 0.0, high: float = FOREVER) -> float:
    """Return a duration, given in seconds or as a timedelta, as seconds, else raise InvalidOption."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, _NUMBER) or not low <= number <= high:
        raise InvalidOption(
            f"expected {name} to be a duration from {low:g} to {high:g} seconds, got {shown(value)}"
        )
    return float(number)


def exact(value: str) -> str:
    """Return text of any class, numpy's too, as Python's own, which every library takes."""
    return value if type(value) is str else str.__str__(value)


def is_unicode(value: str) -> bool:
    """Return whether text can be stored: a lone surrogate has no bytes."""
    return value.isascii() or not _SURROGATE.search(value)


def text(name: str, value: object, longest: int, shortest: int = 1) -> str:
    """Return `value` if it is a string of `shortest` to `longest` characters, else raise InvalidOption."""
    if not isinstance(value, str) or not shortest <= len(value) <= longest:
        raise InvalidOption(
            f"expected {name} to be text of {shortest} to {longest} characters, got {shown(value)}"
        )
    if not is_unicode(value):
        raise InvalidOption(f"expected {name} to be valid Unicode, got a lone surrogate in {shown(value)}")
    return exact(value)


def member(name: str, value: object, choices: Mapping[str, T]) -> T:
    """Return the choice called `value`, or `value` itself if it is one, else raise InvalidOption."""
    if isinstance(value, str) and value in choices:
        return choices[value]
    for choice in choices.values():
        if value is choice:
            return choice
    raise InvalidOption(f"expected {name} to be one of {', '.join(choices)}, got {shown(value)}")


def moment(name: str, value: datetime | None) -> int | None:
    """Return a time in microseconds, None for None. Raises InvalidOption."""
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidOption(f"expected {name} to be a datetime with a time zone, got {shown(value)}")
    return to_micros(value)
