"""Numbers as bars, for drawings that the templates make. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

#: Units of a drawing: how wide a bar is with its gap, and how high the highest is.
STEP: Final = 10
HEIGHT: Final = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """A bar: where it is, and what it says."""

    x: int
    y: float
    height: float
    count: int
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """Bars of spans of time, the current one last. `most`: the number of the highest."""

    bars: tuple[Bar, ...]
    width: int
    height: int
    most: int
    total: int


def bars_chart(counts: Sequence[int], now: datetime, minutes: int = 60) -> Chart:
    """Return numbers by hour, or by so many minutes, as bars, the current one last.

    The highest is as high as can be, and none is never seen as some.
    """
    most = max(counts, default=0)
    bars = []
    for place, count in enumerate(counts):
        height = 0.0 if not count else max(6.0, round(count * HEIGHT / most, 1))
        at = now - timedelta(minutes=(len(counts) - 1 - place) * minutes)
        label = f"{at:%H}:00" if minutes == 60 else f"{at:%H:%M}"
        bars.append(Bar(place * STEP, round(HEIGHT - height, 1), height, count, label))
    return Chart(tuple(bars), len(counts) * STEP, HEIGHT, most, sum(counts))
