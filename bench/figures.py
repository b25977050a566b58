"""What several rounds add up to: medians, spreads, ratios and the best peer."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.measure import Result
from bench.notes import WEAKER
from bench.systems import SYSTEMS
from bench.workloads import WORKLOADS


class Spread(NamedTuple):
    """The median of the rounds, and the least and the most."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Return the spread of the values, or None if there are none."""
        every = sorted(values)
        if not every:
            return None
        return cls(statistics.median(every), every[0], every[-1])


class Figures:
    """The results of a run, asked for by system and workload."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = results
        self._by_round: dict[tuple[str, str, int | None], dict[int, Result]] = {}
        for result in results:
            key = (result.system, result.workload, result.depth)
            self._by_round.setdefault(key, {})[result.round] = result

    @property
    def systems(self) -> list[str]:
        """The systems that were measured, in their usual order."""
        measured = {result.system for result in self.results}
        return [name for name in SYSTEMS if name in measured]

    @property
    def workloads(self) -> list[str]:
        """The workloads that were measured, in their usual order."""
        measured = {result.workload for result in self.results}
        return [name for name in WORKLOADS if name in measured]

    @property
    def depths(self) -> list[int]:
        """The depths that were measured, the smallest first."""
        return sorted({result.depth for result in self.results if result.depth is not None})

    @property
    def failures(self) -> list[Result]:
        """The measurements that came to nothing."""
        return [result for result in self.results if result.error is not None]

    def failed(self, system: str, workload: str | None = None) -> bool:
        """Return whether a measurement of this system, or of this workload on it, came to nothing."""
        return any(r.system == system and workload in (None, r.workload) for r in self.failures)

    def version(self, system: str) -> str:
        """Return the version of a system that was measured."""
        return next((r.version for r in self.results if r.system == system and r.version), "unknown")

    def rounds(self, system: str, workload: str, figure: str, depth: int | None = None) -> dict[int, float]:
        """Return one figure by round."""
        found = self._by_round.get((system, workload, depth), {})
        return {number: r.figures[figure] for number, r in found.items() if figure in r.figures}

    def spread(
        self, system: str, workload: str, figure: str | None = None, depth: int | None = None
    ) -> Spread | None:
        """Return the spread of a figure; of the one the workload is judged by if none is named."""
        return Spread.of(self.rounds(system, workload, figure or WORKLOADS[workload].figure, depth).values())

    def ratio(self, ours: str, theirs: str, workload: str) -> Spread | None:
        """Return how many times better ours was, round by round: what disturbs a round disturbs both."""
        figure = WORKLOADS[workload].figure
        mine, other = self.rounds(ours, workload, figure), self.rounds(theirs, workload, figure)
        pairs = [(mine[number], other[number]) for number in mine.keys() & other.keys()]
        less = WORKLOADS[workload].less
        return Spread.of(b / a if less else a / b for a, b in pairs)

    def depth_ratio(self, system: str, workload: str, depth: int) -> Spread | None:
        """Return the figure at a depth as a share of that at the smallest depth, round by round."""
        figure = WORKLOADS[workload].figure
        here = self.rounds(system, workload, figure, depth)
        least = self.rounds(system, workload, figure, self.depths[0])
        return Spread.of(here[number] / least[number] for number in here.keys() & least.keys())

    def best_peer(self, workload: str, *, equal: bool) -> str | None:
        """Return the peer with the best median; `equal`: of those not marked as less durable."""
        found: list[tuple[float, str]] = []
        for name, system in SYSTEMS.items():
            weaker = any(mark in WEAKER for mark in system.marks.get(workload, ""))
            spread = self.spread(name, workload)
            if system.kind == "peer" and spread is not None and not (equal and weaker):
                found.append((spread.median, name))
        if not found:
            return None
        return (min if WORKLOADS[workload].less else max)(found)[1]
