"""Handlers that `lazaretto serve` was given, on which people try letters in the console."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lazaretto.errors import InvalidOption, MessageNotFound
from lazaretto.model.edits.edit import Edit

if TYPE_CHECKING:
    from lazaretto.web.tries import TriedLetter


class ServedHandlers:
    """Tries letters of the store at `url`, one at a time, on handlers by the names they were given."""

    def __init__(self, url: str, handlers: Mapping[str, Any]) -> None:
        self._url, self._handlers = url, handlers
        # A sandbox is a process of its own.
        self._one = asyncio.Lock()

    def names(self, queue: str) -> Sequence[str]:
        """Return the names of handlers for the letters of a queue: functions are for any."""
        from lazaretto.host import Handler

        return [
            name
            for name, one in self._handlers.items()
            if not isinstance(one, Handler) or one.path.queue.lower() == queue.lower()
        ]

    async def try_letter(self, queue: str, number: int, name: str, edit: Edit | None) -> TriedLetter:
        """Try a dead letter on a handler. See TriedHandlers."""
        if name not in self.names(queue):
            raise InvalidOption(f"expected a handler that the server was started with, got {name!r}")
        async with self._one:
            return await asyncio.to_thread(self._try, queue, number, name, edit)

    def _try(self, queue: str, number: int, name: str, edit: Edit | None) -> TriedLetter:
        from lazaretto.broker.broker import connect
        from lazaretto.host import Handler
        from lazaretto.host.dry_run import dry_run
        from lazaretto.web.tries import TriedLetter

        given = self._handlers[name]
        handler = given if isinstance(given, Handler) else Handler(queue, given)
        with connect(self._url, create=False) as broker:
            found = dry_run(broker, queue, number, handler, edit=edit)
        if not found.letters:
            raise MessageNotFound(f"{number} of {queue!r} is no dead letter any more")
        failure = found.failures[0] if found.failures else None
        return TriedLetter(
            error_type=None if failure is None else failure.error_type or "failure",
            error_message=None if failure is None else failure.error_message,
            refused=next(iter(found.refused.values()), None),
            sends=found.sends,
            statements=found.statements,
        )


def load_handlers(names: Sequence[str]) -> dict[str, Any]:
    """Return functions and handlers by their names, such as "shop:book". Raises HandlerError."""
    from lazaretto.host import load_function

    return {name: load_function(name) for name in names}
