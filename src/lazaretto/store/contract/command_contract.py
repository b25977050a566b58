"""Commands in the store that were run under an idempotency key, with their answers."""

from __future__ import annotations

from typing import Protocol

import msgspec


class CommandRecord(msgspec.Struct, frozen=True):
    """A command that was run. `digest`: of what it was; `answer`: as JSON; `time`: in microseconds."""

    key: str
    actor: str
    digest: bytes
    answer: bytes
    time: int


class StoredCommands(Protocol):
    """Operations on commands with an idempotency key within one commit."""

    def find(self, key: str) -> CommandRecord | None:
        """Return the command that was run under a key."""
        ...

    def keep(self, record: CommandRecord) -> None:
        """Keep a command and its answer, in place of one with the same key."""
        ...

    def forget(self, before: int, limit: int) -> bool:
        """Delete commands that were run before a time; return whether there may be more."""
        ...
