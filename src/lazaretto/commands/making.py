"""Makes the changes of operators for the methods of Python."""

from __future__ import annotations

from typing import TypeVar

from lazaretto.engine.command import CommandOf
from lazaretto.engine.log import acting
from lazaretto.store.sql.store import Store

T = TypeVar("T")


class Maker:
    """The base of what has a method for each change."""

    _store: Store

    def _make(self, command: CommandOf[T], actor: str | None) -> T:
        """Make a change as somebody, and return its answer."""
        return self._store.run(command.operation(self._store, acting(actor)))
