"""The locks of queues and their lanes: which commits may be under way at the same time."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from lazaretto.model.keys import QUEUE_ID_BITS

_KIND_BITS = 2
#: In the place of a queue's lock: a process's slot, which is held as long as its connection lives.
SLOT = 3


class QueueLock(enum.IntEnum):
    """Locks that a commit takes of a queue or of a lane, alone or shared.

    A commit that holds nothing alone keeps few others waiting.
    """

    #: Its end. Who sends holds it alone: no message may be there before one of a lower number.
    END = 0
    #: Its head. Who takes messages one by one shares it, and passes over what others take.
    HEAD = 1
    #: Messages that are held. Who removes those it holds shares it.
    HELD = 2


class CommitLocks:
    """The queue locks that a commit needs. A lane may stand in the place of a queue's id."""

    def __init__(self) -> None:
        self._alone: dict[tuple[int, QueueLock], bool] = {}

    def share(self, queue_id: int, lock: QueueLock) -> None:
        """Take a lock together with other commits that share it."""
        self._alone.setdefault((queue_id, lock), False)

    def hold(self, queue_id: int, lock: QueueLock) -> None:
        """Take a lock alone."""
        self._alone[queue_id, lock] = True

    def hold_all(self, queues: Iterable[int]) -> None:
        """Take all locks of some queues alone."""
        for queue_id in queues:
            for lock in QueueLock:
                self.hold(queue_id, lock)

    @property
    def queues(self) -> set[int]:
        """The queues of which a lock is needed."""
        return {queue_id for queue_id, _ in self._alone}

    @property
    def alone(self) -> bool:
        """Whether one is taken alone."""
        return any(self._alone.values())

    def numbers(self, store: int) -> list[int]:
        """Return the numbers of the server's locks, in the order in which all commits take them.

        The lowest bit says whether others may share it. `store`: the schema's half of its locks.
        """
        return [
            lock_of(store, queue_id, lock) << 1 | (not alone)
            for (queue_id, lock), alone in sorted(self._alone.items())
        ]


def lock_of(store: int, queue_id: int, lock: int) -> int:
    """Return the number of the server's lock of a queue, or of a slot in the place of one."""
    return ((store << QUEUE_ID_BITS) + queue_id) << _KIND_BITS | lock
