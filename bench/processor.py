"""Time by the clock and of processors: of this process, of others with all below them, of the machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_SECONDS = 0.5


class Meter:
    """Seconds between entering and leaving: by the clock, of this process, and of the whole machine."""

    def __enter__(self) -> Self:
        self._busy, self._own, self._start = _busy_seconds(), time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.elapsed = time.perf_counter() - self._start
        self.own = time.process_time() - self._own
        self.busy = max(self.own, _busy_seconds() - self._busy)


class Spent(NamedTuple):
    """Seconds by the clock, and of processors."""

    seconds: float
    cpu: float


def spend(run: Callable[[], object]) -> Spent:
    """Return what a call takes, in this process alone."""
    cpu, began = time.process_time(), time.perf_counter()
    run()
    return Spent(time.perf_counter() - began, time.process_time() - cpu)


def spend_with_children(run: Callable[[], object]) -> Spent:
    """Return what a call takes, in this process and all below it.

    They are looked at each half second: one whose parent ends first is no longer below this one, and what it
    took since the last look is lost.
    """
    before, last, over = _own_ticks(), dict[int, int](), threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            last.update(_own_ticks())

    looking = threading.Thread(target=look)
    looking.start()
    began = time.perf_counter()
    try:
        run()
    finally:
        seconds = time.perf_counter() - began
        over.set()
        looking.join()
    last.update(_own_ticks())
    return Spent(seconds, sum(ticks - before.get(pid, 0) for pid, ticks in last.items()) / _TICKS)


def _own_ticks() -> dict[int, int]:
    return {pid: sum(ticks[:2]) for pid, ticks in _family(os.getpid()).items()}


def family_seconds(pid: int) -> float:
    """Return the processor time so far of a process, of all below it, and of those that they waited for."""
    return sum(map(sum, _family(pid).values())) / _TICKS


def _family(pid: int) -> dict[int, list[int]]:
    """Return the ticks of a process and of all below it: user, system, and those of ended children."""
    parents: dict[int, int] = {}
    spent: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            # It has ended meanwhile.
            continue
        parents[int(entry.parent.name)] = int(fields[1])
        spent[int(entry.parent.name)] = [int(field) for field in fields[11:15]]
    found, last = set(), {pid}
    while last:
        found |= last
        last = {one for one, parent in parents.items() if parent in last} - found
    return {one: spent[one] for one in found if one in spent}


def _busy_seconds() -> float:
    # user, nice, system, idle, iowait, irq, softirq: all but the waiting.
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
    return (sum(ticks) - ticks[3] - ticks[4]) / _TICKS
