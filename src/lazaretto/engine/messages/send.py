"""Sends new messages to a queue, at once or scheduled."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from lazaretto.engine.entities.queues import refuse_topic, require_queue
from lazaretto.engine.entities.status import refuse_sending
from lazaretto.engine.messages.prepare import check_size
from lazaretto.engine.outcome.dispositions import keeps_rejected, remove
from lazaretto.engine.queue_admission import admission_of
from lazaretto.engine.routing.deliver import deliver
from lazaretto.engine.routing.forwards import forwards, touch
from lazaretto.engine.routing.router import remember_id
from lazaretto.errors import (
    EntityNotFound,
    InvalidMessage,
    LazarettoError,
    MessageNotFound,
    NotAllowed,
    QuotaExceeded,
)
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, EntityKind, EntityPath
from lazaretto.model.headers import decode_headers
from lazaretto.model.keys import lower_bound, sequence_of
from lazaretto.model.partitions import detection_key
from lazaretto.store.records.messages import SCHEDULED, NewMessage, QueueRecord
from lazaretto.store.records.plain import PlainSend
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction


@dataclasses.dataclass(slots=True)
class Send(Operation[list[int]]):
    """Add messages to a queue; return their sequence numbers.

    A duplicate is accepted and dropped; it returns the number of the earlier message. With a `destination`,
    messages pass through the queue on their way (Service Bus's send via). If the destination cannot take
    them, they go to the queue's transfer dead-letter subqueue.
    """

    path: EntityPath
    messages: Sequence[NewMessage]
    destination: str | None = None

    foreseeable = True
    mergeable: ClassVar[bool] = True
    rank: ClassVar[int] = 0

    def run(self, tx: Transaction) -> list[int]:
        queue = check_send(tx, self.path, self.messages)
        if queue.plain and self.destination is None:
            first = sequence_of(tx.insert_messages(queue, self.messages)[0])
            return list(range(first, first + len(self.messages)))
        return self.insert(tx, queue)

    def insert(self, tx: Transaction, queue: QueueRecord) -> list[int]:
        """Do as `run`, without another check: `check_send` has returned the queue."""
        if self.destination is not None:
            refuse_topic(queue, "messages pass through a queue, which has a dead-letter subqueue for them")
        if queue.options.requires_duplicate_detection:
            return _send_new(tx, queue, self.messages, self.destination)
        return _insert(tx, queue, self.messages, self.destination)

    def plain(self) -> PlainSend | None:
        if self.destination is not None:
            return None
        for message in self.messages:
            if message.elaborate:
                return None
        return PlainSend(self.path, self.messages)

    def start(self, tx: Transaction) -> Callable[[], list[int]] | None:
        return self.start_all(tx, [self])[0]

    @classmethod
    def start_all(
        cls, tx: Transaction, operations: Sequence[Any]
    ) -> Sequence[Callable[[], list[int]] | None]:
        """Start several callers' sends, those to the same entity together."""
        if not tx.plans:
            return [None] * len(operations)
        started: dict[int, Callable[[], list[int]]] = {}
        together: dict[tuple[int, str | None], tuple[QueueRecord, list[int]]] = {}
        for index, operation in enumerate(operations):
            queue = operation._find(tx)
            if queue is not None:
                way = queue.queue_id, operation.destination
                together.setdefault(way, (queue, []))[1].append(index)
        for (_, destination), (queue, places) in together.items():
            messages = [m for place in places for m in operations[place].messages]
            if destination is None and _keeps(queue):
                sent = tx.start_sending(queue, messages)
            else:
                sent = tx.start_routing(functools.partial(deliver, tx, queue, messages, destination))
            if sent is not None:
                end = 0
                for place in places:
                    start, end = end, end + len(operations[place].messages)
                    started[place] = functools.partial(_numbers, sent, start, end)
        return [started.get(index) for index in range(len(operations))]

    def _find(self, tx: Transaction) -> QueueRecord | None:
        """Return the queue if the numbers of its messages need not be known before the commit.

        `run` handles all others, and errors.
        """
        try:
            queue = check_send(tx, self.path, self.messages)
        except LazarettoError:
            return None
        if self.destination is None and _keeps(queue):
            return queue
        by_number = queue.options.requires_duplicate_detection or any(
            message.scheduled is not None and message.scheduled > tx.now for message in self.messages
        )
        is_topic = queue.kind is EntityKind.TOPIC
        return None if by_number or (is_topic and self.destination is not None) else queue

    @classmethod
    def run_all(cls, tx: Transaction, operations: Sequence[Any]) -> Iterable[list[int]]:
        """Insert several callers' messages with one insert per queue."""
        queues = [check_send(tx, operation.path, operation.messages) for operation in operations]
        first = queues[0]
        options = first.options
        apart = (
            options.requires_duplicate_detection
            or options.forward_to is not None
            or options.max_size is not None
            or first.kind is EntityKind.TOPIC
        )
        if apart or any(q is not first for q in queues) or any(o.destination for o in operations):
            return [operation.run(tx) for operation in operations]
        keys = tx.insert_messages(first, [m for operation in operations for m in operation.messages])
        numbers = iter([sequence_of(key) for key in keys])
        return [[next(numbers) for _ in operation.messages] for operation in operations]


def _keeps(queue: QueueRecord) -> bool:
    """Return whether messages that are sent to an entity stay there."""
    return queue.plain or (queue.kind is not EntityKind.TOPIC and not forwards(queue))


def _numbers(keys: Callable[[], Sequence[int]], start: int, end: int) -> list[int]:
    return [sequence_of(key) for key in keys()[start:end]]


def _insert(
    tx: Transaction, queue: QueueRecord, messages: Sequence[NewMessage], destination: str | None
) -> list[int]:
    """Insert messages into a queue, or route them through an entity; return their numbers."""
    if destination is not None:
        return [sequence_of(key) for key in deliver(tx, queue, messages, destination)]
    if _keeps(queue):
        return [sequence_of(key) for key in tx.insert_messages(queue, messages)]
    # Scheduled messages wait here until their time.
    waits = [m.scheduled is not None and m.scheduled > tx.now for m in messages]
    if not any(waits):
        return [sequence_of(key) for key in deliver(tx, queue, messages)]
    numbers = []
    for message, later in zip(messages, waits, strict=True):
        if later:
            numbers.append(sequence_of(tx.insert_messages(queue, [message])[0]))
        else:
            numbers += [sequence_of(key) for key in deliver(tx, queue, [message])]
    return numbers


def check_send(tx: Transaction, path: EntityPath, messages: Sequence[NewMessage]) -> QueueRecord:
    """Return the queue if these messages can be sent to it; raise the error otherwise."""
    key = path.key
    queue = tx.queues.by_path(key) or require_queue(tx, path)
    if not queue.plain:
        refuse_sending(queue)
        if queue.kind is EntityKind.SUBSCRIPTION:
            raise NotAllowed(f"nothing can be sent to the subscription {queue.path!r}; send to its topic")
        if key == SYSTEM_DEAD_LETTER_QUEUE:
            raise NotAllowed(f"{SYSTEM_DEAD_LETTER_QUEUE} holds rejected messages; nothing can be sent to it")
        admission_of(queue).check_access(queue)
    limit, sessions = queue.options.max_message_size, queue.options.requires_session
    size = 0
    for message in messages:
        own = len(message.body) + len(message.headers or b"")
        if own > limit:
            check_size(message, limit)
        size += own
        if sessions and message.session_id is None:
            raise InvalidMessage(f"queue {queue.path!r} requires sessions: a message needs a session_id")
        if message.dead_letter_queue is not None:
            _check_sender_queue(tx, message.dead_letter_queue)
    if queue.plain:
        return queue
    most = queue.options.max_size
    if most is not None and not tx.queues.has_room(queue.queue_id, size, most):
        used = tx.queues.size(queue.queue_id)
        raise QuotaExceeded(
            f"{queue.kind.value} {queue.path!r} is full: it holds {used} of {most} bytes, "
            f"and the call sends {size} more. Receive from it, purge its dead letters, or raise max_size"
        )
    touch(tx, queue)
    return queue


def _check_sender_queue(tx: Transaction, path: str) -> None:
    """Raise an error if a message's dead_letter_queue is not valid."""
    target = tx.queues.by_path(path.lower())
    if target is None:
        raise EntityNotFound(f"no queue exists at {path!r}, which the message names as its dead_letter_queue")
    if not keeps_rejected(target):
        kind = admission_of(target).kind_of(target)
        raise InvalidMessage(f"expected dead_letter_queue to be a queue, got the {kind} {target.path!r}")


def _send_new(
    tx: Transaction, queue: QueueRecord, messages: Sequence[NewMessage], destination: str | None
) -> list[int]:
    numbers = []
    for message in messages:
        number = None
        partition = detection_key(message.partition_key, queue.partitions)
        if message.message_id is not None:
            number = tx.message_ids.find(queue.queue_id, message.message_id, partition)
        if number is None:
            (number,) = _insert(tx, queue, [message], destination)
            if message.message_id is not None:
                remember_id(tx, queue, message.message_id, partition, number)
        numbers.append(number)
    return numbers


@dataclasses.dataclass(slots=True)
class NumberedSend(Operation[None]):
    """Send within a unit of work. `numbers`: those of its messages, once that has been committed."""

    sent: Send
    numbers: Sequence[int] = ()

    foreseeable = True

    def run(self, tx: Transaction) -> None:
        self.numbers = self.sent.run(tx)


@dataclasses.dataclass(slots=True)
class CancelScheduled(Operation[None]):
    """Delete scheduled messages that are not active yet: all of them, or none and MessageNotFound."""

    path: EntityPath
    sequence_numbers: Sequence[int]

    def run(self, tx: Transaction) -> None:
        queue = require_queue(tx, self.path)
        rows = []
        for number in self.sequence_numbers:
            row = tx.row(lower_bound(queue.queue_id) + number)
            if row is None or row.state != SCHEDULED:
                raise MessageNotFound(
                    f"no scheduled message {number} in {queue.path!r}; it may be active now"
                )
            rows.append(row)
        detects = queue.options.requires_duplicate_detection
        for row in rows:
            remove(tx, row)
            if detects:
                # It was never active, so sending it again is not a duplicate.
                partition = detection_key(decode_headers(row.headers).partition_key, queue.partitions)
                tx.message_ids.forget(queue.queue_id, row.message_id, partition, sequence_of(row.key))
