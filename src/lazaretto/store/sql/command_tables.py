"""Commands with an idempotency key, in SQL."""

from __future__ import annotations

import msgspec

from lazaretto.store.records.access import CommandRecord
from lazaretto.store.sql.commit_context import Part


class CommandTables(Part):
    """Operations on commands that were run under an idempotency key, within one commit."""

    def find(self, key: str) -> CommandRecord | None:
        """Return the command that was run under a key."""
        row = self._context.run("select_command", (key,)).fetchone()
        return CommandRecord(*row) if row else None

    def keep(self, record: CommandRecord) -> None:
        """Keep a command and its answer, in place of one with the same key."""
        self._context.run("save_command", msgspec.structs.asdict(record))

    def forget(self, before: int, limit: int) -> bool:
        """Delete commands that were run before a time; return whether there may be more."""
        return bool(self._context.run("delete_commands", (before, limit)).rowcount >= limit)
