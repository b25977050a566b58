"""Differences by worker or host, found among messages of the same time.

Workers come and go. So good messages of last week were completed by other workers than today's letters,
whatever made these fail. Only messages that were tried in the same hours tell whether a worker is to blame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from lazaretto.model.filters.sql import names_attempts
from lazaretto.model.filters.view import host_of
from lazaretto.model.triage.columns import Group
from lazaretto.model.triage.conditions import HOST, WORKER
from lazaretto.model.triage.differences import Found, find_difference
from lazaretto.model.triage.features import Features

_HOUR = 3_600_000_000


class ByWorker(NamedTuple):
    """A difference that names a worker or host, and the good messages that it was found among."""

    found: Found
    good: Group


def find_by_worker(
    failing: Group, good: Group, told: str = "", leave_out: Collection[str] = ()
) -> ByWorker | None:
    """Return the smallest difference among messages of the same time, if it names a worker or host."""
    workers = {row.worker for row in failing.rows}
    if workers == {None} or len(workers | {row.worker for row in good.rows if row.worker}) < 2:
        return None
    pairs = _same_time(failing.rows, good.rows)
    skipped = set(map(str.lower, leave_out))
    bad, well = (Group([_with_worker(row, skipped) for row in rows]) for rows in pairs)
    difference = find_difference(bad, well, told)
    if difference is None or not names_attempts(difference.filter):
        return None
    return ByWorker(difference, well)


def _same_time(
    failing: Sequence[Features], good: Sequence[Features]
) -> tuple[list[Features], list[Features]]:
    """Return as many rows of one side as of the other in each hour, all between its failing ones."""
    hours: defaultdict[int, tuple[list[Features], list[Features]]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((failing, good)):
        for row in rows:
            if row.worker is not None and row.when is not None:
                hours[row.when // _HOUR][side].append(row)
    sides: tuple[list[Features], list[Features]] = [], []
    for _, (bad, well) in sorted(hours.items()):
        if not bad:
            continue
        times = [row.when or 0 for row in bad]
        first, last = min(times), max(times)
        meanwhile = [row for row in well if first <= (row.when or 0) <= last]
        number = min(len(bad), len(meanwhile))
        sides[0].extend(_spread(bad, number))
        sides[1].extend(_spread(meanwhile, number))
    return sides


def _spread(rows: list[Features], number: int) -> list[Features]:
    """Return a number of rows, spread evenly over their times."""
    rows = sorted(rows, key=lambda row: row.when or 0)
    return [rows[at * len(rows) // number] for at in range(number)]


def _with_worker(row: Features, skipped: Collection[str]) -> Features:
    made, worker = Features(row), row.worker or ""
    for name, value in ((HOST, host_of(worker)), (WORKER, worker)):
        if name.lower() not in skipped:
            made[name] = value
    return made
