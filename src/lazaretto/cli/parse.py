"""What people type as options: durations, moments, properties."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from lazaretto.model.checks import FOREVER, shown
from lazaretto.model.spans import iso_time, seconds_of


class Nothing:
    """An option's value that was given as "none", as against an option that was not given."""


NOTHING = Nothing()


def duration(text: str) -> float:
    """Return the seconds of a duration as an option. Raises BadParameter."""
    seconds = seconds_of(text)
    if seconds is None or seconds > FOREVER:
        raise typer.BadParameter(f"expected a duration such as 30, 30s, 5m, 2h or 1d, got {shown(text)}")
    return seconds


def address(text: str) -> tuple[str, int]:
    """Return the host and port of an address, by default of this machine. Raises BadParameter."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise typer.BadParameter(f"expected an address such as 9471 or 127.0.0.1:9471, got {shown(text)}")
    return host.strip("[]") or "127.0.0.1", int(port)


def optional_duration(text: str) -> Any:
    """Return the seconds of a duration, or NOTHING for "none"."""
    return NOTHING if text.lower() == "none" else duration(text)


def number(low: int, high: int | None = None) -> Callable[[Any], int]:
    """Return what makes a whole number within bounds of an option. It raises BadParameter."""
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"

    def parse(value: Any) -> int:
        text = str(value)
        if not re.fullmatch(r"-?\d{1,18}", text) or not low <= int(text) <= (high or int(text)):
            raise typer.BadParameter(f"expected a number {bounds}, got {shown(text)}")
        return int(text)

    return parse


def count(text: str) -> int:
    """Return a number as an option, with "unlimited" for the number that is never reached."""
    if text.lower() == "unlimited":
        from lazaretto.model.policy import UNLIMITED

        return UNLIMITED
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise typer.BadParameter(f"expected a number or 'unlimited', got {shown(text)}")
    return int(text)


def optional_count(text: str) -> Any:
    """Return a number, or NOTHING for "none"."""
    if text.lower() == "none":
        return NOTHING
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise typer.BadParameter(f"expected a number or 'none', got {shown(text)}")
    return int(text)


def optional_text(text: str) -> Any:
    """Return text, or NOTHING for "none"."""
    return NOTHING if text.lower() == "none" else text


def _moment(text: str, direction: int) -> datetime:
    # A bare number could be a year as well as seconds; here a duration needs its unit.
    passed = None if text.strip().isdigit() else seconds_of(text)
    try:
        moment = (
            iso_time(text) if passed is None else datetime.now(UTC) + direction * timedelta(seconds=passed)
        )
    except OverflowError:
        moment = None
    if moment is None:
        raise typer.BadParameter(
            "expected a time such as 2026-01-31T12:00:00Z (UTC where it names no zone) or a duration "
            f"{'ago' if direction < 0 else 'from now'} such as 2h, got {shown(text)}"
        )
    return moment


def past(text: str) -> datetime:
    """Return a time, or how long ago it was, as an option."""
    return _moment(text, -1)


def future(text: str) -> datetime:
    """Return a time, or how far ahead it is, as an option."""
    return _moment(text, 1)


def optional_future(text: str) -> Any:
    """Return a time, or how far ahead it is, or NOTHING for "never"."""
    return NOTHING if text.lower() == "never" else future(text)


def properties(pairs: Iterable[str]) -> dict[str, Any]:
    """Return application properties given as name=value; the values are text. Raises BadParameter."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"expected name=value, got {shown(pair)}", param_hint="'--property'")
        values[name] = value
    return values
