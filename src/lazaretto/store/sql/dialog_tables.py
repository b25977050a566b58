"""Dialogs in SQL: the part of a transaction for definitions, conversations and their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from lazaretto.model.conversations import ConversationEvent, ConversationState, after, at_time, dialog_of
from lazaretto.model.dialog_contracts import KINDS, Definition, Definitions, kind_of
from lazaretto.model.keys import lower_bound
from lazaretto.model.messages import ReceivedMessage
from lazaretto.store.records.dialogs import ConversationRecord, Happening, NextGroup, OpenStream
from lazaretto.store.records.messages import SUSPECT
from lazaretto.store.sql.commit_context import Part
from lazaretto.store.sql.rows import Cursor

#: How many conversations are remembered between commits.
_MOST_REMEMBERED = 10_000


def conversation_of(row: Sequence[Any]) -> ConversationRecord:
    """Return an end of a dialog as it is stored."""
    handle, queue_id, service, far_service, contract, group_id, state, *standing = row
    return ConversationRecord(
        handle, queue_id, service, far_service, contract, group_id, ConversationState(state), *standing
    )


def in_order(rows: Iterable[Sequence[Any]]) -> list[ReceivedMessage]:
    """Return the messages of a stream that go together: those before a suspect."""
    messages: list[ReceivedMessage] = []
    for *fields, state in rows:
        message = ReceivedMessage(*fields)
        if state == SUSPECT:
            # It keeps its place: what is before it goes first, what is behind it waits, it goes alone.
            message.alone = True
            return messages or [message]
        messages.append(message)
    return messages


class DialogTables(Part):
    """Operations on dialogs within one commit."""

    def definitions(self) -> Definitions:
        """Return all definitions."""
        if self._context.memory.definitions is None:
            rows = self._context.run("select_definitions")
            definitions = [msgspec.json.decode(body, type=KINDS[kind]) for kind, body in rows]
            self._context.memory.definitions = Definitions(tuple(definitions))
        return self._context.memory.definitions

    def save_definition(self, definition: Definition) -> None:
        """Add a definition, or replace the one with its name."""
        body = msgspec.json.encode(definition).decode()
        values = {"kind": kind_of(definition), "name": definition.name, "body": body}
        self._context.run("save_definition", values)
        self._context.memory.definitions = None

    def delete_definition(self, kind: str, name: str) -> None:
        """Remove a definition."""
        self._context.run("delete_definition", {"kind": kind, "name": name})
        self._context.memory.definitions = None

    def conversation(self, handle: str) -> ConversationRecord | None:
        """Return one end of a dialog."""
        conversations = self._context.memory.conversations
        if handle not in conversations:
            row = self._context.run("select_conversation", {"handle": handle}).fetchone()
            self._remember(handle, conversation_of(row) if row else None)
        return conversations[handle]

    def _remember(self, handle: str, record: ConversationRecord | None) -> None:
        conversations = self._context.memory.conversations
        if len(conversations) >= _MOST_REMEMBERED:
            conversations.clear()
        conversations[handle] = record

    def save_conversation(self, record: ConversationRecord) -> None:
        """Add one end of a dialog, or store its new state."""
        self._remember(record.handle, record)
        values = msgspec.structs.asdict(record)
        values["state"] = record.state.value
        self._context.run("save_conversation", values)

    def delete_conversation(self, handle: str) -> None:
        """Delete one end of a dialog."""
        self._remember(handle, None)
        self._context.run("delete_conversation", {"handle": handle})

    def count_sent(self, handle: str) -> ConversationRecord | None:
        """Count a message that an end sends, and return its new state; None if it cannot send now."""
        record = self.conversation(handle)
        state = None if record is None else at_time(record.state, record.expires, self._context.now)
        state = None if state is None else after(state, ConversationEvent.SEND)
        if record is None or state is None:
            return None
        record = msgspec.structs.replace(record, sent=record.sent + 1, state=state)
        values = {"handle": handle, "sent": record.sent, "state": state.value}
        self._context.run("count_sent", values)
        self._remember(handle, record)
        return record

    def conversations(
        self,
        after: str,
        limit: int,
        *,
        queue_id: int | None,
        state: ConversationState | None,
        group_id: str | None,
        held: bool = False,
    ) -> list[ConversationRecord]:
        """Return conversations in the order of handles, after a given one; `held`: only those held."""
        values = {
            "after": after,
            "limit": limit,
            "queue_id": queue_id,
            "state": None if state is None else state.value,
            "group_id": group_id,
        }
        query = "select_held_conversations" if held else "select_conversations"
        return [conversation_of(row) for row in self._context.run(query, values)]

    def service_in_use(self, name: str) -> bool:
        """Return whether a service has a conversation, at either end."""
        return bool(self._context.run("uses_of_service", {"name": name}).fetchone()[0])

    def contract_in_use(self, name: str) -> bool:
        """Return whether there is a conversation under a contract."""
        return bool(self._context.run("uses_of_contract", {"name": name}).fetchone()[0])

    def group_open(self, queue_id: int, group_id: str) -> bool:
        """Return whether a conversation of the group is not ended yet at this end."""
        values = {"queue_id": queue_id, "group_id": group_id}
        return bool(self._context.run("group_open", values).fetchone()[0])

    def levels(self, queue_id: int) -> list[int]:
        """Return the priorities that may have messages in a queue, ascending."""
        levels = self._context.memory.levels
        if queue_id not in levels:
            rows = self._context.run("select_levels", {"queue_id": queue_id})
            levels[queue_id] = {int(level, 16) for (level,) in rows}
        return sorted(levels[queue_id])

    def note_streams(self, queue_id: int, session_ids: Iterable[str | None]) -> None:
        """Note the priorities of messages that come to a queue, if it is one of dialogs."""
        levels = self._context.memory.levels.get(queue_id)
        if levels is not None:
            levels.update(int(session_id[0], 16) for session_id in session_ids if session_id)

    def free_group(self, queue_id: int, session_id: str, token: int) -> None:
        """Release the lock on a conversation group's session if it is held under `token`."""
        values = {"queue_id": queue_id, "session_id": session_id, "token": token}
        self._context.run("forget_group_lock", values)
        self._context.run("free_group_lock", values)
        self._context.wake(lower_bound(queue_id))

    def next_group(
        self, queue_id: int, ranges: Sequence[tuple[str, str]], token: int = 0, limit: int = 0
    ) -> Callable[[], NextGroup | None]:
        """Return a function that gives the next group with a receivable message, and its messages.

        The message must be receivable by anyone, or by the holder of groups locked under `token`. `ranges`:
        the ranges of session ids to search, in order.
        """

        def look() -> NextGroup | None:
            for low, end in ranges:
                values = {
                    "queue_id": queue_id,
                    "after": low,
                    "end": end,
                    "now": self._context.now,
                    "token": token,
                }
                row = self._context.run("next_stream", values).fetchone()
                if row:
                    found_by, _, group_id, *_ = row
                    messages = self.open_messages(queue_id, group_id, None, token, limit)
                    return None if messages is None else NextGroup(found_by, *messages)
            return None

        return look

    def open_messages(
        self, queue_id: int, group_id: str, handle: str | None, token: int, limit: int
    ) -> tuple[OpenStream, list[ReceivedMessage]] | None:
        """Return the first stream of a group, or of one of its conversations, and its next messages.

        Messages locked under `token` do not block others. A suspect is delivered alone.
        """
        row = self._open_stream(queue_id, group_id, handle, token).fetchone()
        if not row:
            return None
        stream = OpenStream(*row)
        return stream, in_order(self._stream_messages(queue_id, stream.session_id, stream.before, limit))

    def _open_stream(self, queue_id: int, group_id: str, handle: str | None, token: int) -> Cursor:
        values = {"queue_id": queue_id, "group_id": group_id, "handle": handle, "token": token}
        return self._context.run("open_stream", values)

    def _stream_messages(self, queue_id: int, session_id: str, before: int, limit: int) -> Cursor:
        values = {"queue_id": queue_id, "session_id": session_id, "before": before, "limit": limit}
        return self._context.run("stream_messages", values)

    def record_happening(
        self,
        handle: str,
        kind: str,
        message_type: str | None = None,
        number: int | None = None,
        text: str | None = None,
        sent: int | None = None,
    ) -> None:
        """Add to a dialog's log. `sent`: when the message was sent whose outcome this entry records."""
        values = {
            "dialog_id": dialog_of(handle),
            "now": self._context.now,
            "sent": sent,
            "handle": handle,
            "kind": kind,
            "message_type": message_type,
            "number": number,
            "text": text,
        }
        self._context.run("insert_happening", values)

    def happenings(self, dialog: str) -> list[Happening]:
        """Return a dialog's log, oldest first."""
        return [Happening(*row) for row in self._context.run("select_happenings", {"dialog_id": dialog})]

    def trim_happenings(self, dialog: str, keep: int) -> None:
        """Delete all but the latest entries of a dialog's log."""
        self._context.run("trim_happenings", {"dialog_id": dialog, "keep": keep})

    def forget_happenings(self, dialog: str) -> None:
        """Delete a dialog's log."""
        self._context.run("delete_happenings", {"dialog_id": dialog})
