"""Asks the store, on an event loop, whom a secret stands for; opens and ends sessions of browsers."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lazaretto.aio import AsyncBroker
from lazaretto.aio.driver import driver_of
from lazaretto.engine.access import NewSecret, Visitor, find_visitor, grants_of
from lazaretto.engine.audited import NoteTry
from lazaretto.engine.claims.consumers import ClaimPipeline, list_consumers
from lazaretto.engine.command import Command
from lazaretto.engine.entities.overview import read_client_advice
from lazaretto.engine.logins import CloseSession, NoteSeen, OpenSession, OpenVouchedSession
from lazaretto.engine.messages.sessions import stored_session_state
from lazaretto.engine.outcome.causes import cause_days
from lazaretto.engine.outcome.dead_letter_operations import workers_of
from lazaretto.engine.redaction import find_rules, redaction_key
from lazaretto.engine.routing.forwards import places_behind
from lazaretto.model.clock import iso
from lazaretto.model.edits.edit import Edit
from lazaretto.model.entities import EntityPath, dead_letter_path
from lazaretto.model.grants import Grant
from lazaretto.model.redaction import RedactionRule
from lazaretto.model.trouble import Trouble

_log = logging.getLogger("lazaretto.access")


class Visits:
    """Visitors of a broker's server."""

    def __init__(self, broker: AsyncBroker) -> None:
        self._driver = driver_of(broker)

    async def find(self, secret: str, kind: str, *, notes: bool = True) -> Visitor | None:
        """Return whom a secret stands for, and note that it was used; None if it is not known.

        `notes`: False notes nothing.
        """
        visitor = await self._driver.read(lambda tx: find_visitor(tx, secret, kind))
        if visitor is not None and visitor.stale and notes:
            await self._driver.perform(NoteSeen(visitor.id))
            if visitor.ends is not None:
                # Not with each request: as often as it is noted that a token is used.
                _log.warning(
                    "token %s of %s ends at %s: make another one, and revoke this one",
                    visitor.id, visitor.name, iso(visitor.ends),
                )  # fmt: skip
        return visitor

    async def grants(self, names: Sequence[str]) -> list[tuple[Grant, ...]]:
        """Return what was granted to each of several people and groups."""
        return await self._driver.read(lambda tx: [grants_of(tx, name) for name in names])

    async def redaction(self) -> tuple[tuple[RedactionRule, ...], bytes]:
        """Return the rules for fields that people may not read, and the key of hashes."""
        return await self._driver.read(lambda tx: (find_rules(tx), redaction_key(tx)))

    async def mark_of_commits(self) -> str | None:
        """Return what stays the same while nobody commits; None if that cannot be told."""
        return await self._driver.call(self._driver.store.mark_of_commits)

    async def workers(self, path: str, numbers: Sequence[int]) -> dict[int, str]:
        """Return who made the latest attempt at each dead letter, by sequence number, where that is known."""
        parsed = EntityPath.parse(path)
        return await self._driver.read(lambda tx: workers_of(tx, parsed, numbers))

    async def session_state(self, path: str, session_id: str) -> bytes | None:
        """Return a session's state, whoever holds the session."""
        parsed = EntityPath.parse(path)
        return await self._driver.read(lambda tx: stored_session_state(tx, parsed, session_id))

    async def cause_days(self, path: str, number: int) -> tuple[int, ...]:
        """Return how many letters a cause got on each of the last 28 days, today last."""
        parsed = dead_letter_path(EntityPath.parse(path))
        return await self._driver.read(lambda tx: cause_days(tx, parsed, number))

    async def client_advice(self, path: str) -> Trouble | None:
        """Return the options that would have spared a queue what clients' failures cost it, if any."""
        parsed = EntityPath.parse(path)
        return await self._driver.read(lambda tx: read_client_advice(tx, parsed))

    async def consumers(self) -> list[ClaimPipeline]:
        """Return all consumers of claims."""
        return await self._driver.read(list_consumers)

    async def places_behind(self, path: str) -> set[str]:
        """Return the paths of all entities that a message can come to that is sent to one, and its own."""
        queue = EntityPath.parse(path).queue
        return await self._driver.read(lambda tx: places_behind(tx, queue))

    async def destination(self, command: Command) -> str | None:
        """Return the path that a command sends messages to as things stand; None: nowhere."""
        return await self._driver.read(command.destination)

    async def note_try(self, path: str, number: int, handler: str, edit: Edit | None, actor: str) -> None:
        """Note that somebody has a handler run on a dead letter. See NoteTry."""
        noting = NoteTry(EntityPath.parse(path), number, handler, edit, actor)
        await self._driver.perform(noting)

    async def open_session(self, secret: str, former: str | None, address: str) -> NewSecret | None:
        """Open a session for whoever has a token or a link's code. See OpenSession."""
        return await self._driver.perform(OpenSession(secret, former, address))

    async def open_vouched_session(
        self, names: Sequence[str], by: str, former: str | None, address: str
    ) -> NewSecret | None:
        """Open a session for a person, who is the first of the names, and the groups after it."""
        opening = OpenVouchedSession(names[0], tuple(names[1:]), by, former, address)
        return await self._driver.perform(opening)

    async def close_session(self, session: str) -> None:
        """End a session."""
        await self._driver.perform(CloseSession(session))
