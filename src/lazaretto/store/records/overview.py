"""How queues stand at a glance, in the store: what is kept in small tables and indexes."""

from __future__ import annotations

from typing import NamedTuple


class Waiting(NamedTuple):
    """How many messages stand in a queue itself, whether that is exact, and when the oldest was sent."""

    messages: int = 0
    exact: bool = True
    oldest: int | None = None


class Dead(NamedTuple):
    """How many dead letters of a queue wait, since when, and how many fingerprints they have."""

    letters: int
    since: int | None
    fingerprints: int


NO_DEAD = Dead(0, None, 0)

#: A place in an order: number or time, and the key of the dead letter there; 0: before all that are there.
Position = tuple[int, int]


class Preview(NamedTuple):
    """How a message begins, and the bytes of its whole body."""

    size: int
    start: bytes
