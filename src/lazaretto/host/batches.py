"""The number of messages a host commits at once, like transacted batching in queued WCF."""

from __future__ import annotations


class BatchSize:
    """The size of the next batch: 1 after a commit that rolled back, full again later.

    The full size returns after twice as many messages were committed.
    """

    def __init__(self, full: int) -> None:
        self._full = full
        self._left = 0

    @property
    def size(self) -> int:
        return 1 if self._left else self._full

    def rolled_back(self) -> None:
        """Note that a commit of several messages failed."""
        self._left = 2 * self._full

    def committed(self, messages: int) -> None:
        """Note that a commit went through."""
        self._left = max(0, self._left - messages)
