"""What is measured beside what, and the row of a table that says so."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


class Pair:
    """What is measured, beside what: the medians of the rounds, and of their ratios."""

    def __init__(self, title: str, names: tuple[str, str], unit: str, goal: str) -> None:
        self.title, self.names, self.unit, self.goal = title, names, unit, goal
        self.rounds: list[tuple[float, float]] = []

    def add(self, first: float, second: float) -> None:
        """Keep the figures of a round."""
        self.rounds.append((first, second))

    def row(self) -> str:
        """Return it as a row of a table."""
        if not self.rounds:
            return f"| {self.title} | not measured | | | {self.goal} |"
        first, second = (statistics.median(one[at] for one in self.rounds) for at in (0, 1))
        ratios = sorted(one[0] / one[1] for one in self.rounds)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        told = (f"{self.names[at]} {value:,.4g} {self.unit}" for at, value in enumerate((first, second)))
        return f"| {self.title} | {' | '.join(told)} | {spread} | {self.goal} |"


def rate(count: int, run: Callable[[], object]) -> float:
    """Return how many a second it is, when `run` does so many."""
    return count / timed(run)


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that it takes."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
