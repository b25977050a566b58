"""Handlers that a server was started with, so that people can try letters on them; nothing else is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from lazaretto.model.edits.edit import Edit


@dataclasses.dataclass(frozen=True, slots=True)
class TriedLetter:
    """The outcome of a letter if it were sent back now.

    `error_type`, `error_message`: of the failure; None: it would succeed. `refused`: why it would not be
    sent. `sends`: messages that the handler would send, by queue. `statements`: SQL statements that it would
    execute.
    """

    error_type: str | None = None
    error_message: str | None = None
    refused: str | None = None
    sends: dict[str, int] = dataclasses.field(default_factory=dict)
    statements: int = 0


class TriedHandlers(Protocol):
    """Tries letters of one store on handlers, in a sandbox; nothing is settled or sent."""

    def names(self, queue: str) -> Sequence[str]:
        """Return the names of handlers for the letters of a queue."""
        ...

    async def try_letter(self, queue: str, number: int, name: str, edit: Edit | None) -> TriedLetter:
        """Try a dead letter on a handler, as an edit would leave it.

        Raises InvalidOption for another handler, MessageNotFound, HandlerError, SandboxSetupError.
        """
        ...
