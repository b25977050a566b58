"""Messages as users hold them: to send, received, peeked at, and dead."""

from __future__ import annotations

import dataclasses
import enum
import json
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lazaretto.errors import InvalidMessage
from lazaretto.model.checks import refuse_unknown, shown
from lazaretto.model.clock import to_datetime, to_ending
from lazaretto.model.entities import SYSTEM_DEAD_LETTER_QUEUE, EntityPath, MessageState
from lazaretto.model.headers import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    Headers,
    NegativeAcknowledgement,
    PropertyValue,
    decode_headers,
)
from lazaretto.model.keys import sequence_of
from lazaretto.model.policy import Counters, Outcome

#: Messages of one call, at most.
MOST_MESSAGES = 100_000


class SentColumns(msgspec.Struct, kw_only=True):
    """Fields that a sender sets, each in a column of its own of the same name.

    A field is a text or an integer, None by default. `PeekedMessage` repeats it.
    """


#: Their names.
SENT_COLUMNS: Final = SentColumns.__struct_fields__


def sent_columns(message: object) -> dict[str, Any]:
    """Return what a message has in these columns, by name."""
    return {name: getattr(message, name, None) for name in SENT_COLUMNS}


def sets_columns(message: object) -> bool:
    """Return whether a message has anything in them."""
    return any(getattr(message, name) is not None for name in SENT_COLUMNS)


class Message(SentColumns):
    """A message to send.

    `body`: bytes, never decoded by the broker. `message_id`: assigned if None. `session_id`:
    required on a queue with sessions. `time_to_live`: seconds or a timedelta, counted from the
    send. `scheduled_enqueue_time`: an aware datetime before which the message is not receivable.
    `properties`: str, int (64 bit), float, bool, bytes, UUID, aware datetime or None by name.
    `dead_letter_queue`: where a rejected message is returned to: the system's queue, the path of
    another, or None. `amqp`: what an AMQP client sent that the other fields cannot hold, encoded; it
    goes with a copy, and is given back over AMQP. What is wrong with a message is said when it is sent
    (InvalidMessage, MessageTooLarge).
    """

    body: bytes
    message_id: str | None = None
    session_id: str | None = None
    subject: str | None = None
    correlation_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    partition_key: str | None = None
    time_to_live: float | timedelta | None = None
    scheduled_enqueue_time: datetime | None = None
    properties: Mapping[str, PropertyValue] | None = None
    dead_letter_queue: str | None = SYSTEM_DEAD_LETTER_QUEUE
    amqp: bytes | None = None

    @classmethod
    def json(cls, value: object, /, **fields: Any) -> Message:
        """Return a message whose body is a value as JSON; `fields` are a message's others.

        Raises InvalidMessage for what JSON does not have, InvalidOption for a name that no field has.
        """
        try:
            body = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidMessage(f"expected a value that JSON has, got {shown(value)}: {error}") from None
        # Only here: to look at the names that the class is given makes each message three times as slow.
        try:
            return cls(body, **{"content_type": "application/json", **fields})
        except TypeError:
            refuse_unknown(fields, cls.__struct_fields__, cls.__name__)
            raise


class Lock(msgspec.Struct, frozen=True):
    """A peek-lock: on messages of one hand-over, or on a session (then `session_id` is set)."""

    path: EntityPath
    token: int
    until: int
    session_id: str | None = None


class _DecodedHeaders(msgspec.Struct, kw_only=True):
    """Headers that were decoded once. Kept by name, so that what a query returns fits by position."""

    decoded: Headers | None = None


class StoredMessage(_DecodedHeaders):
    """A message that the broker holds; the base of the kinds below."""

    key: int
    body: bytes
    message_id: str
    enqueued: int
    expires: int | None
    encoded_headers: bytes | None
    body_id: int | None
    deliveries: int
    delivery_count: int
    cycle: int
    generation: int
    enqueued_sequence_number: int | None
    recorded_reason: str | None
    recorded_description: str | None

    def json(self) -> Any:
        """Return the value of a body that is JSON. Raises InvalidMessage for one that is not."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            why = "it is nested too deep" if isinstance(error, RecursionError) else error
            raise InvalidMessage(f"expected a body of JSON, got {shown(self.body)}: {why}") from None

    @property
    def sequence_number(self) -> int:
        """The queue's number for this message: rising, never reused."""
        return sequence_of(self.key)

    @property
    def enqueued_time(self) -> datetime:
        return to_datetime(self.enqueued)

    @property
    def expires_at(self) -> datetime | None:
        """When its time to live is over; None: never, as for one that would end after the year 9999."""
        return to_ending(self.expires)

    @property
    def attempt(self) -> int:
        """The number of this or the latest hand-over, over the message's life; the first is 1."""
        return self.deliveries

    @property
    def headers(self) -> Headers:
        if self.decoded is None:
            self.decoded = decode_headers(self.encoded_headers)
        return self.decoded

    @property
    def dead_letter_reason(self) -> str | None:
        """Why it is a dead letter, or was one before it was forwarded."""
        return self.recorded_reason or self._was_dead(DEAD_LETTER_REASON)

    @property
    def dead_letter_error_description(self) -> str | None:
        return self.recorded_description or self._was_dead(DEAD_LETTER_DESCRIPTION)

    @property
    def dead_letter_source(self) -> str | None:
        """The path of the entity that dead-lettered it, if it was forwarded from there."""
        return self.headers.dead_letter_source

    def _was_dead(self, name: str) -> str | None:
        if self.headers.dead_letter_source is None:
            return None
        value = self.properties.get(name)
        return value if isinstance(value, str) else None

    @property
    def session_id(self) -> str | None:
        return self.headers.session_id

    @property
    def subject(self) -> str | None:
        return self.headers.subject

    @property
    def correlation_id(self) -> str | None:
        return self.headers.correlation_id

    @property
    def to(self) -> str | None:
        return self.headers.to

    @property
    def reply_to(self) -> str | None:
        return self.headers.reply_to

    @property
    def reply_to_session_id(self) -> str | None:
        return self.headers.reply_to_session_id

    @property
    def content_type(self) -> str | None:
        return self.headers.content_type

    @property
    def partition_key(self) -> str | None:
        return self.headers.partition_key

    @property
    def time_to_live(self) -> timedelta | None:
        """The sender's time to live, before the queue's limit."""
        micros = self.headers.time_to_live
        return None if micros is None else timedelta(microseconds=micros)

    @property
    def scheduled_enqueue_time(self) -> datetime | None:
        micros = self.headers.scheduled_enqueue_time
        return None if micros is None else to_datetime(micros)

    @property
    def properties(self) -> dict[str, PropertyValue]:
        return self.headers.properties

    @property
    def dead_letter_queue(self) -> str | None:
        return self.headers.dead_letter_queue

    @property
    def amqp(self) -> bytes | None:
        """An AMQP client's values that the other fields cannot hold, encoded."""
        return self.headers.amqp

    @property
    def edit_of(self) -> str | None:
        """The id of the dead letter that this message is the edited form of."""
        return self.headers.edit_of

    @property
    def negative_acknowledgement(self) -> NegativeAcknowledgement | None:
        """Why a receiver rejected this message, when it lies in its sender's dead-letter queue."""
        return self.headers.negative_acknowledgement


def as_body(value: object) -> str:
    """Return how a value is sent, as an error's advice; nothing for what no message is made of."""
    if isinstance(value, dict | list | tuple | int | float | bool):
        return ": Message.json(value) sends it as JSON, as Message(json.dumps(value).encode()) does"
    if isinstance(value, str):
        return ": Message(text.encode()) sends a text"
    return ": Message(data) sends bytes" if isinstance(value, bytes | bytearray | memoryview) else ""


def as_message(message: Message | StoredMessage) -> Message:
    """Return what a sender can set of a message that was received or peeked at: its copy, to send on.

    As in Service Bus's `ServiceBusMessage(received)`: the id too, and without what told why it was a dead
    letter. Raises InvalidMessage for what is no message.
    """
    if isinstance(message, Message):
        return message
    if not isinstance(message, StoredMessage):
        raise InvalidMessage(f"expected a lazaretto.Message, got {shown(message)}{as_body(message)}")
    fields: dict[str, Any] = {name: getattr(message, name, None) for name in Message.__struct_fields__}
    if message.dead_letter_source is not None:
        named = (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION)
        fields["properties"] = {k: v for k, v in message.properties.items() if k not in named}
    return Message(**fields)


class Suspects(enum.Enum):
    """The turn of suspects in a receive, each of which is delivered alone."""

    #: Earlier messages go first, later ones wait.
    IN_PLACE = "in_place"
    #: They wait for somebody who holds nothing else.
    SKIPPED = "skipped"
    #: They go before all others: their receiver holds nothing else.
    FIRST = "first"


class ReceivedMessage(StoredMessage):
    """A message handed to a receiver, with the lock it is held by (None: received and deleted).

    `cycle_attempts`: how many attempts of this cycle came before. `alone`: it was handed out alone, or with
    its session, because a worker died holding it. `suspect`: then not 0 while those deaths are looked into.
    """

    cycle_attempts: int = 0
    lock: Lock | None = None
    alone: bool = False
    suspect: int = 0

    @property
    def lock_token(self) -> uuid.UUID | None:
        """The lock as one value: different for every message and every hand-over of it."""
        if self.lock is None:
            return None
        return uuid.UUID(int=self.lock.token << 64 | self.sequence_number)

    @property
    def locked_until(self) -> datetime | None:
        return None if self.lock is None else to_datetime(self.lock.until)


class PeekedMessage(StoredMessage, kw_only=True):
    """A message as it stands, without a lock on it. `error`: of the latest attempt, while it is delayed."""

    state: MessageState = MessageState.ACTIVE
    locked_until_micros: int | None = None
    error: str | None = None

    @property
    def locked_until(self) -> datetime | None:
        """When the lock of the receiver that holds it runs out (not of a session's lock)."""
        return None if self.locked_until_micros is None else to_datetime(self.locked_until_micros)


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """One hand-over of a message that did not end in completion."""

    number: int
    started: datetime | None
    ended: datetime
    worker: str | None
    outcome: Outcome
    error_type: str | None = None
    error_message: str | None = None
    stack: str | None = None
    site: str | None = None
    fingerprint: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was set aside: what it is, why, and what was tried.

    `resolution` is None while it waits, then "resubmitted", "moved", "purged" or "completed" (by a
    receiver of the dead-letter subqueue), with `resolved`, the time; `message` is None then.
    `resubmitted_as` is the sequence number of the live message, in the queue `moved_to` if it was moved or
    forwarded (by `forward_dead_lettered_messages_to`: "forwarded").
    `attempts` is the whole history,
    earlier generations included, oldest first; listings leave it empty. `fingerprint`: the same for all that
    are alike; None of those that an older version has set aside, until causes are asked for.
    """

    queue: str
    sequence_number: int
    message_id: str
    reason: str | None
    description: str | None
    error_type: str | None
    error_message: str | None
    dead_lettered: datetime
    enqueued: datetime
    counters: Counters
    generation: int
    message: PeekedMessage | None
    resolution: str | None = None
    resolved: datetime | None = None
    resubmitted_as: int | None = None
    attempts: tuple[Attempt, ...] = ()
    moved_to: str | None = None
    fingerprint: str | None = None


class Past(msgspec.Struct, frozen=True, array_like=True):
    """Facts about a message's earlier attempts: its moves and its latest error."""

    moves: int
    error_type: str | None = None
    error_message: str | None = None
