"""Which partition of a queue a message goes to, and which one a process takes messages from next. Pure.

A message with a session or partition key goes where the hash of that key says, which never changes. Others go
to the home of the process that sends them. A process takes from its home first, unless what waits in another
partition is older by more than `SLACK`. Each process has a slot, the lowest that no other has. Its home
in a queue is the slot modulo the number of partitions, so processes share homes only if they are more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

#: How much older a message elsewhere may be than the next one at home, in microseconds.
SLACK = 350_000
#: How long a process relies on what it knows of other partitions, in microseconds.
LOOK_EVERY = 250_000
#: How many processes have a slot of their own.
SLOTS = 256


class Keyed(Protocol):
    """A message with the keys that it was sent with."""

    @property
    def session_id(self) -> str | None: ...

    @property
    def partition_key(self) -> str | None: ...

    @property
    def message_id(self) -> str | None: ...


def partition_of(key: str, partitions: int) -> int:
    """Return a key's partition: its BLAKE2b hash of 8 bytes, big-endian, modulo the number of partitions."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


def partition_key_of(message: Keyed, *, detects: bool) -> str | None:
    """Return what a message's partition is chosen by, None if by nothing.

    `detects`: duplicates are detected, which find each other in one partition.
    """
    key = chosen_key(message.session_id, message.partition_key)
    return message.message_id if key is None and detects else key


def detection_key(partition_key: str | None, partitions: int) -> str:
    """Return what duplicates of a message share beside its id: its key, where a queue has partitions."""
    return partition_key or "" if partitions > 1 else ""


def chosen_key(session_id: str | None, partition_key: str | None) -> str | None:
    """Return what a sender chose a partition by: a session before a key; None: neither."""
    return partition_key if session_id is None else session_id


class Rounds:
    """A process's view of a queue's partitions: since when the first message of each has waited.

    It may be wrong about others' doings, so an answer that nothing waits needs a new look.
    """

    def __init__(self, home: int, partitions: int) -> None:
        self.home = home
        self.partitions = partitions
        self._heads: list[int | None] = [None] * partitions
        self._looked: int | None = None

    def needs_look(self, now: int) -> bool:
        """Return whether the partitions must be looked at before one is chosen."""
        recent = self._looked is not None and 0 <= now - self._looked < LOOK_EVERY
        return not recent or all(head is None for head in self._heads)

    def note_look(self, heads: Sequence[int | None], now: int) -> None:
        """Note when the first message of each partition came, None where there is none."""
        self._heads = list(heads)
        self._looked = now

    def note_sent(self, partition: int, now: int) -> None:
        """Note that this process sends to a partition."""
        if self._heads[partition] is None:
            self._heads[partition] = now

    def note_taken(self, partition: int, last: int | None, *, any_taken: bool) -> None:
        """Note when the last message came that was taken from a partition; None: nothing is left there."""
        head = self._heads[partition]
        self._heads[partition] = last if last is None or head is None else max(last, head)
        if not any_taken:
            # What was known was wrong.
            self._looked = None

    def order(self) -> list[int]:
        """Return the partitions in which something may wait, in the order to look at them."""
        heads, count = self._heads, len(self._heads)
        waiting = [
            (head // SLACK, (partition - self.home) % count, partition)
            for partition, head in enumerate(heads)
            if head is not None
        ]
        order = [partition for _, _, partition in sorted(waiting)]
        own = heads[self.home]
        if own is not None and own - min(head for head in heads if head is not None) <= SLACK:
            order.remove(self.home)
            order.insert(0, self.home)
        return order


class Homes:
    """A process's view of all partitioned queues. `take_slot` gives it its slot, once it needs one."""

    def __init__(self, take_slot: Callable[[], int]) -> None:
        self._take_slot = take_slot
        self.slot: int | None = None
        self._rounds: dict[int, Rounds] = {}

    def rounds(self, queue_id: int, partitions: int) -> Rounds:
        """Return what is known of a queue's partitions."""
        rounds = self._rounds.get(queue_id)
        if rounds is None or rounds.partitions != partitions:
            if self.slot is None:
                self.slot = self._take_slot()
            rounds = self._rounds[queue_id] = Rounds(self.slot % partitions, partitions)
        return rounds

    def find(self, queue_id: int) -> Rounds | None:
        """Return what is known of a queue's partitions, None if it is nothing."""
        return self._rounds.get(queue_id)

    def forget(self) -> None:
        """Forget all, also the slot, which may be another process's now."""
        self.slot = None
        self._rounds.clear()
