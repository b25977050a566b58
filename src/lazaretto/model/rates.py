"""Rates: how many messages a queue was sent, delivered and lost to failures, by minute and hour. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import datetime

from lazaretto.model.clock import to_datetime

MINUTE = 60_000_000
#: What is counted, in the order of the columns.
SENT, RECEIVED, COMPLETED, FAILED, DEAD = range(5)
KINDS = 5
#: The minutes of each span of time, and how many of these are kept: a day and 30 days.
SPANS = {"minute": 1, "hour": 60}
#: The span of what was counted ever, which starts at 0 and is not forgotten; and where that of all queues is.
EVER = ALL_QUEUES = 0
KEPT = {"minute": 1440, "hour": 720}

Counts = tuple[int, int, int, int, int]
NONE: Counts = (0, 0, 0, 0, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
    """Counts of the messages of a queue, or of all queues, since the store was made.

    The fields are those of a Rate. A queue's totals go with the queue; those of all queues stay.
    """

    sent: int
    received: int
    completed: int
    failed: int
    dead: int


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    """Counts of a queue's messages in a minute or an hour that began at `time`.

    `sent`: messages that came to the queue, also by forwarding. `received`: deliveries. `failed`: attempts
    that failed, or lost their lock or their worker. `dead`: messages that became dead letters. What is
    received from subqueues does not count.
    """

    time: datetime
    sent: int
    received: int
    completed: int
    failed: int
    dead: int


def series(rows: Iterable[tuple[int, Counts]], now: int, span: int, limit: int) -> list[Rate]:
    """Return the latest spans of time up to now, oldest first; `rows`: counts by the minute they start at."""
    by_minute = dict(rows)
    last = start_of(now, span)
    starts = range(last - (limit - 1) * span, last + 1, span)
    return [Rate(to_datetime(start * MINUTE), *by_minute.get(start, NONE)) for start in starts]


def start_of(time: int, span: int) -> int:
    """Return the minute since 1970 at which a time's span starts."""
    minute = time // MINUTE
    return minute - minute % span
