"""Sends, receives and settles, on an event loop, for a server that awaits nothing: no task for each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazaretto.aio import AsyncBroker, AsyncReceiver, AsyncSender
from lazaretto.aio.driver import Driver, Then
from lazaretto.aio.mirrors import catch
from lazaretto.errors import LazarettoError
from lazaretto.model.messages import Message, ReceivedMessage
from lazaretto.receiver import Receiver
from lazaretto.sender import Sender


def hold_for_clients(broker: AsyncBroker) -> None:
    """Receive for clients from now on: if this process dies, no message counts it."""
    inner: Any = broker
    inner._inner._store.hold_for_clients()


class Posting:
    """Sends to one queue or topic."""

    def __init__(self, sender: AsyncSender) -> None:
        inner: Any = sender
        self._sender: Sender = inner._inner
        self._driver: Driver = inner._driver

    def send(self, messages: Sequence[Message], then: Then) -> None:
        """Send messages in one commit; `then` is called with their numbers, or with an error."""
        self._driver.begin(self._sender._sending(messages), then)


class Receiving:
    """Receives what is there at once, for a receiver."""

    def __init__(self, receiver: AsyncReceiver) -> None:
        inner: Any = receiver
        self._receiver: Receiver = inner._inner
        self._driver: Driver = inner._driver

    def receive(self, most: int, then: Then) -> None:
        """Receive up to `most` messages; `then` is called with them, maybe none, or with an error."""
        self._driver.begin(self._receiver._receiving(most, 0.0), then)


class Settling:
    """Settles messages of one queue or subqueue."""

    def __init__(self, receiver: AsyncReceiver) -> None:
        inner: Any = receiver
        self._receiver: Receiver = inner._inner
        self._driver: Driver = inner._driver

    def settle(self, verb: str, messages: Sequence[ReceivedMessage], then: Then, **details: Any) -> None:
        """Do what a verb of a receiver does; `then` is called with None, or with an error."""
        try:
            steps = self._receiver._settling(*catch(verb, messages, **details))
        except LazarettoError as error:
            then(None, error)
        else:
            self._driver.begin(steps, then)
