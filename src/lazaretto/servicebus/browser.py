"""A link on which a client looks at messages and takes none, as JMS's queue browsers."""

from __future__ import annotations

import asyncio
from typing import Final

from lazaretto.errors import BrokerClosed, LazarettoError
from lazaretto.servicebus.amqp import Link
from lazaretto.servicebus.answers import condition_of, description_of
from lazaretto.servicebus.conversions import encode_message
from lazaretto.servicebus.server import Client

#: The distribution mode of a source whose messages stay where they are.
COPY: Final = "copy"
#: Messages that are read at once.
_MOST_AT_ONCE: Final = 100


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
