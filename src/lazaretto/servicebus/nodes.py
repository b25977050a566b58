"""Links on which a client sends messages, and those on which it asks something: `$cbs` takes its tokens,
`$management` is each entity's, and a coordinator commits its transactions.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections import deque
from typing import Final

from lazaretto.aio.posting import Posting
from lazaretto.errors import BrokerClosed, LazarettoError
from lazaretto.servicebus import requests
from lazaretto.servicebus.amqp import DecodeError, Link, Section, Sections
from lazaretto.servicebus.amqp.composites import encode_composite, parse
from lazaretto.servicebus.amqp.conditions import RESOURCE_LIMIT_EXCEEDED, TRANSACTION_ROLLBACK
from lazaretto.servicebus.amqp.events import MessageReceived
from lazaretto.servicebus.amqp.performatives import (
    Accepted,
    Declare,
    Declared,
    Discharge,
    Error,
    Rejected,
    TransactionalState,
)
from lazaretto.servicebus.amqp.sections import Properties
from lazaretto.servicebus.amqp.session import ACCEPTED
from lazaretto.servicebus.answers import (
    TRACKING_ID,
    Answer,
    condition_of,
    description_of,
    encode_answer,
    rejected,
    status_of,
)
from lazaretto.servicebus.conversions import encode_message, messages_of
from lazaretto.servicebus.grants import entity_of, policy_of
from lazaretto.servicebus.order import Kind, Order
from lazaretto.servicebus.server import Client
from lazaretto.servicebus.transactions import Work, in_transaction

#: Messages that a client may have sent and not seen answered, on one link.
_AHEAD: Final = 1_000


class Intake:
    """A link on which a client sends. `most`: messages that it may have sent and not seen answered."""

    def __init__(self, link: Link, most: int) -> None:
        self._link = link
        self._most = most

    def open(self) -> None:
        """Let the client send."""
        self._link.session.grant(self._link, self._most)

    def top_up(self) -> None:
        """Let the client send more if it has used half of what it may."""
        if self._link.credit < self._most // 2:
            self.open()


class Producer:
    """Sends what comes on a link, and answers when it is stored."""

    def __init__(self, client: Client, link: Link, path: str, destination: str | None) -> None:
        self._client = client
        self._link = link
        self.path = path
        #: Where messages go, and the queue that they pass through if they do not stay in it.
        self._to = destination or path
        self._via = None if destination is None else path
        self._posting = Posting(client.door.broker.sender(self._to, via=self._via))
        self.intake = Intake(link, _AHEAD)

    def take(self, event: MessageReceived) -> None:
        """Store a message. Messages of a link are stored in the order in which they came."""
        self.intake.top_up()
        if isinstance(event.state, TransactionalState):
            self._enlist(event, event.state.txn_id)
        else:
            self._store(event)

    def _enlist(self, event: MessageReceived, transaction: bytes) -> None:
        """Keep a message until its transaction commits."""
        state = in_transaction(transaction)
        try:
            messages = messages_of(event.payload, event.message_format)
            self._client.transactions.enlist(transaction, self.path).send(self._to, self._via, messages)
        except LazarettoError as error:
            state = rejected(error)
        if not event.settled:
            self._link.session.settle(event.delivery_id, event.delivery_id, state)

    def _store(self, event: MessageReceived) -> None:
        self._client.begin(len(event.payload))
        order = self._client.links.order(self._link)
        number = order.begin(Kind.CHANGE)
        then = functools.partial(self._stored, event, order, number)
        try:
            messages = messages_of(event.payload, event.message_format)
        except LazarettoError as error:
            then(None, error)
        else:
            order.when_due(number, functools.partial(self._posting.send, messages, then))

    def _stored(
        self, event: MessageReceived, order: Order, number: int, _: object, error: BaseException | None
    ) -> None:
        """Answer, now that a message is stored or cannot be."""
        order.end(number)
        if error is not None and not isinstance(error, LazarettoError):
            self._client.log_fault(error)
        if not event.settled:
            state = ACCEPTED if error is None else rejected(error)
            self._link.session.settle(event.delivery_id, event.delivery_id, state)
        self._client.end(len(event.payload))
        self._client.flush_soon()


#: The distribution mode of a source whose messages stay where they are.
COPY: Final = "copy"
#: Messages that are read at once.
_MOST_AT_ONCE: Final = 100

_TOKENS: Final = "$cbs"
_MANAGEMENT: Final = "/$management"
#: Requests that a client may have sent and not seen answered, on one link.
_CREDIT: Final = 100
#: Answers that may wait for the client's credit.
_MOST_REPLIES: Final = 1_000


class Browser:
    """Shows each message once, in order, as the client gives credit; nothing is locked.

    What comes when all was shown is shown with the next credit.
    """

    def __init__(self, client: Client, link: Link, path: str) -> None:
        self._client = client
        self._link = link
        self.path = path
        self._next = 0
        self._task: asyncio.Task[None] | None = None
        self.look()

    def look(self) -> None:
        """Show what the client has credit for."""
        if self._task is None or self._task.done():
            self._task = self._client.start(self._show())

    def look_anew(self) -> None:
        """Begin again with the first message: the entity at the path is another one now."""
        self._next = 0
        self.look()

    def detach(self) -> None:
        """Show nothing more."""
        if self._task is not None:
            self._task.cancel()

    async def _show(self) -> None:
        link = self._link
        try:
            while link.attached and link.credit > 0 and not self._client.paused:
                most = min(link.credit, _MOST_AT_ONCE)
                messages = await self._client.door.settler(self.path).peek(most, self._next)
                for one in messages[: link.credit]:
                    payload = encode_message(one, locked_until=one.locked_until_micros, state=one.state)
                    link.session.transfer(link, payload, b"", settled=True)
                    self._next = one.sequence_number + 1
                self._client.flush()
                if not messages:
                    break
            if link.attached and link.drain:
                link.session.finish_drain(link)
        except (LazarettoError, OSError) as error:
            if not isinstance(error, BrokerClosed):
                link.session.detach(link, condition_of(error), description_of(error))
        self._client.flush()


def is_node(name: str) -> bool:
    """Whether requests go to a name, not messages."""
    return name == _TOKENS or name.lower().endswith(_MANAGEMENT)


def without_node(name: str) -> str:
    """Return the entity that a name stands for, or whose node it is."""
    return name[: -len(_MANAGEMENT)] if name.lower().endswith(_MANAGEMENT) else name


class Replies:
    """A link on which answers go out; those that find no credit wait."""

    def __init__(self, link: Link, node: str, address: str | None) -> None:
        self.link = link
        self.node = node
        self.address = address
        self._waiting: deque[bytes] = deque()

    def add(self, reply: bytes) -> bool:
        """Send an answer as soon as the client takes it. Return False if too many wait already."""
        if len(self._waiting) >= _MOST_REPLIES:
            return False
        self._waiting.append(reply)
        self.look()
        return True

    def look(self) -> None:
        """Send the answers that there is credit for."""
        link = self.link
        while self._waiting and link.credit > 0 and link.attached:
            link.session.transfer(link, self._waiting.popleft(), secrets.token_bytes(4), settled=True)
        if link.drain and link.attached:
            link.session.finish_drain(link)


class Requests:
    """A link on which requests to a node come."""

    def __init__(self, client: Client, link: Link, node: str) -> None:
        self._client = client
        self._link = link
        self._node = node
        self.intake = Intake(link, _CREDIT)

    def take(self, event: MessageReceived) -> None:
        """Answer a request."""
        transaction = event.state.txn_id if isinstance(event.state, TransactionalState) else None
        if not event.settled:
            state = ACCEPTED if transaction is None else in_transaction(transaction)
            self._link.session.settle(event.delivery_id, event.delivery_id, state)
        self.intake.top_up()
        order = self._client.links.order(self._link)
        number = order.begin(Kind.REQUEST)
        order.when_due(
            number, lambda: self._client.start(self._answer(event.payload, transaction, order, number))
        )

    async def _answer(self, payload: bytes, transaction: bytes | None, order: Order, number: int) -> None:
        properties, tracking = Properties(), None
        try:
            try:
                sections = Sections(payload)
                properties = sections.properties()
                tracking = sections.mapping(Section.APPLICATION_PROPERTIES).get(TRACKING_ID)
                said = await self._said(sections, transaction)
            finally:
                order.end(number)
        except Exception as error:
            if not isinstance(error, LazarettoError):
                self._client.log_fault(error)
            condition = condition_of(error)
            text = description_of(error, self._client.grants.sees)
            said = Answer(status_of(condition), text, None, condition)
        reply = encode_answer(said, properties.message_id, tracking, token=self._node == _TOKENS)
        replies = self._replies_to(properties.reply_to)
        if replies is not None and not replies.add(reply):
            text = f"expected credit for answers, of which {_MOST_REPLIES} wait"
            replies.link.session.detach(replies.link, RESOURCE_LIMIT_EXCEEDED, text)
            self._client.links.drop(replies.link)
        self._client.flush()

    async def _said(self, sections: Sections, transaction: bytes | None) -> Answer:
        body = (sections.body() or [None])[0]
        properties = sections.mapping(Section.APPLICATION_PROPERTIES)
        if self._node == _TOKENS:
            audience = str(properties.get("name") or "")
            await self._client.enter(policy_of(str(body)))
            await self._client.grants.take_token(str(body), audience)
            # Only who has a right to know is told what is not there.
            entity = without_node(entity_of(audience))
            if entity and not entity.startswith("$"):
                await self._client.door.check_exists(entity)
            return Answer(202, "Accepted")
        path = without_node(self._node)
        fields = body if isinstance(body, dict) else {}
        work = None if transaction is None else self._client.transactions.enlist(transaction, path)
        return await requests.answer(requests.Request(self._client, path, properties, fields, work))

    def _replies_to(self, address: str | None) -> Replies | None:
        """Return the link that an answer goes to: the named one, else one of the same session."""
        links = list(self._client.links.held(Replies))
        named = (one for one in links if address is not None and one.address == address)
        session = self._link.session
        near = (one for one in links if one.link.session is session and one.node == self._node)
        return next(named, None) or next(near, None)


class Coordination:
    """A link on which a client declares and discharges transactions."""

    def __init__(self, client: Client, link: Link) -> None:
        self._client = client
        self._link = link
        self.intake = Intake(link, _CREDIT)

    def take(self, event: MessageReceived) -> None:
        """Declare or discharge, in the order in which the client asks."""
        self.intake.top_up()
        number = event.delivery_id
        try:
            asked = _asked(event.payload)
            if isinstance(asked, Declare):
                declared = Declared(self._declare())
                self._answer(number, encode_composite(declared))
                return
        except LazarettoError as error:
            self._answer(number, rejected(error))
            return
        order = self._client.links.order(self._link)
        place = order.begin(Kind.REQUEST)
        # What the client has said before may be part of it.
        order.when_due(place, lambda: self._client.start(self._discharge(number, asked, order, place)))

    def _declare(self) -> bytes:
        door = self._client.door
        return self._client.transactions.declare(self._link, door.limits, door.promises)

    async def _discharge(self, number: int, asked: Discharge, order: Order, place: int) -> None:
        state = encode_composite(Accepted())
        try:
            work = self._client.transactions.take(asked.txn_id)
            if not asked.fail:
                work.refuse_over()
                state = await self._commit(work)
        except LazarettoError as error:
            state = rejected(error)
        finally:
            order.end(place)
        self._answer(number, state)
        self._client.flush()

    async def _commit(self, work: Work) -> bytes:
        try:
            await work.commit(self._client.door.broker.transaction())
        except Exception as error:
            if not isinstance(error, LazarettoError):
                self._client.log_fault(error)
            return encode_composite(Rejected(Error(TRANSACTION_ROLLBACK, description_of(error))))
        return encode_composite(Accepted())

    def _answer(self, number: int, state: bytes) -> None:
        self._link.session.settle(number, number, state)


def _asked(payload: bytes) -> Declare | Discharge:
    part = Sections(payload).get(Section.VALUE)
    if part is None:
        raise DecodeError("expected a message to the coordinator to hold a value, got none")
    asked, _ = parse(payload, part.value)
    if not isinstance(asked, Declare | Discharge):
        raise DecodeError(f"expected declare or discharge, got {type(asked).__name__}")
    return asked
