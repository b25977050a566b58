"""Messages received from dialogs."""

from __future__ import annotations

from datetime import datetime

import msgspec

from lazaretto.engine.dialogs.conversation_ends import ErrorBody
from lazaretto.model.conversations import DIALOG_TIMER, END_DIALOG, ERROR, number_of
from lazaretto.model.messages import ReceivedMessage
from lazaretto.store.records.dialogs import OpenStream


class DialogMessage(msgspec.Struct, frozen=True):
    """A message received from a dialog.

    `conversation`: the handle of this end, to answer with. `group`: the conversation group, locked until the
    transaction ends. `service`: the one it came to. `received`: the message as the queue has it, with its
    sequence number, delivery count and attempts.
    """

    type: str
    body: bytes
    conversation: str
    group: str
    service: str
    contract: str
    received: ReceivedMessage

    @classmethod
    def of(cls, message: ReceivedMessage, stream: OpenStream) -> DialogMessage:
        """Return a message that was taken from a stream."""
        type_ = message.headers.subject or ""
        return cls(
            type_, message.body, stream.handle, stream.group_id, stream.service, stream.contract, message
        )

    @property
    def number(self) -> int | None:
        """Its number among the messages of the other side; None for system messages."""
        return number_of(self.received.message_id)

    @property
    def is_end(self) -> bool:
        """Whether the other side has ended the dialog; nothing follows."""
        return self.type == END_DIALOG

    @property
    def is_error(self) -> bool:
        """Whether the other side has ended the dialog with an error, or its lifetime has expired."""
        return self.type == ERROR

    @property
    def is_timer(self) -> bool:
        """Whether it comes from a timer of this side."""
        return self.type == DIALOG_TIMER

    @property
    def is_last(self) -> bool:
        """Whether the dialog has ended. Processing it ends the conversation on this side too."""
        return self.is_end or self.is_error

    @property
    def error(self) -> tuple[int, str] | None:
        """Code and text of an error: positive from the other application, negative from the engine."""
        if not self.is_error:
            return None
        body = msgspec.json.decode(self.body, type=ErrorBody)
        return body.code, body.text

    @property
    def enqueued_time(self) -> datetime:
        return self.received.enqueued_time

    @property
    def delivery_count(self) -> int:
        """How many attempts at it have failed."""
        return self.received.delivery_count
