"""A link on which a client sends to a queue or a topic."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lazaretto.aio import AsyncSender
from lazaretto.amqp import AmqpError, Link
from lazaretto.amqp.events import MessageReceived
from lazaretto.door.answers import rejected
from lazaretto.door.conversions import messages_of
from lazaretto.errors import LazarettoError

if TYPE_CHECKING:
    from lazaretto.door.peer import Peer

#: Messages that a client may have sent and not seen answered, on one link.
CREDIT: Final = 1_000


class Producer:
    """Sends what comes on a link, and answers when it is stored."""

    def __init__(self, peer: Peer, link: Link, path: str, sender: AsyncSender) -> None:
        self._peer = peer
        self._link = link
        self.path = path
        self._sender = sender

    def grant(self) -> None:
        """Let the client send."""
        self._link.session.grant(self._link, CREDIT)

    def take(self, event: MessageReceived) -> None:
        """Store a message. Messages of a link are stored in the order in which they came."""
        if self._link.credit < CREDIT // 2:
            self.grant()
        self._peer.start(self._store(event))

    async def _store(self, event: MessageReceived) -> None:
        session, number = self._link.session, event.delivery_id
        try:
            messages = messages_of(event.payload, event.message_format)
            if messages:
                await self._sender.send(messages)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not isinstance(error, LazarettoError | AmqpError):
                self._peer.log_fault(error)
            if not event.settled:
                session.settle(number, number, rejected(error))
        else:
            if not event.settled:
                session.settle(number, number)
        self._peer.flush()
