"""Messages that an operator sends, and the command that applies a file of definitions of dialogs."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lazaretto.broker.sender import sendable
from lazaretto.dialogs.declaration import parse_declaration
from lazaretto.engine.command import Administering, OfPath, Options
from lazaretto.engine.dialogs.definitions import Change, apply_definitions
from lazaretto.engine.log import audit
from lazaretto.engine.messages.prepare import prepare
from lazaretto.engine.messages.send import Send
from lazaretto.errors import InvalidOption
from lazaretto.model.filters.records import property_value
from lazaretto.model.grants import Permission
from lazaretto.model.messages import Message
from lazaretto.store.sql.transaction import Transaction

#: A text of several lines, where a person types it.
Lines = Annotated[str, Meta(extra={"lines": 10})]


class SendMessage(OfPath[int], frozen=True, kw_only=True):
    """Send a message to a queue or topic.

    `body`: a text. `body_base64`: a body of any bytes instead. `properties`: the application's own.
    `time_to_live`: in seconds. `scheduled_enqueue_time`: when it becomes receivable; null: at once.
    """

    permission = Permission.SEND
    action = "send_message"
    holder = "sender"
    method = "send"
    body: Lines | None = None
    body_base64: str | None = None
    content_type: str | None = None
    message_id: str | None = None
    session_id: str | None = None
    subject: str | None = None
    correlation_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    partition_key: str | None = None
    properties: dict[str, Any] = msgspec.field(default_factory=dict)
    time_to_live: float | None = None
    scheduled_enqueue_time: datetime | None = None

    def run(self, tx: Transaction, actor: str) -> int:
        message = Message(
            self._content(),
            properties=self._properties(),
            **{name: getattr(self, name) for name in _AS_GIVEN},
        )
        path, prepared = sendable(self.path), prepare(message)
        (number,) = Send(path, [prepared]).run(tx)
        detail = {"sequence_number": number, "message_id": prepared.message_id}
        audit(tx, actor, self.action, path.queue, **detail)
        return number

    def sends_to(self) -> str:
        return self.path

    def _properties(self) -> dict[str, Any]:
        try:
            return {name: property_value(value) for name, value in self.properties.items()}
        except ValueError as error:
            raise InvalidOption(f"properties: {error}") from None

    def _content(self) -> bytes:
        if (self.body is None) == (self.body_base64 is None):
            raise InvalidOption("expected either body or body_base64")
        if self.body_base64 is None:
            return (self.body or "").encode()
        try:
            return base64.b64decode(self.body_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidOption(f"body_base64: expected base64: {error}") from None


#: What it has as a message has it.
_AS_GIVEN = {*SendMessage.__struct_fields__} & {*Message.__struct_fields__} - {"body", "properties"}


class ApplyDefinitions(Administering[list[Change]], frozen=True, kw_only=True):
    """Define message types, contracts, services and priorities of dialogs, as a file of them does.

    `definitions`: the file's tables. `drop_others`: drop the definitions that are not named.
    """

    action = ""
    holder = "dialogs"
    method = "apply"
    definitions: Options
    drop_others: bool = False

    def run(self, tx: Transaction, actor: str) -> list[Change]:
        definitions = parse_declaration(self.definitions)
        return apply_definitions(tx, definitions, actor, drop_others=self.drop_others)
