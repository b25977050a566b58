"""A link on which a client sends to a queue or a topic."""

from __future__ import annotations

import functools
from typing import Final

from lazaretto.aio.posting import Posting
from lazaretto.errors import LazarettoError
from lazaretto.servicebus.amqp import Link
from lazaretto.servicebus.amqp.events import MessageReceived
from lazaretto.servicebus.amqp.performatives import TransactionalState
from lazaretto.servicebus.amqp.session import ACCEPTED
from lazaretto.servicebus.answers import rejected
from lazaretto.servicebus.conversions import messages_of
from lazaretto.servicebus.order import Kind, Order
from lazaretto.servicebus.server import Client
from lazaretto.servicebus.transactions import in_transaction

#: Messages that a client may have sent and not seen answered, on one link.
_CREDIT: Final = 1_000


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
        self.intake = Intake(link, _CREDIT)

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
