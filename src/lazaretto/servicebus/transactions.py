"""Transactions of clients: what they send and settle in one is kept here, and done in one commit."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lazaretto.aio.posting import Enlisting
from lazaretto.model.entities import EntityPath, names_subscription
from lazaretto.model.messages import Message, ReceivedMessage
from lazaretto.servicebus.amqp import AmqpError, Link
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.conditions import (
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    TRANSACTION_TIMEOUT,
    TRANSACTION_UNKNOWN_ID,
)
from lazaretto.servicebus.amqp.performatives import (
    Accepted,
    Outcome,
    TransactionalState,
)
from lazaretto.servicebus.answers import Settlement, verb_of
from lazaretto.servicebus.limits import DoorLimits
from lazaretto.servicebus.plain_messages import Promises

if TYPE_CHECKING:
    from lazaretto.aio import AsyncReceiver, AsyncTransaction


@dataclasses.dataclass(frozen=True, slots=True)
class _Sends:
    path: str
    via: str | None
    messages: Sequence[Message]


@dataclasses.dataclass(frozen=True, slots=True)
class _Settles:
    messages: Sequence[ReceivedMessage]
    settlement: Settlement


@dataclasses.dataclass(frozen=True, slots=True)
class _Schedules:
    path: str
    messages: Sequence[Message]
    promised: Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Cancels:
    path: str
    numbers: Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True)
class _SetsState:
    receiver: AsyncReceiver
    state: bytes | None


_Part = _Sends | _Settles | _Schedules | _Cancels | _SetsState


class Work:
    """The operations of one transaction."""

    def __init__(self, link: Link, limits: DoorLimits, promises: Promises) -> None:
        self.link = link
        self._most_sent = limits.transaction_messages
        self._most = limits.unsettled
        self._promises = promises
        #: Messages that it sends, and all else that it does.
        self._sent = self._count = 0
        self._parts: list[_Part] = []
        self._over = False
        #: The entity of the first part, with all that belongs to it.
        self._entity: str | None = None
        #: Bytes of the messages that it sends.
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None

    def bind(self, path: str, *, announced: bool) -> None:
        """Note that it does something on an entity. Raises AmqpError for a second one, unless announced."""
        entity = _entity_of(path)
        if self._entity is None:
            self._entity = entity
        if self._entity != entity and not announced:
            raise AmqpError(
                NOT_ALLOWED,
                f"expected a transaction of one entity, got {self._entity!r} and {entity!r}: for several, "
                "attach the coordinator on the session of their links (EnableCrossEntityTransactions)",
            )

    def send(self, path: str, via: str | None, messages: Sequence[Message]) -> None:
        """Send messages when it commits. Raises AmqpError if it is over, or too much."""
        self._add(_Sends(path, via, messages), sent=len(messages), size=_size_of(messages))

    def schedule(self, path: str, messages: Sequence[Message]) -> Sequence[int]:
        """Schedule messages when it commits, and return what stands for their numbers. Raises AmqpError."""
        promised = self._promises.make(len(messages))
        self._add(_Schedules(path, messages, promised), sent=len(messages), size=_size_of(messages))
        return promised

    def cancel(self, path: str, numbers: Sequence[int]) -> None:
        """Cancel scheduled messages when it commits. Raises AmqpError if it is over, or too much."""
        self._add(_Cancels(path, numbers), other=len(numbers))

    def set_session_state(self, receiver: AsyncReceiver, state: bytes | None) -> None:
        """Store the state of a receiver's session when it commits. Raises AmqpError likewise."""
        self._add(_SetsState(receiver, state), other=1, size=len(state or b""))

    def settle(self, messages: Sequence[ReceivedMessage], settlement: Settlement) -> None:
        """Settle messages when it commits. Raises AmqpError if it is over, or too much."""
        self._add(_Settles(messages, settlement), other=len(messages))

    def _add(self, part: _Part, *, sent: int = 0, other: int = 0, size: int = 0) -> None:
        self.refuse_over()
        for most, count, what in (
            (self._most_sent, self._sent + sent, "messages that a transaction sends"),
            (self._most, self._count + other, "messages that a transaction settles or cancels"),
        ):
            if count > most:
                raise AmqpError(RESOURCE_LIMIT_EXCEEDED, f"expected at most {most} {what}, got more")
        self._sent += sent
        self._count += other
        self.size += size
        self._parts.append(part)

    def expire(self) -> None:
        """Forget everything: it took too long."""
        self._over, self.size = True, 0
        self._parts.clear()

    def end(self) -> None:
        """Let it take as long as it takes from now on."""
        if self.timer is not None:
            self.timer.cancel()

    def refuse_over(self) -> None:
        """Raise AmqpError if it has taken too long."""
        if self._over:
            raise AmqpError(TRANSACTION_TIMEOUT, "expected the transaction to be discharged in time")

    async def commit(self, transaction: AsyncTransaction) -> None:
        """Do everything, or nothing. Raises LazarettoError."""
        enlisting, scheduled = Enlisting(transaction), []
        async with transaction:
            for part in self._parts:
                match part:
                    case _Sends(path, via, messages):
                        await transaction.send(path, list(messages), via=via)
                    case _Settles(held, settlement):
                        verb, details = verb_of(settlement)
                        await getattr(transaction, verb)(list(held), **details)
                    case _Schedules(path, messages, promised):
                        scheduled.append((promised, enlisting.schedule(path, messages)))
                    case _Cancels(path, numbers):
                        enlisting.cancel(path, numbers)
                    case _SetsState(receiver, state):
                        enlisting.set_session_state(receiver, state)
        for promised, sent in scheduled:
            self._promises.keep(promised, sent.numbers)


def _size_of(messages: Sequence[Message]) -> int:
    return sum(len(one.body) for one in messages)


def _entity_of(path: str) -> str:
    """Return the queue or topic that a path is of."""
    parsed = EntityPath.parse(path)
    return parsed.key.rsplit("/", 2)[0] if names_subscription(parsed) else parsed.queue.lower()


def in_transaction(id_: bytes, outcome: Outcome | None = None) -> bytes:
    """Return the state of a delivery that takes part in a transaction, encoded."""
    return encode_composite(TransactionalState(id_, outcome or Accepted()))


class Transactions:
    """The transactions of one connection, by id. `announces`: whether entities are beside a link."""

    def __init__(self, announces: Callable[[Link], bool]) -> None:
        self._announces = announces
        self._works: dict[bytes, Work] = {}

    @property
    def size(self) -> int:
        """Bytes of the messages that they send."""
        return sum(work.size for work in self._works.values()) if self._works else 0

    def declare(self, link: Link, limits: DoorLimits, promises: Promises) -> bytes:
        """Begin a transaction, and return its id. Raises AmqpError if too many are open."""
        if len(self._works) >= limits.transactions:
            raise AmqpError(
                RESOURCE_LIMIT_EXCEEDED, f"expected at most {limits.transactions} transactions at a time"
            )
        id_ = secrets.token_bytes(16)
        work = self._works[id_] = Work(link, limits, promises)
        loop = asyncio.get_running_loop()
        work.timer = loop.call_later(limits.transaction_seconds, work.expire)
        return id_

    def find(self, id_: bytes) -> Work:
        """Return an open transaction. Raises AmqpError for an id that stands for none."""
        work = self._works.get(id_)
        if work is None:
            raise AmqpError(TRANSACTION_UNKNOWN_ID, "expected the id of an open transaction, got another")
        return work

    def enlist(self, id_: bytes, path: str) -> Work:
        """Return an open transaction that is to do something on an entity. Raises AmqpError.

        As at Service Bus, a client announces several entities by a coordinator on the session of its links.
        """
        work = self.find(id_)
        work.bind(path, announced=self._announces(work.link))
        return work

    def take(self, id_: bytes) -> Work:
        """Return a transaction that ends now. Raises AmqpError for an id that stands for none."""
        work = self.find(id_)
        del self._works[id_]
        work.end()
        return work

    def drop(self, link: Link) -> None:
        """Roll back what was declared on a link."""
        for id_, work in list(self._works.items()):
            if work.link is link:
                self.take(id_)
