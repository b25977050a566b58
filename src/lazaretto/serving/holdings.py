"""Unstored messages held by connections: over the limit, the one that holds most must go."""

from __future__ import annotations

from typing import Generic, TypeVar

H = TypeVar("H")


class Holdings(Generic[H]):
    """Bytes that holders have, together at most so many."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        #: Whoever has held something for the longest time stands first.
        self._held: dict[H, int] = {}

    def hold(self, holder: H, size: int) -> None:
        """Note how many bytes somebody holds from now on."""
        self.total += size - self._held.get(holder, 0)
        if size:
            self._held[holder] = size
        else:
            self._held.pop(holder, None)

    @property
    def worst(self) -> H | None:
        """The one that must go: whoever holds most, while all together hold too much. None: nobody."""
        return max(self._held, key=self._held.__getitem__) if self.total > self.most else None
