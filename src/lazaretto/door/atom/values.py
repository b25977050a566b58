"""Values as ATOM's descriptions write them: durations, booleans, numbers, addresses. Pure."""

from __future__ import annotations

import re
from typing import Final

from lazaretto.door.atom.refusals import Refusal
from lazaretto.door.signatures import entity_of

#: .NET's longest TimeSpan, which stands for "without end".
FOREVER: Final = "P10675199DT2H48M5.4775807S"
_LONGEST: Final = 900_000_000_000.0
_DURATION: Final = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?)?", re.ASCII
)
_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)


def read_duration(text: str) -> float:
    """Return a duration in seconds. Raises Refusal."""
    found = _DURATION.fullmatch(text)
    if found is None or text[-1:] in ("P", "T"):
        raise Refusal(400, f"expected a duration such as PT1M30S, got {text[:100]!r}")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def read_endless(text: str) -> float | None:
    """Return a duration in seconds; None: without end. Raises Refusal."""
    seconds = read_duration(text)
    return None if seconds >= _LONGEST else seconds


def write_duration(seconds: float | None) -> str:
    """Return a duration in seconds as text; None: without end."""
    if seconds is None or seconds >= _LONGEST:
        return FOREVER
    # .NET counts in tenths of a microsecond.
    whole, fraction = divmod(round(seconds * 10_000_000), 10_000_000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    last = f"{second}.{fraction:07}".rstrip("0") if fraction else f"{second}"
    time = f"{f'{hour}H' * bool(hour)}{f'{minute}M' * bool(minute)}{f'{last}S' * (last != '0')}"
    day = f"{days}D" if days else ""
    return f"P{day}T{time}" if time else f"P{day}" if day else "PT0S"


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
