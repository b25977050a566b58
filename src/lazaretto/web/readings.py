"""Messages read in parts, as somebody may see them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar, cast

from lazaretto.aio import AsyncBroker
from lazaretto.aio.readings import LettersPart, Readings
from lazaretto.aio.visits import Visits
from lazaretto.aio.witness import Witness
from lazaretto.commands.opposites import LATER
from lazaretto.engine.log import AuditEntry
from lazaretto.engine.messages.peek import PeekedPart, TooLittleRoom
from lazaretto.engine.outcome.dead_letter_operations import DeadLetterFilter
from lazaretto.engine.outcome.dead_letter_pages import Slice
from lazaretto.model.edits.named_fields import filter_names
from lazaretto.model.edits.redact import Redaction
from lazaretto.model.entities import EntityPath
from lazaretto.model.filters.rules import sql
from lazaretto.model.grants import Permission
from lazaretto.model.redaction import RedactionRule, rules_for
from lazaretto.web.access import Identity
from lazaretto.web.redacted import HIDDEN_WHERE, meant, shown, without_search
from lazaretto.web.refusals import NotPermitted

T = TypeVar("T")
#: Seconds for which rules are not read again within one answer, such as a stream of events.
_FRESH: Final = 0.5


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

    async def read(self, path: str) -> Redaction:
        """Note that somebody reads messages of an entity, and return the rules for it."""
        await self.note_read(path)
        return await self.at(path)

    async def note_read(self, path: str) -> None:
        """Note that somebody reads fields that are redacted for others, if the entity has some."""
        if not await self.load() or not self._who.may(Permission.READ_SECRETS, path):
            return
        assert self._rules is not None
        if rules_for(self._rules[0], path):
            await self._witness.read(self._who.actor, path)

    async def shown(self, value: T, path: str = "") -> T:
        """Return what tells how something stands, for somebody. `path`: the entity, where it does not say."""
        return cast("T", shown(value, self.of, path)) if await self.load() else value

    async def check_filter(self, path: str, which: DeadLetterFilter) -> None:
        """Raise NotPermitted if a condition names what may not be read."""
        redaction = await self.at(path)
        where = which.where if redaction else None
        if where is not None and await asyncio.to_thread(filter_names, redaction, where):
            raise NotPermitted(HIDDEN_WHERE)

    async def attempters(self, path: str, numbers: Iterable[int], which: DeadLetterFilter) -> dict[int, str]:
        """Return who made the latest attempt at dead letters, by their numbers, if a filter asks for it."""
        if which.where is None or not sql().names_attempts(which.where):
            return {}
        return await self._visits.workers(path, list(numbers))


class ViewedReadings(Readings):
    """Reads parts as somebody sees them, and notes who reads redacted fields."""

    def __init__(self, broker: AsyncBroker, rules: ViewRules) -> None:
        super().__init__(broker)
        self._rules = rules

    async def peek(
        self, path: EntityPath, limit: int, start: int, session_id: str | None, room: int
    ) -> PeekedPart | TooLittleRoom:
        redaction = await self._rules.read(str(path))
        part = await super().peek(path, limit, start, session_id, room)
        if not redaction or isinstance(part, TooLittleRoom):
            return part
        messages, last = part
        seen = await asyncio.to_thread(lambda: [redaction.message(one) for one in messages])
        return PeekedPart(seen, last)

    async def letters(
        self, path: EntityPath, which: DeadLetterFilter, after: Slice | None, room: int, *, messages: bool
    ) -> LettersPart | TooLittleRoom:
        await self._rules.note_read(str(path))
        await self._rules.check_filter(str(path), which)
        # Rules may come while it is read: they are asked for anew with each part.
        redaction = await self._rules.at(str(path))
        if not redaction:
            return await super().letters(path, which, after, room, messages=messages)
        part = await super().letters(path, without_search(which), after, room, messages=True)
        if isinstance(part, TooLittleRoom):
            return part
        letters, slice_ = part
        workers = await self._rules.attempters(str(path), [one.sequence_number for one in letters], which)
        seen = await asyncio.to_thread(meant, letters, which, redaction, workers)
        return [one if messages else dataclasses.replace(one, message=None) for one in seen], slice_


async def later_than(broker: AsyncBroker, entries: Sequence[AuditEntry]) -> list[AuditEntry]:
    """Return the newest actions since the first of some entries, as `opposites` needs them."""
    return await broker.audit(since=entries[0].time, limit=LATER) if entries else []
