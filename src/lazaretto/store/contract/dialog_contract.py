"""Dialogs in the store: definitions, conversations, their streams in queues, and their history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from lazaretto.model.conversations import ConversationState
from lazaretto.model.dialog_contracts import Definition, Definitions
from lazaretto.model.messages import ReceivedMessage


class ConversationRecord(msgspec.Struct, frozen=True):
    """One end of a dialog. `sent`: how many messages it has sent; times in microseconds."""

    handle: str
    queue_id: int
    service: str
    far_service: str
    contract: str
    group_id: str
    state: ConversationState
    priority: int
    far_queue_id: int
    far_priority: int
    sent: int
    created: int
    expires: int | None
    error_code: int | None = None
    error_text: str | None = None


class OpenStream(msgspec.Struct, frozen=True, array_like=True):
    """A stream with a message that can be received now.

    `first`: the key of that message. `before`: the key of the message that blocks all later ones.
    """

    session_id: str
    handle: str
    group_id: str
    service: str
    contract: str
    first: int = 0
    before: int = 0


class NextGroup(NamedTuple):
    """A group with a receivable message. `found`: the session id by which it was found.

    `stream`: the stream to receive from first, with its next messages.
    """

    found: str
    stream: OpenStream
    rows: list[ReceivedMessage]


class Happening(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a dialog's log. `number`: of the message within its direction, where it is about one.

    `sent`: when that message was sent, if this entry tells its outcome.
    """

    position: int
    time: int
    sent: int | None
    handle: str
    kind: str
    message_type: str | None
    number: int | None
    text: str | None


class StoredDialogs(Protocol):
    """Operations on dialogs within one commit."""

    def definitions(self) -> Definitions:
        """Return all definitions."""
        ...

    def save_definition(self, definition: Definition) -> None:
        """Add a definition, or replace the one with its name."""
        ...

    def delete_definition(self, kind: str, name: str) -> None:
        """Remove a definition."""
        ...

    def conversation(self, handle: str) -> ConversationRecord | None:
        """Return one end of a dialog."""
        ...

    def save_conversation(self, record: ConversationRecord) -> None:
        """Add one end of a dialog, or store its new state."""
        ...

    def delete_conversation(self, handle: str) -> None:
        """Delete one end of a dialog."""
        ...

    def count_sent(self, handle: str) -> ConversationRecord | None:
        """Count a message that an end sends, and return its new state; None if it cannot send now."""
        ...

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
        ...

    def service_in_use(self, name: str) -> bool:
        """Return whether a service has a conversation, at either end."""
        ...

    def contract_in_use(self, name: str) -> bool:
        """Return whether there is a conversation under a contract."""
        ...

    def group_open(self, queue_id: int, group_id: str) -> bool:
        """Return whether a conversation of the group is not ended yet at this end."""
        ...

    def levels(self, queue_id: int) -> list[int]:
        """Return the priorities that may have messages in a queue, ascending."""
        ...

    def free_group(self, queue_id: int, session_id: str, token: int) -> None:
        """Release the lock on a conversation group's session if it is held under `token`."""
        ...

    def next_group(
        self, queue_id: int, ranges: Sequence[tuple[str, str]], token: int = 0, limit: int = 0
    ) -> Callable[[], NextGroup | None]:
        """Return a function that gives the next group with a receivable message, and its messages.

        The message must be receivable by anyone, or by the holder of groups locked under `token`. `ranges`:
        the ranges of session ids to search, in order.
        """
        ...

    def open_messages(
        self, queue_id: int, group_id: str, handle: str | None, token: int, limit: int
    ) -> tuple[OpenStream, list[ReceivedMessage]] | None:
        """Return the first stream of a group, or of one of its conversations, and its next messages.

        Messages locked under `token` do not block others. A suspect is delivered alone.
        """
        ...

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
        ...

    def happenings(self, dialog: str) -> list[Happening]:
        """Return a dialog's log, oldest first."""
        ...

    def trim_happenings(self, dialog: str, keep: int) -> None:
        """Delete all but the latest entries of a dialog's log."""
        ...

    def forget_happenings(self, dialog: str) -> None:
        """Delete a dialog's log."""
        ...
