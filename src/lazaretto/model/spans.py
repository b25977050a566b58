"""Durations and decimals as XML and JSON write them: PT1M30S, 12.50."""

from __future__ import annotations

import decimal
import re
from datetime import timedelta
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
