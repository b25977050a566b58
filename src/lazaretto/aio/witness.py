"""Writes into the audit log, on an event loop, what changes nothing: exports, reads and refused logins."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, Final

from lazaretto.aio import AsyncBroker
from lazaretto.aio.driver import driver_of
from lazaretto.engine.access import SetSigningRules, rules_above, rules_at
from lazaretto.engine.audited import NoteAct
from lazaretto.errors import LazarettoError, StoreReadOnly
from lazaretto.model.actors import Actor, NameKind
from lazaretto.model.entities import EntityPath
from lazaretto.model.grants import SigningRule, owner_of
from lazaretto.store.sql.store import Store

_MINUTE = 60.0

_log = logging.getLogger("lazaretto.audit")
#: Refused logins that are noted in a minute, from all addresses together.
MOST_REFUSALS: Final = 100

_kept: weakref.WeakKeyDictionary[Store, _Kept] = weakref.WeakKeyDictionary()


class Minutes:
    """Says what is noted, and counts the rest. `most`: notes in a minute in all; None: any number."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._began = float("-inf")
        self._noted: set[Hashable] = set()
        self._rest = 0

    def note(self, key: Hashable, now: float) -> int | None:
        """Return how many were not noted before this one; None: this one is not noted either.

        Times are in seconds.
        """
        if now >= self._began + _MINUTE:
            self._began = now
            self._noted.clear()
        if key in self._noted or (self._most is not None and len(self._noted) >= self._most):
            self._rest += 1
            return None
        self._noted.add(key)
        rest, self._rest = self._rest, 0
        return rest


class _Kept:
    """Recent notes about one store, from all doors of this process."""

    def __init__(self) -> None:
        self.refusals = Minutes(MOST_REFUSALS)
        self.reads = Minutes()


class Witness:
    """Notes what was seen at the doors of a broker."""

    def __init__(self, broker: AsyncBroker) -> None:
        self._driver = driver_of(broker)
        self._noted = _kept.setdefault(self._driver.store, _Kept())

    async def exported(self, actor: Actor, queue: str, **detail: Any) -> None:
        """Note that somebody takes an export."""
        await self._write(NoteAct(actor, "export", queue, detail))

    async def read(self, actor: Actor, path: str) -> None:
        """Note that somebody reads redacted fields: one entry for each person, entity and minute."""
        entity = owner_of(path)
        if self._noted.reads.note((str(actor), actor.kind, entity), time.monotonic()) is not None:
            await self._write(NoteAct(actor, "read redacted", entity, {}))

    async def refused(self, address: str, door: str) -> None:
        """Note a refused login: one entry for each address and minute, at most 100 a minute in all.

        The entry after those that were not noted counts them.
        """
        rest = self._noted.refusals.note(address, time.monotonic())
        if rest is not None:
            # What was given for a name may be a secret in the wrong place.
            actor = Actor.at("-", address, door=door, kind=NameKind.PROCESS)
            await self._write(NoteAct(actor, "access: refused", "", {"more": rest} if rest else {}))

    async def _write(self, noting: NoteAct) -> None:
        try:
            await self._driver.perform(noting)
        except StoreReadOnly:
            _log.warning(
                "%s of %r by %s is not in the audit log: the store is read-only",
                noting.action, noting.queue, noting.actor,
            )  # fmt: skip
        except LazarettoError as error:
            _log.error("%s by %s is not in the audit log: %s", noting.action, noting.actor, error)


class SigningRules:
    """The authorization rules of a broker's queues and topics."""

    def __init__(self, broker: AsyncBroker) -> None:
        self._driver = driver_of(broker)

    async def above(self, path: str) -> tuple[str, tuple[SigningRule, ...]]:
        """Return the queue or topic that a path is in, and its rules. Where nothing is: an empty path."""
        return await self._driver.read(lambda tx: rules_above(tx, path))

    async def at(self, paths: Sequence[str]) -> dict[str, tuple[SigningRule, ...]]:
        """Return the rules of each entity that has some, by path in lower case."""
        return await self._driver.read(lambda tx: rules_at(tx, paths))

    async def set(self, path: str, rules: Sequence[SigningRule], actor: str) -> None:
        """Set the rules of a queue or topic. Raises EntityNotFound, InvalidOption, NotAllowed."""
        setting = SetSigningRules(EntityPath.parse(path), tuple(rules), actor)
        await self._driver.perform(setting)
