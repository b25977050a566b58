"""The nodes that a client asks something: `$cbs` for its tokens, `$management` of each entity."""

from __future__ import annotations

import secrets
from collections import deque
from typing import TYPE_CHECKING, Final

from lazaretto.errors import LazarettoError
from lazaretto.servicebus import requests
from lazaretto.servicebus.amqp import Link, Section, Sections
from lazaretto.servicebus.amqp.conditions import RESOURCE_LIMIT_EXCEEDED
from lazaretto.servicebus.amqp.events import MessageReceived
from lazaretto.servicebus.amqp.performatives import TransactionalState
from lazaretto.servicebus.amqp.sections import Properties
from lazaretto.servicebus.amqp.session import ACCEPTED
from lazaretto.servicebus.answers import condition_of, description_of, status_of
from lazaretto.servicebus.intake import Intake
from lazaretto.servicebus.order import Kind, Order
from lazaretto.servicebus.replies import TRACKING_ID, Answer, encode_answer
from lazaretto.servicebus.signatures import entity_of, policy_of
from lazaretto.servicebus.transactions import in_transaction

if TYPE_CHECKING:
    from lazaretto.servicebus.peer import Peer

_TOKENS: Final = "$cbs"
_MANAGEMENT: Final = "/$management"
#: Requests that a client may have sent and not seen answered, on one link.
_CREDIT: Final = 100
#: Answers that may wait for the client's credit.
_MOST_REPLIES: Final = 1_000


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

    def __init__(self, peer: Peer, link: Link, node: str) -> None:
        self._peer = peer
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
        order = self._peer.links.order(self._link)
        number = order.begin(Kind.REQUEST)
        order.when_due(
            number, lambda: self._peer.start(self._answer(event.payload, transaction, order, number))
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
                self._peer.log_fault(error)
            condition = condition_of(error)
            text = description_of(error, self._peer.grants.sees)
            said = Answer(status_of(condition), text, None, condition)
        reply = encode_answer(said, properties.message_id, tracking, token=self._node == _TOKENS)
        replies = self._replies_to(properties.reply_to)
        if replies is not None and not replies.add(reply):
            text = f"expected credit for answers, of which {_MOST_REPLIES} wait"
            replies.link.session.detach(replies.link, RESOURCE_LIMIT_EXCEEDED, text)
            self._peer.links.drop(replies.link)
        self._peer.flush()

    async def _said(self, sections: Sections, transaction: bytes | None) -> Answer:
        body = (sections.body() or [None])[0]
        properties = sections.mapping(Section.APPLICATION_PROPERTIES)
        if self._node == _TOKENS:
            audience = str(properties.get("name") or "")
            await self._peer.enter(policy_of(str(body)))
            await self._peer.grants.take_token(str(body), audience)
            # Only who has a right to know is told what is not there.
            entity = without_node(entity_of(audience))
            if entity and not entity.startswith("$"):
                await self._peer.door.check_exists(entity)
            return Answer(202, "Accepted")
        path = without_node(self._node)
        given = body if isinstance(body, dict) else {}
        work = None if transaction is None else self._peer.transactions.enlist(transaction, path)
        return await requests.answer(requests.Request(self._peer, path, properties, given, work))

    def _replies_to(self, address: str | None) -> Replies | None:
        """Return the link that an answer goes to: the named one, else one of the same session."""
        links = list(self._peer.links.held(Replies))
        named = (one for one in links if address is not None and one.address == address)
        session = self._link.session
        near = (one for one in links if one.link.session is session and one.node == self._node)
        return next(named, None) or next(near, None)
