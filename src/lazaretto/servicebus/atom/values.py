"""Values as ATOM's descriptions write them: durations, booleans, numbers, addresses. Pure."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from lazaretto.model.spans import read_duration, write_duration
from lazaretto.servicebus.atom.refusals import Refusal
from lazaretto.servicebus.signatures import entity_of

#: .NET's longest TimeSpan, which stands for "without end".
FOREVER: Final = "P10675199DT2H48M5.4775807S"
_LONGEST: Final = 900_000_000_000.0
_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)


def read_seconds(text: str) -> float:
    """Return a duration in seconds. Raises Refusal."""
    try:
        length = read_duration(text)
    except ValueError as error:
        raise Refusal(400, str(error)) from None
    if length < timedelta():
        raise Refusal(400, f"expected a duration of at least PT0S, got {text[:100]!r}")
    return length.total_seconds()


def read_endless(text: str) -> float | None:
    """Return a duration in seconds; None: without end. Raises Refusal."""
    seconds = read_seconds(text)
    return None if seconds >= _LONGEST else seconds


def write_seconds(seconds: float | None) -> str:
    """Return a duration in seconds as text; None: without end."""
    return FOREVER if seconds is None or seconds >= _LONGEST else write_duration(timedelta(seconds=seconds))


def read_flag(text: str) -> bool:
    """Return a boolean. Raises Refusal."""
    if text.lower() not in ("true", "false"):
        raise Refusal(400, f"expected true or false, got {text[:100]!r}")
    return text.lower() == "true"


def write_flag(value: bool) -> str:
    """Return a boolean as text."""
    return "true" if value else "false"


def read_number(text: str) -> int:
    """Return a whole number that is not negative. Raises Refusal."""
    if not _NUMBER.fullmatch(text):
        raise Refusal(400, f"expected a whole number of at least 0, got {text[:100]!r}")
    return int(text)


def read_destination(text: str) -> str | None:
    """Return the path of an entity from its URL or its name; None: none is given."""
    return entity_of(text) or None
