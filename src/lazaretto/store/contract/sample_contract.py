"""Completed messages in the store that are kept as examples of good ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from lazaretto.model.reservoir import Kept


class SampleRecord(msgspec.Struct, frozen=True):
    """A completed message that is kept. Times in microseconds.

    `worker`: who completed it; None: an older version did. `kept`: when it was completed.
    """

    key: int
    message_id: str
    enqueued: int
    headers: bytes | None
    body: bytes
    worker: str | None = None
    kept: int = 0


class StoredSamples(Protocol):
    """Operations on kept messages within one commit."""

    def keep(self, keys: Sequence[int], longest: int) -> None:
        """Keep messages that are about to be removed, except those with a body above a limit."""
        ...

    def put(self, samples: Sequence[SampleRecord]) -> None:
        """Keep messages in the form given, as completed now, by this process if no worker is given."""
        ...

    def standing(self, queue_id: int) -> list[Kept]:
        """Return the records of a queue's kept messages, without the messages."""
        ...

    def of_queue(self, queue_id: int) -> list[SampleRecord]:
        """Return a queue's kept messages."""
        ...

    def remove(self, keys: Sequence[int]) -> None:
        """Remove kept messages."""
        ...

    def remove_all(self, queue_id: int) -> None:
        """Remove all kept messages of a queue."""
        ...
