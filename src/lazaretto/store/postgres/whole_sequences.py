"""Plans sequence numbers: the server finds them within the commit."""

from __future__ import annotations

import bisect
import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import PARTITION_SEQUENCE_BITS, lower_bound, upper_bound
from lazaretto.store.postgres.plan import Planned, Unforeseen
from lazaretto.store.postgres.queue_locks import QueueLock
from lazaretto.store.postgres.whole_context import WholeContext
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.queue_tables import QueueTables
from lazaretto.store.sql.sequence_numbers import PartitionTables, SequenceNumbers

#: So many of the last numbers of each lane stand for those that only the commit knows, in their order.
_PLACEHOLDERS = 1 << 20
_MASK = (1 << PARTITION_SEQUENCE_BITS) - 1


class Used:
    """Numbers of a lane that a commit uses for messages that do not stay there."""

    __slots__ = ("before", "count", "first", "lane")

    def __init__(self, lane: int, first: int, count: int) -> None:
        self.lane = lane
        #: The place of the first among all placeholders of the commit.
        self.first = first
        self.count = count
        #: The number before the first one, known after the commit.
        self.before = 0


class WholeSequences(SequenceNumbers):
    """The part for sequence numbers. The server assigns them."""

    def __init__(self, context: WholeContext, queues: QueueTables, partitions: PartitionTables) -> None:
        super().__init__(context, queues, partitions)
        self._whole = context
        self._finds = False
        self._used: list[Used] = []

    def begin(self) -> None:
        """Start on a new commit."""
        self._used = []

    @contextlib.contextmanager
    def finding(self) -> Iterator[None]:
        """Let `take_key` give placeholders for keys that the commit finds."""
        self._finds = True
        try:
            yield
        finally:
            self._finds = False

    def take_keys(self, lane: int, count: int = 1) -> NoReturn:
        raise Unforeseen

    def take_key(self, queue: QueueRecord, partition_key: str | None = None, count: int = 1) -> int:
        first = self._used[-1].first + self._used[-1].count if self._used else 1
        if not self._finds or first + count > _PLACEHOLDERS:
            raise Unforeseen
        lane, whole = self._partitions.lane(queue, partition_key), self._whole
        used = Used(lane, first, count)
        whole.locks.hold(lane, QueueLock.END)
        sent = whole.run(
            "use_numbers",
            {**key_ranges(lane), "floor": whole.floors.get(lane, 0), "queue_id": lane, "count": count},
        )

        def note() -> None:
            (used.before,) = sent.fetchone()
            whole.raise_floor(lane, used.before + count)

        whole.afterwards.append(note)
        self._used.append(used)
        return upper_bound(lane) - _PLACEHOLDERS + first

    def keep(self, key: int) -> None:
        # What is used is kept.
        if not is_placeholder(key):
            super().keep(key)

    def behind(self, number: int) -> tuple[int, int]:
        """Return the lane of a placeholder's number, and how many numbers the commit uses behind it."""
        used, place = self._find(number)
        return used.lane, used.count - 1 - place

    def found(self, keys: Sequence[int]) -> Callable[[], list[int]]:
        """Return a function that gives, after the commit, the keys for which placeholders stand."""
        sequences = [self._find(key) for key in keys]
        return lambda: [lower_bound(used.lane) + used.before + 1 + place for used, place in sequences]

    def _find(self, number: int) -> tuple[Used, int]:
        """Return where a placeholder is, and its place there."""
        place = _place(number)
        used = self._used[bisect.bisect_right(self._used, place, key=_FIRST) - 1]
        return used, place - used.first

    def keep_highest(self, keys: Sequence[int], queue: QueueRecord | None = None) -> None:
        # In one order in all commits: the rows that are replaced are locked.
        for lane, number in sorted(self._highest(keys, queue).items()):
            # Whoever removes a message of a higher number keeps that one.
            if number >= self._whole.floors.get(lane, 0):
                self._keep_number(lane, number)

    def _keep_number(self, lane: int, number: int) -> None:
        whole = self._whole
        sent = whole.run("keep_high_water", {**key_ranges(lane), "queue_id": lane, "number": number})

        def note() -> None:
            assert isinstance(sent, Planned)
            above = sent.number()
            whole.raise_floor(lane, number if above is None else above)

        whole.afterwards.append(note)


_FIRST = operator.attrgetter("first")


def _place(number: int) -> int:
    return (number & _MASK) - (_MASK - _PLACEHOLDERS)


def is_placeholder(number: int | None) -> bool:
    """Return whether a key, or a sequence number, may stand for one that only the commit knows."""
    return number is not None and _place(number) > 0


@functools.lru_cache(maxsize=1024)
def key_ranges(lane: int) -> Mapping[str, int]:
    """Return the key ranges of a lane's messages, as parameters."""
    return {
        "main": lower_bound(lane),
        "dead": lower_bound(lane, Subqueue.DEAD_LETTER),
        "transfer": lower_bound(lane, Subqueue.TRANSFER_DEAD_LETTER),
        "most": upper_bound(lane) - lower_bound(lane),
    }
