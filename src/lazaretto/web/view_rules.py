"""The rules for redacted fields that hold for somebody, and notes of who reads such fields."""

from __future__ import annotations

import time
from typing import Final

from lazaretto.aio import AsyncBroker
from lazaretto.aio.visits import Visits
from lazaretto.aio.witness import Witness
from lazaretto.model.edits.redact import Redaction
from lazaretto.model.permissions import Permission
from lazaretto.model.redaction import RedactionRule, rules_for
from lazaretto.web.access import Identity

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

    async def note_read(self, path: str) -> None:
        """Note that somebody reads fields that are redacted for others, if the entity has some."""
        if not await self.load() or not self._who.may(Permission.READ_SECRETS, path):
            return
        assert self._rules is not None
        if rules_for(self._rules[0], path):
            await self._witness.read(self._who.actor, path)
