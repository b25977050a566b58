"""Dialogs in the store: definitions, conversations, their lanes in queues, and their history."""

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


class OpenLane(msgspec.Struct, frozen=True, array_like=True):
    """A lane with a message that can be received now.

    `first`: the key of that message; `before`: of the one that holds back what is behind it.
    """

    session_id: str
    handle: str
    group_id: str
    service: str
    contract: str
    first: int = 0
    before: int = 0


class NextGroup(NamedTuple):
    """A group with something to receive. `found`: the session id by which it was found.

    `lane`: the one of its lanes that is to be received from first, with its next messages.
    """

    found: str
    lane: OpenLane
    rows: list[ReceivedMessage]


class Happening(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a dialog's log. `number`: of the message within its direction, where it is about one.

    `sent`: when that message was sent, if this is what became of it.
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
    """What an operation may do with dialogs within one commit."""

    def definitions(self) -> Definitions:
        """Return every definition there is."""
        ...

    def save_definition(self, definition: Definition) -> None:
        """Add a definition, or put it in the place of one of its name."""
        ...

    def delete_definition(self, kind: str, name: str) -> None:
        """Remove a definition."""
        ...

    def conversation(self, handle: str) -> ConversationRecord | None:
        """Return one end of a dialog."""
        ...

    def save_conversation(self, record: ConversationRecord) -> None:
        """Add one end of a dialog, or store its new standing."""
        ...

    def delete_conversation(self, handle: str) -> None:
        """Forget one end of a dialog."""
        ...

    def count_sent(self, handle: str) -> ConversationRecord | None:
        """Count a message that an end sends, and return how it stands then; None if it cannot send now."""
        ...

    def conversations(
        self,
        after: str,
        limit: int,
        *,
        queue_id: int | None,
        state: ConversationState | None,
        group_id: str | None,
    ) -> list[ConversationRecord]:
        """Return conversations by handle, behind one."""
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
        """Return the priorities of which messages may be in a queue, rising."""
        ...

    def free_group(self, queue_id: int, session_id: str, token: int) -> None:
        """Give the lock on a conversation group's session up, if it is held under `token`."""
        ...

    def next_group(
        self, queue_id: int, ranges: Sequence[tuple[str, str]], token: int = 0, limit: int = 0
    ) -> Callable[[], NextGroup | None]:
        """Return what finds the next group of which a message can be received, with its next messages.

        By anybody, that is, or by who has locked groups under `token`. `ranges`: between which session ids to
        look, one after the other.
        """
        ...

    def open_messages(
        self, queue_id: int, group_id: str, handle: str | None, token: int, limit: int
    ) -> tuple[OpenLane, list[ReceivedMessage]] | None:
        """Return the lane of a group, or of one of its conversations, that is first, and its next messages.

        Messages locked under `token` hold back nothing. A suspect goes alone.
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
        """Add to a dialog's log. `sent`: when the message was sent that is dealt with by this."""
        ...

    def happenings(self, dialog: str) -> list[Happening]:
        """Return a dialog's log, oldest first."""
        ...

    def trim_happenings(self, dialog: str, keep: int) -> None:
        """Forget all but the latest entries of a dialog's log."""
        ...

    def forget_happenings(self, dialog: str) -> None:
        """Forget a dialog's log."""
        ...
