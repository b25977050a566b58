"""Figures of several rounds as a table: medians, spreads, and ratios of rounds that stand side by side."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """What one system did in one round of a row.

    `less`: whether less is better. `cost`: microseconds of processors, if that is known.
    """

    row: str
    system: str
    value: float
    unit: str
    less: bool = False
    cost: float | None = None

    def __str__(self) -> str:
        return f"{self.row}: {self.system} {_number(self.value, self.unit)}"


class _Spread(NamedTuple):
    """The median of the rounds, and the least and the most."""

    median: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values, from 0 to 1, do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(figures: Sequence[Figure]) -> str:
    """Return the table of figures: of each row, its first system beside the others.

    Medians of the rounds; ratios of each round, and their spread.
    """
    return "\n".join(_lines(figures))


def _lines(figures: Sequence[Figure]) -> Iterator[str]:
    yield "| | Lazaretto | CPU | beside | its figure | its CPU | ratio (rounds) | ratio of CPU |"
    yield "|---|---:|---:|---|---:|---:|---:|---:|"
    for row in dict.fromkeys(figure.row for figure in figures):
        own = [figure for figure in figures if figure.row == row]
        ours, *peers = dict.fromkeys(figure.system for figure in own)
        for peer in peers or [""]:
            yield f"| {row} | {' | '.join(_cells(own, ours, peer))} |"


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.2f} {unit}".strip()


def _spread(values: Iterable[float]) -> _Spread | None:
    every = sorted(values)
    return _Spread(statistics.median(every), every[0], every[-1]) if every else None


def _cells(figures: Sequence[Figure], ours: str, peer: str) -> Iterator[str]:
    mine = [figure for figure in figures if figure.system == ours]
    other = [figure for figure in figures if figure.system == peer]
    costs = []
    for name, some in (("", mine), (peer, other)):
        if some is other:
            yield name
        value = _spread(figure.value for figure in some)
        cost = _spread(figure.cost for figure in some if figure.cost is not None)
        costs.append(cost)
        yield "" if value is None else _number(value.median, some[0].unit)
        yield "" if cost is None else f"{cost.median:,.{0 if cost.median >= 10 else 2}f}"
    ratios = _spread(
        b.value / a.value if a.less else a.value / b.value for a, b in zip(mine, other, strict=False)
    )
    yield "" if ratios is None else f"{ratios.median:.2f} ({ratios.low:.2f}–{ratios.high:.2f})"
    first, second = costs
    yield "" if first is None or second is None else f"{second.median / first.median:.2f}"
