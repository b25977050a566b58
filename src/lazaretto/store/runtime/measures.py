"""Measures that only a process has: how long commits and handlers take, and how old messages are.

Nothing is measured until somebody asks for it, by `switch_on`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

#: Upper bounds in seconds: of durations, as OpenTelemetry advises them, and of ages.
_DURATIONS: Final = (0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_AGES: Final = (0.01, 0.1, 1, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400, 604_800)
_COUNTS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)


class Counted(NamedTuple):
    """A histogram: how many values are in each bucket, the last one without a bound, and their sum."""

    counts: list[int]
    sum: float


class Histograms:
    """Histograms of one thing, by the values of its labels. Threads share it."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> None:
        self.name = name
        self.text = text
        self.labels = labels
        self.bounds = bounds
        self._lock = threading.Lock()
        self._found: dict[tuple[str, ...], Counted] = {}

    def note(self, labels: tuple[str, ...], values: Iterable[float]) -> None:
        """Count values."""
        with self._lock:
            counts, total = self._found.get(labels) or Counted([0] * (len(self.bounds) + 1), 0.0)
            for value in values:
                counts[bisect_left(self.bounds, value)] += 1
                total += value
            self._found[labels] = Counted(counts, total)

    def read(self) -> dict[tuple[str, ...], Counted]:
        """Return the histograms by their labels."""
        with self._lock:
            return {labels: Counted(list(one.counts), one.sum) for labels, one in self._found.items()}


class Measures:
    """All that a process measures."""

    def __init__(self) -> None:
        self.commits = Histograms(
            "commit_duration_seconds", "How long commits took in this process.", (), _DURATIONS
        )
        self.operations = Histograms(
            "commit_operations", "Operations that shared a commit in this process.", (), _COUNTS
        )
        self.handlers = Histograms(
            "handler_duration_seconds",
            "How long attempts took.",
            ("queue", "outcome"),
            _DURATIONS,
        )
        self.waits = Histograms(
            "message_wait_seconds", "How old messages were when a host took them first.", ("queue",), _AGES
        )
        self.ages = Histograms(
            "message_age_at_completion_seconds", "How old messages were when a host completed them.",
            ("queue",), _AGES,
        )  # fmt: skip

    def note_commit(self, begin: float, operations: int) -> None:
        """Note a commit of so many operations that began at a time of `perf_counter`."""
        self.commits.note((), [time.perf_counter() - begin])
        self.operations.note((), [operations])

    @property
    def all(self) -> tuple[Histograms, ...]:
        """Each of them."""
        return self.commits, self.operations, self.handlers, self.waits, self.ages


#: What this process measures; None if nobody asks.
of_process: Measures | None = None


def active() -> Measures | None:
    """Return what this process measures; None if nobody asks."""
    return of_process


def switch_on() -> Measures:
    """Measure from now on, for as long as the process lives."""
    global of_process
    if of_process is None:
        of_process = Measures()
    return of_process


@contextlib.contextmanager
def measuring_commit(operations: int) -> Iterator[None]:
    """Note how long a commit takes, of so many operations, if somebody asks. One that fails is not noted."""
    measures = of_process
    if measures is None:
        yield
        return
    begin = time.perf_counter()
    yield
    measures.note_commit(begin, operations)
