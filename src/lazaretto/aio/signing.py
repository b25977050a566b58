"""Reads and sets, on an event loop, the keys with which clients sign for one entity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazaretto.aio import AsyncBroker
from lazaretto.aio.driver import Driver
from lazaretto.engine.entities.signing_rules import SetSigningRules, rules_above, rules_at
from lazaretto.model.entities import EntityPath
from lazaretto.model.signing import SigningRule
from lazaretto.store.sql.store import Store


class SigningRules:
    """The authorization rules of a broker's queues and topics."""

    def __init__(self, broker: AsyncBroker) -> None:
        inner: Any = broker
        self._store: Store = inner._inner._store
        self._driver: Driver = inner._driver

    async def above(self, path: str) -> tuple[str, tuple[SigningRule, ...]]:
        """Return the queue or topic that a path is in, and its rules. Where nothing is: an empty path."""
        return await self._driver.call(self._store.read, lambda tx: rules_above(tx, path))

    async def at(self, paths: Sequence[str]) -> dict[str, tuple[SigningRule, ...]]:
        """Return the rules of each entity that has some, by path in lower case."""
        return await self._driver.call(self._store.read, lambda tx: rules_at(tx, paths))

    async def set(self, path: str, rules: Sequence[SigningRule], actor: str) -> None:
        """Set the rules of a queue or topic. Raises EntityNotFound, InvalidOption, NotAllowed."""
        setting = SetSigningRules(EntityPath.parse(path), tuple(rules), actor)
        await self._driver.call(self._store.run, setting)
