"""The attributes of spans, by OpenTelemetry's conventions for messaging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.util.types import AttributeValue

from lazaretto.engine.dialogs.receive_group import GroupHandover
from lazaretto.engine.workers.leases import Handover
from lazaretto.model.entities import EntityPath
from lazaretto.model.headers import decode_headers
from lazaretto.model.messages import ReceivedMessage
from lazaretto.model.paths import split_subscription
from lazaretto.store.records.messages import NewMessage

Attributes = dict[str, AttributeValue]


def server_attributes(server: tuple[str, int | None] | None) -> Attributes:
    """Return where a store is, by the address and port of its server; nothing of a file."""
    if server is None:
        return {}
    address, port = server
    return {"server.address": address} if port is None else {"server.address": address, "server.port": port}


def destination_attributes(path: EntityPath) -> Attributes:
    """Return a queue's name, or those of a topic and its subscription."""
    of = split_subscription(path)
    if of is None:
        return {"messaging.destination.name": str(path)}
    topic, name = of[0], of[1] + str(path)[len(path.queue) :]
    return {"messaging.destination.name": topic, "messaging.destination.subscription.name": name}


def messages_of(batch: Any) -> Sequence[ReceivedMessage]:
    """Return the messages of what a receive found."""
    if isinstance(batch, GroupHandover):
        return [message for message, _ in batch.messages]
    return batch.messages if isinstance(batch, Handover) else batch or ()


def new_attributes(message: NewMessage) -> Attributes:
    """Return the ids of a message that is to be sent."""
    attributes: Attributes = {}
    if message.message_id is not None:
        attributes["messaging.message.id"] = message.message_id
    correlation_id = decode_headers(message.headers).correlation_id
    if correlation_id is not None:
        attributes["messaging.message.conversation_id"] = correlation_id
    return attributes


def stored_attributes(message: ReceivedMessage) -> Attributes:
    """Return a message's ids, and how often it was delivered."""
    attributes: Attributes = {
        "messaging.message.id": message.message_id,
        "lazaretto.sequence_number": message.sequence_number,
        "lazaretto.attempt": message.attempt,
        "lazaretto.delivery_count": message.delivery_count,
        "lazaretto.generation": message.generation,
    }
    if message.headers.correlation_id is not None:
        attributes["messaging.message.conversation_id"] = message.headers.correlation_id
    return attributes


def stored_or_count(messages: Sequence[ReceivedMessage]) -> Attributes:
    """Return the attributes of one message, or how many there are."""
    return stored_attributes(messages[0]) if len(messages) == 1 else _count(messages)


def new_or_count(messages: Sequence[NewMessage]) -> Attributes:
    """Return the ids of one message that is to be sent, or how many there are."""
    return new_attributes(messages[0]) if len(messages) == 1 else _count(messages)


def _count(messages: Sequence[object]) -> Attributes:
    return {"messaging.batch.message_count": len(messages)}
