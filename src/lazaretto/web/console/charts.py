"""Numbers as bars, for drawings that the templates make. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from lazaretto.model.marks import TimeMark

#: Units of a drawing: how wide a bar is with its gap, and how high the highest is.
STEP: Final = 10
HEIGHT: Final = 100
_DAY: Final = 24 * 60
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """A bar: where it is, and what it says."""

    x: int
    y: float
    height: float
    count: int
    label: str


class Line(NamedTuple):
    """A mark in time: where it is, and what it says."""

    x: float
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """Bars of spans of time, the current one last. `most`: the number of the highest."""

    bars: tuple[Bar, ...]
    lines: tuple[Line, ...]
    width: int
    height: int
    most: int
    total: int


def bars_chart(
    counts: Sequence[int], now: datetime, minutes: int = 60, marks: Sequence[TimeMark] = ()
) -> Chart:
    """Return numbers by hour, or by so many minutes, as bars, the current one last, with marks in time.

    The highest is as high as can be, and none is never seen as some.
    """
    most = max(counts, default=0)
    bars = []
    for place, count in enumerate(counts):
        height = 0.0 if not count else max(6.0, round(count * HEIGHT / most, 1))
        at = now - timedelta(minutes=(len(counts) - 1 - place) * minutes)
        label = {60: f"{at:%H}:00", _DAY: f"{at:%Y-%m-%d}"}.get(minutes, f"{at:%H:%M}")
        bars.append(Bar(place * STEP, round(HEIGHT - height, 1), height, count, label))
    return Chart(
        tuple(bars), _lines(marks, now, len(counts), minutes), len(counts) * STEP, HEIGHT, most, sum(counts)
    )


def _lines(marks: Sequence[TimeMark], now: datetime, spans: int, minutes: int) -> tuple[Line, ...]:
    """Return the marks that are within the spans of a chart, whose last one began at a full one."""
    length = timedelta(minutes=minutes)
    begins = now - (now - _EPOCH) % length - (spans - 1) * length
    within = (mark for mark in marks if begins <= mark.time <= now)
    return tuple(Line(round((mark.time - begins) / length * STEP, 1), mark.text) for mark in within)
