"""Commands with an idempotency key, in SQL."""

from __future__ import annotations

import msgspec

from lazaretto.store.contract.command_contract import CommandRecord
from lazaretto.store.sql.commit_context import Part


class CommandTables(Part):
    """What a transaction does with commands that were run under an idempotency key."""

    def find(self, key: str) -> CommandRecord | None:
        row = self._context.run("select_command", (key,)).fetchone()
        return CommandRecord(*row) if row else None

    def keep(self, record: CommandRecord) -> None:
        self._context.run("save_command", msgspec.structs.asdict(record))

    def forget(self, before: int, limit: int) -> bool:
        return bool(self._context.run("delete_commands", (before, limit)).rowcount >= limit)
