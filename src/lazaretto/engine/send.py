"""Sending: new messages at a queue's end, at once or scheduled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from lazaretto.engine.dispositions import remove
from lazaretto.engine.prepare import check_size
from lazaretto.engine.publish import publish
from lazaretto.engine.queues import refuse_disabled, require_queue
from lazaretto.entities import SYSTEM_DEAD_LETTER_QUEUE, EntityKind, EntityPath
from lazaretto.errors import EntityNotFound, InvalidMessage, MessageNotFound, NotAllowed
from lazaretto.headers import decode_headers
from lazaretto.keys import first_key, sequence_of
from lazaretto.store.contract import Operation, Transaction
from lazaretto.store.records import SCHEDULED, NewMessage, QueueRecord


@dataclasses.dataclass(slots=True)
class Send(Operation[list[int]]):
    """Add messages to a queue; the answer is their sequence numbers.

    A duplicate is accepted and dropped; its number is that of the message sent before.
    """

    path: EntityPath
    messages: Sequence[NewMessage]

    mergeable: ClassVar[bool] = True

    def run(self, tx: Transaction) -> list[int]:
        queue = check_send(tx, self.path, self.messages)
        if queue.options.requires_duplicate_detection:
            return _send_new(tx, queue, self.messages)
        return _insert(tx, queue, self.messages)

    @classmethod
    def run_all(cls, tx: Transaction, operations: Sequence[Any]) -> Iterable[list[int]]:
        """Several callers' messages to one queue are one insertion."""
        queues = [check_send(tx, operation.path, operation.messages) for operation in operations]
        first = queues[0]
        apart = first.options.requires_duplicate_detection or first.kind is EntityKind.TOPIC
        if apart or any(q is not first for q in queues):
            return [operation.run(tx) for operation in operations]
        keys = tx.insert_messages(first, [m for operation in operations for m in operation.messages])
        numbers = iter([sequence_of(key) for key in keys])
        return [[next(numbers) for _ in operation.messages] for operation in operations]


def _insert(tx: Transaction, queue: QueueRecord, messages: Sequence[NewMessage]) -> list[int]:
    """Add messages to a queue, or give them to a topic's subscriptions; return their numbers."""
    if queue.kind is EntityKind.TOPIC:
        return _publish(tx, queue, messages)
    return [sequence_of(key) for key in tx.insert_messages(queue, messages)]


def _publish(tx: Transaction, topic: QueueRecord, messages: Sequence[NewMessage]) -> list[int]:
    """Publish messages; those that are scheduled wait in the topic until then."""
    waits = [m.scheduled is not None and m.scheduled > tx.now for m in messages]
    if not any(waits):
        return publish(tx, topic, messages)
    numbers = []
    for message, later in zip(messages, waits, strict=True):
        if later:
            numbers.append(sequence_of(tx.insert_messages(topic, [message])[0]))
        else:
            numbers += publish(tx, topic, [message])
    return numbers


def check_send(tx: Transaction, path: EntityPath, messages: Sequence[NewMessage]) -> QueueRecord:
    """Return the queue if these messages can be sent to it. Raises what stands against it."""
    queue = tx.queue(path.key) or require_queue(tx, path)
    refuse_disabled(queue)
    if queue.kind is EntityKind.SUBSCRIPTION:
        raise NotAllowed(f"nothing can be sent to the subscription {queue.path!r}; send to its topic")
    if path.key == SYSTEM_DEAD_LETTER_QUEUE:
        raise NotAllowed(f"{SYSTEM_DEAD_LETTER_QUEUE} holds what was rejected; nothing can be sent to it")
    limit, sessions = queue.options.max_message_size, queue.options.requires_session
    for message in messages:
        check_size(message, limit)
        if sessions and message.session_id is None:
            raise InvalidMessage(f"queue {queue.path!r} requires sessions: a message needs a session_id")
        if message.headers is not None:
            wanted = decode_headers(message.headers).dead_letter_queue
            if wanted is not None and tx.queue(wanted.lower()) is None:
                raise EntityNotFound(
                    f"no queue exists at {wanted!r}, which the message names as its dead_letter_queue"
                )
    return queue


def _send_new(tx: Transaction, queue: QueueRecord, messages: Sequence[NewMessage]) -> list[int]:
    forget_after = tx.now + round(queue.options.duplicate_detection_window * 1_000_000)
    numbers = []
    for message in messages:
        number = None
        partition = message.partition_key or ""
        if message.message_id is not None:
            number = tx.known_message_id(queue.queue_id, message.message_id, partition)
        if number is None:
            (number,) = _insert(tx, queue, [message])
            if message.message_id is not None:
                tx.remember_message_id(queue.queue_id, message.message_id, partition, forget_after, number)
        numbers.append(number)
    return numbers


@dataclasses.dataclass(slots=True)
class CancelScheduled(Operation[None]):
    """Delete scheduled messages that are not active yet: all of them, or none and MessageNotFound."""

    path: EntityPath
    sequence_numbers: Sequence[int]

    def run(self, tx: Transaction) -> None:
        queue = require_queue(tx, self.path)
        rows = []
        for number in self.sequence_numbers:
            row = tx.row(first_key(queue.queue_id) + number)
            if row is None or row.state != SCHEDULED:
                raise MessageNotFound(
                    f"no scheduled message {number} in {queue.path!r}; it may be active now"
                )
            rows.append(row)
        for row in rows:
            remove(tx, row)
