"""The locks of a queue's lanes: which commits may be under way at the same time."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from lazaretto.model.keys import QUEUE_ID_BITS

_KIND_BITS = 2
#: In the place of a lane: a process's slot, which is held as long as its connection lives.
SLOT = 3


class Lane(enum.IntEnum):
    """What of a queue a commit holds, alone or with others. One that holds nothing alone waits for few."""

    #: Its end. Who sends holds it alone: no message may be there before one of a lower number.
    END = 0
    #: Its head. Who takes messages one by one shares it, and passes over what others take.
    HEAD = 1
    #: Messages that are held. Who removes those it holds shares it.
    HELD = 2


class Lanes:
    """The lanes that a commit needs."""

    def __init__(self) -> None:
        self._alone: dict[tuple[int, Lane], bool] = {}

    def share(self, queue_id: int, lane: Lane) -> None:
        """Hold a lane, together with others that share it."""
        self._alone.setdefault((queue_id, lane), False)

    def hold(self, queue_id: int, lane: Lane) -> None:
        """Hold a lane alone."""
        self._alone[queue_id, lane] = True

    def hold_all(self, queues: Iterable[int]) -> None:
        """Hold all lanes of some queues alone."""
        for queue_id in queues:
            for lane in Lane:
                self.hold(queue_id, lane)

    @property
    def queues(self) -> set[int]:
        """The queues of which there is a lane."""
        return {queue_id for queue_id, _ in self._alone}

    @property
    def alone(self) -> bool:
        """Whether one is held alone."""
        return any(self._alone.values())

    def locks(self, store: int) -> list[int]:
        """Return the server's locks of a store, in the order in which all commits take them.

        The lowest bit says whether others may share it.
        """
        return [
            lock_of(store, queue_id, lane) << 1 | (not alone)
            for (queue_id, lane), alone in sorted(self._alone.items())
        ]


def lock_of(store: int, queue_id: int, lane: int) -> int:
    """Return the server's lock of a lane, or of a slot in the place of a queue."""
    return ((store << QUEUE_ID_BITS) + queue_id) << _KIND_BITS | lane
