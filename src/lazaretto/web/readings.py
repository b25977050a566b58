"""Messages read in parts, as somebody may see them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import Final, Protocol

from lazaretto.aio import AsyncBroker
from lazaretto.aio.readings import LettersPart, Readings
from lazaretto.aio.visits import Visits
from lazaretto.aio.witness import Witness
from lazaretto.commands.opposites import LATER
from lazaretto.engine.log import AuditEntry
from lazaretto.engine.messages.peek import PeekedPart, TooLittleRoom
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import Slice
from lazaretto.model.edits.redact import Redaction
from lazaretto.model.entities import EntityPath
from lazaretto.model.grants import Permission
from lazaretto.model.redaction import RedactionRule, rules_for
from lazaretto.web.access import Identity
from lazaretto.web.redacted import meant, without_search

#: Seconds for which rules are not read again within one answer, such as a stream of events.
_FRESH: Final = 0.5


class WebReadings(Protocol):
    """Reads parts, as `Readings` does."""

    async def peek(
        self, path: EntityPath, limit: int, start: int, session_id: str | None, room: int
    ) -> PeekedPart | TooLittleRoom: ...

    async def letters(
        self, path: EntityPath, which: DeadLetterFilter, after: Slice | None, room: int, *, messages: bool
    ) -> LettersPart | TooLittleRoom: ...

    async def size(self, path: EntityPath, numbers: Sequence[int]) -> int: ...

    async def size_ahead(self, path: EntityPath, limit: int) -> int: ...


class Seer(Protocol):
    """Knows what somebody may see."""

    async def redaction_at(self, path: str) -> Redaction:
        """Return what is hidden in an entity's messages."""
        ...

    async def check_filter(self, path: str, which: DeadLetterFilter) -> None:
        """Raise NotPermitted if a condition names what may not be read."""
        ...

    async def attempters(self, path: str, numbers: list[int], which: DeadLetterFilter) -> dict[int, str]:
        """Return who made the latest attempt at dead letters, if a filter asks for it."""
        ...


class ViewRules:
    """The rules for somebody, read when they are needed, and again where an answer takes long."""

    def __init__(self, broker: AsyncBroker, who: Identity) -> None:
        self._visits, self._who, self._witness = Visits(broker), who, Witness(broker)
        self._rules: tuple[tuple[RedactionRule, ...], bytes] | None = None
        self._read = 0.0
        self._known: dict[str, Redaction] = {}

    async def load(self) -> bool:
        """Read the rules; return whether there are any."""
        now = time.monotonic()
        if self._rules is None or now - self._read >= _FRESH:
            rules = await self._visits.redaction()
            if rules != self._rules:
                self._known = {}
            self._rules, self._read = rules, now
        return bool(self._rules[0])

    def of(self, path: str) -> Redaction:
        """Return those for an entity, once they are read."""
        assert self._rules is not None
        redaction = self._known.get(path)
        if redaction is None:
            rules, key = self._rules
            some = () if self._who.may(Permission.READ_SECRETS, path) else rules_for(rules, path)
            redaction = self._known[path] = Redaction(some, key)
        return redaction

    async def at(self, path: str) -> Redaction:
        """Read the rules, and return those for an entity."""
        return self.of(path) if await self.load() else Redaction()

    async def note_read(self, path: str) -> None:
        """Note that somebody reads fields that are redacted for others, if the entity has some."""
        if not await self.load() or not self._who.may(Permission.READ_SECRETS, path):
            return
        assert self._rules is not None
        if rules_for(self._rules[0], path):
            await self._witness.read(self._who.actor, path)


class ViewedReadings:
    """Reads parts as somebody sees them."""

    def __init__(self, readings: Readings, seer: Seer) -> None:
        self._readings, self._seer = readings, seer
        self.size, self.size_ahead = readings.size, readings.size_ahead

    async def peek(
        self, path: EntityPath, limit: int, start: int, session_id: str | None, room: int
    ) -> PeekedPart | TooLittleRoom:
        redaction = await self._seer.redaction_at(str(path))
        part = await self._readings.peek(path, limit, start, session_id, room)
        if not redaction or isinstance(part, TooLittleRoom):
            return part
        messages, last = part
        seen = await asyncio.to_thread(lambda: [redaction.message(one) for one in messages])
        return PeekedPart(seen, last)

    async def letters(
        self, path: EntityPath, which: DeadLetterFilter, after: Slice | None, room: int, *, messages: bool
    ) -> LettersPart | TooLittleRoom:
        await self._seer.check_filter(str(path), which)
        # Rules may come while it is read: they are asked for anew with each part.
        redaction = await self._seer.redaction_at(str(path))
        if not redaction:
            return await self._readings.letters(path, which, after, room, messages=messages)
        part = await self._readings.letters(path, without_search(which), after, room, messages=True)
        if isinstance(part, TooLittleRoom):
            return part
        letters, slice_ = part
        workers = await self._seer.attempters(str(path), [one.sequence_number for one in letters], which)
        seen = await asyncio.to_thread(meant, letters, which, redaction, workers)
        return [one if messages else dataclasses.replace(one, message=None) for one in seen], slice_


class WitnessedReadings:
    """Reads parts, and notes who reads redacted fields."""

    def __init__(self, readings: WebReadings, rules: ViewRules) -> None:
        self._readings, self._rules = readings, rules
        self.size, self.size_ahead = readings.size, readings.size_ahead

    async def peek(
        self, path: EntityPath, limit: int, start: int, session_id: str | None, room: int
    ) -> PeekedPart | TooLittleRoom:
        await self._rules.note_read(str(path))
        return await self._readings.peek(path, limit, start, session_id, room)

    async def letters(
        self, path: EntityPath, which: DeadLetterFilter, after: Slice | None, room: int, *, messages: bool
    ) -> LettersPart | TooLittleRoom:
        await self._rules.note_read(str(path))
        return await self._readings.letters(path, which, after, room, messages=messages)


async def later_than(broker: AsyncBroker, entries: Sequence[AuditEntry]) -> list[AuditEntry]:
    """Return the newest actions since the first of some entries, as `opposites` needs them."""
    return await broker.audit(since=entries[0].time, limit=LATER) if entries else []
