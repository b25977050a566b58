"""Reads messages, on an event loop, in parts of bounded bytes."""

from __future__ import annotations

from collections.abc import Sequence

from lazaretto.aio import AsyncBroker
from lazaretto.aio.driver import driver_of
from lazaretto.engine.messages.peek import (
    PeekedPart,
    TooLittleRoom,
    largest_ahead,
    peek_part,
    sizes_of_numbers,
)
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import Slice, letters_part
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import DeadLetter

#: Letters of a part.
_LETTERS = 100
LettersPart = tuple[list[DeadLetter], Slice]


class Readings:
    """A server's reads of a broker. `room`: bytes of messages that a part may have."""

    def __init__(self, broker: AsyncBroker) -> None:
        self._read = driver_of(broker).read

    async def peek(
        self, path: EntityPath, limit: int, start: int, session_id: str | None, room: int
    ) -> PeekedPart | TooLittleRoom:
        """Return the first messages of a peek."""
        return await self._read(lambda tx: peek_part(tx, path, limit, start, session_id, room))

    async def letters(
        self, path: EntityPath, which: DeadLetterFilter, after: Slice | None, room: int, *, messages: bool
    ) -> LettersPart | TooLittleRoom:
        """Return dead letters behind a slice, or the first ones, in the order of their numbers."""
        return await self._read(
            lambda tx: letters_part(tx, path, which, _LETTERS, after=after, messages=messages, room=room)
        )

    async def size(self, path: EntityPath, numbers: Sequence[int]) -> int:
        """Return the bytes of messages by their numbers, wherever in their queue they are."""
        return await self._read(lambda tx: sizes_of_numbers(tx, path, numbers))

    async def size_ahead(self, path: EntityPath, limit: int) -> int:
        """Return the bytes of the largest of the first messages in a subqueue."""
        return await self._read(lambda tx: largest_ahead(tx, path, limit))
