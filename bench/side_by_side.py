"""Workloads in one or two processes, on one system after the other, in each round."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure
from bench.measure import Measurement, Result, Scale, take
from bench.systems import SYSTEMS
from bench.workloads import WORKLOADS

#: Workloads that are judged by their 99th percentile, too.
_TAILS = ("wake-paced", "processes")
_MICROSECONDS = 1e6


class Row(NamedTuple):
    """A workload, on which of our systems, and beside which others."""

    workload: str
    ours: str
    peers: Sequence[str]


def alone(rows: Sequence[Row], folder: Path, scale: Scale, number: int) -> Iterator[Figure]:
    """Measure the rows in one round. What is not installed, and what fails, is named and left out."""
    for workload, ours, peers in rows:
        where = "PostgreSQL, " if SYSTEMS[ours].served else ""
        row = f"{where}{workload}: {WORKLOADS[workload].title}"
        for system in (ours, *peers):
            why = SYSTEMS[system].missing()
            if why is None:
                result = take(
                    Measurement(system=system, workload=workload, round=number, scale=scale), folder
                )
                yield from _figures(row, result)
                why = result.error
            if why is not None:
                print(f"{row}, {system}: {why}", file=sys.stderr)


def _figures(row: str, result: Result) -> Iterator[Figure]:
    if result.error is not None:
        return
    workload = WORKLOADS[result.workload]
    value = result.figures[workload.figure]
    cores = result.figures.get("cpu_client")
    cost = None
    if cores is not None and workload.unit == "/s":
        cost = (cores + result.figures["cpu_rest"]) / value * _MICROSECONDS
    yield Figure(row, result.system, value, workload.unit, workload.less, cost)
    if result.workload in _TAILS:
        yield Figure(f"{row}, p99", result.system, result.figures["p99_ms"], "ms", less=True, cost=None)
