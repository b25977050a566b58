"""Dialogs in the store: definitions, conversations, their streams in queues, and their history."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lazaretto.model.conversations import ConversationState
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
