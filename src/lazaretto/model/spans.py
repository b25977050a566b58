"""Times, durations and decimals as text: PT1M30S and 12.50 in XML and JSON, 1h30m from people."""

from __future__ import annotations

import decimal
import re
from datetime import UTC, datetime, timedelta
from typing import Final

_DURATION: Final = re.compile(
    r"(-)?P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12})(?:\.(\d{1,9}))?S)?)?", re.ASCII
)
_DECIMAL: Final = re.compile(r"[+-]?\d{1,400}(?:\.\d{1,400})?(?:[eE][+-]?\d{1,6})?", re.ASCII)


def read_duration(text: str) -> timedelta:
    """Return a duration. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None or text[-1:] in ("P", "T"):
        raise ValueError(f"expected a duration such as PT1M30S, got {text[:100]!r}")
    sign, days, hours, minutes, seconds, fraction = match.groups()
    micros = int((fraction or "")[:6].ljust(6, "0"))
    try:
        length = timedelta(int(days or 0), int(seconds or 0), micros, 0, int(minutes or 0), int(hours or 0))
    except OverflowError:
        raise ValueError(f"expected a shorter duration than {text[:100]!r}") from None
    return -length if sign else length


def write_duration(length: timedelta) -> str:
    """Return a duration as text."""
    if length < timedelta():
        return f"-{write_duration(-length)}"
    minutes, second = divmod(length.seconds, 60)
    hour, minute = divmod(minutes, 60)
    last = f"{second}.{length.microseconds:06}".rstrip("0") if length.microseconds else f"{second}"
    time = f"{f'{hour}H' * bool(hour)}{f'{minute}M' * bool(minute)}{f'{last}S' * (last != '0')}"
    day = f"{length.days}D" if length.days else ""
    return f"P{day}T{time}" if time else f"P{day}" if day else "PT0S"


def read_decimal(text: str) -> decimal.Decimal:
    """Return a decimal number. Raises ValueError."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"expected a decimal number, got {text[:100]!r}")
    return decimal.Decimal(text)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SUM = re.compile(r"\d+(?:\.\d+)?|(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")


def seconds_of(text: str) -> float | None:
    """Return a duration such as 30, 30s, 5m, 2h, 1d or 1h30m in seconds, None if it is not one."""
    word = text.strip().lower()
    if not _SUM.fullmatch(word):
        return None
    parts = _PART.findall(word)
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float(word)


def iso_time(text: str) -> datetime | None:
    """Return a time in ISO 8601, in UTC where it names no zone; None if it is not one."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
