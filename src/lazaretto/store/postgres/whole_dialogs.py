"""Plans what commits do with dialogs that go on: what begins or ends one is not planned."""

from __future__ import annotations

from typing import NoReturn

from lazaretto.model.conversations import far_end
from lazaretto.store.postgres.pipelined_dialogs import PgDialogTables
from lazaretto.store.postgres.plan import Planned, Unforeseen
from lazaretto.store.postgres.whole_context import WholeContext
from lazaretto.store.records.dialogs import ConversationRecord
from lazaretto.store.sql.dialog_tables import conversation_of


class WholeDialogs(PgDialogTables):
    """The part for dialogs. It asks for both ends of a conversation before it changes one."""

    def __init__(self, context: WholeContext) -> None:
        super().__init__(context)
        self._whole = context
        #: The ends that this commit changes.
        self._changed: set[str] = set()

    def begin(self) -> None:
        """Start on a new commit."""
        self._changed = set()

    def conversation(self, handle: str) -> ConversationRecord | None:
        conversations = self._whole.memory.conversations
        if handle not in conversations:
            self._ask(handle)
        return conversations[handle]

    def _ask(self, *handles: str) -> None:
        """Read ends of dialogs, all in one round trip."""
        asked: list[tuple[str, Planned]] = []
        for handle in handles:
            rows = self._whole.run("select_conversation", {"handle": handle})
            assert isinstance(rows, Planned)
            # What this commit changes of others does not matter.
            rows.unaffected = handle not in self._changed
            asked.append((handle, rows))
        for handle, rows in asked:
            row = rows.fetchone()
            self._whole.memory.conversations[handle] = conversation_of(row) if row else None

    def count_sent(self, handle: str) -> ConversationRecord | None:
        conversations = self._whole.memory.conversations
        if handle not in conversations:
            self._ask(handle, far_end(handle))
        record = super().count_sent(handle)
        self._changed.add(handle)
        return record

    def save_conversation(self, record: ConversationRecord) -> NoReturn:
        raise Unforeseen

    def delete_conversation(self, handle: str) -> NoReturn:
        raise Unforeseen

    def definitions(self) -> NoReturn:
        raise Unforeseen
