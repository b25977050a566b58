"""A chart of letters by hour, stacked by cause, in plain characters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

#: What stands for the causes in the bars, the largest first, and for all others.
MARKS, REST = "█▓▒░#=+", "·"
#: Rows of the highest bar, and columns of each hour.
_HEIGHT, _WIDE = 10, 2


def fill_bar(counts: Sequence[int], most: int, height: int = _HEIGHT) -> list[int]:
    """Return which of the counts each cell of a bar is for, from below; `most` is as high as can be.

    A bar of anything has a cell at least. Cells go to counts by largest remainder, so that no part is off by
    a cell or more.
    """
    total = sum(counts)
    if not total:
        return []
    cells = max(1, round(total * height / most))
    whole = [count * cells // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda n: (-(counts[n] * cells % total), n))
    for index in by_remainder[: cells - sum(whole)]:
        whole[index] += 1
    return [index for index, part in enumerate(whole) for _ in range(part)]


def draw(hours: Sequence[Sequence[int]], now: datetime) -> list[str]:
    """Return the lines of a chart: bars of the hours up to `now`, each stacked from the series in `hours`.

    The first series have marks of their own, the others one in common. Without letters there are no lines.
    """
    own = list(hours[: len(MARKS)])
    rest = hours[len(MARKS) :]
    if rest:
        own.append([sum(parts) for parts in zip(*rest, strict=True)])
    bars = list(zip(*own, strict=True))
    most = max(map(sum, bars), default=0)
    if not most:
        return []
    filled = [fill_bar(bar, most) for bar in bars]
    marks = MARKS + REST
    margin = len(str(most))
    lines = []
    for row in reversed(range(_HEIGHT)):
        cells = "".join((marks[bar[row]] if row < len(bar) else " ") * _WIDE for bar in filled)
        scale = str(most) if row == _HEIGHT - 1 else ""
        lines.append(f"{scale:>{margin}} │{cells}".rstrip())
    lines.append(f"{0:>{margin}} └{'─' * (_WIDE * len(bars))}")
    lines.append(" " * (margin + 2) + _times(len(bars), now))
    return lines


def _times(count: int, now: datetime) -> str:
    """Return the hours below the bars, each at its first column, as many as fit."""
    every = 6
    shown = ""
    for index in range(0, count, every):
        at = now - timedelta(hours=count - 1 - index)
        shown += f"{at:%H}:00".ljust(_WIDE * every)
    return shown.rstrip()
