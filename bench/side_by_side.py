"""Workloads in one or two processes, on one system after the other, in each round."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.crew import in_process
from bench.figures import Figure
from bench.measure import Result, Scale
from bench.rounds import private
from bench.systems import SYSTEMS
from bench.workloads import WORKLOADS

#: After this a measurement is given up, because something hangs.
_TIMEOUT_SECONDS = 600.0


class Row(NamedTuple):
    """A workload, on which of our systems, and beside which others."""

    workload: str
    ours: str
    peers: Sequence[str]


def alone(rows: Iterable[Row], folder: Path, scale: Scale) -> Iterator[Figure]:
    """Measure the rows in one round. What is not installed, and what fails, is named and left out."""
    for name, ours, peers in rows:
        workload = WORKLOADS[name]
        row = f"{'PostgreSQL, ' if SYSTEMS[ours].served else ''}{name}: {workload.title}"
        for system in (ours, *peers):
            why = SYSTEMS[system].missing()
            if why is None:
                try:
                    with private(folder) as home:
                        given = (name, system, home, scale)
                        result = in_process(_take, *given, timeout=_TIMEOUT_SECONDS)
                except RuntimeError as error:
                    why = str(error)
                else:
                    yield Figure(row, system, result.value, workload.unit, workload.less, result.cost)
                    if result.p99_ms is not None:
                        yield Figure(f"{row}, p99", system, result.p99_ms, "ms", less=True)
            if why is not None:
                print(f"{row}, {system}: {why}", file=sys.stderr)


def _take(ready: Callable[[], None], workload: str, name: str, home: Path, scale: Scale) -> Result:
    """Take one measurement, in a process that does nothing else."""
    ready()
    system = SYSTEMS[name](home)
    system.open()
    try:
        return WORKLOADS[workload].run(system, scale)
    finally:
        system.close()
