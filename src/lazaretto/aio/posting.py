"""Sends, receives and settles, on an event loop, for a server that awaits nothing: no task for each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lazaretto.aio import AsyncBroker, AsyncReceiver, AsyncSender, AsyncTransaction
from lazaretto.aio.driver import Driver, Then, driver_of
from lazaretto.aio.mirrors import catch
from lazaretto.broker.receiver import Receiver
from lazaretto.broker.sender import Sender, sendable
from lazaretto.broker.settling import SuspectChoice
from lazaretto.broker.steps import Do, Steps, steps_of
from lazaretto.broker.transaction import UnitOfWork
from lazaretto.engine.command import check_numbers
from lazaretto.engine.messages.prepare import prepare_all
from lazaretto.engine.messages.send import CancelScheduled, NumberedSend, Send
from lazaretto.engine.messages.sessions import SetSessionState
from lazaretto.engine.workers.workers import LoseClient
from lazaretto.errors import LazarettoError
from lazaretto.model.actors import Taker
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import Message, ReceivedMessage
from lazaretto.store.sql.operation import Operation


def hold_for_clients(broker: AsyncBroker) -> None:
    """Receive for clients from now on: if this process dies, no message counts it."""
    driver_of(broker).store.hold_for_clients()


async def lose_client(
    broker: AsyncBroker,
    path: str,
    working: Sequence[ReceivedMessage],
    waiting: Sequence[ReceivedMessage],
    *,
    together: bool,
) -> None:
    """End what a client held whose connection was lost: see LoseClient."""
    await driver_of(broker).run(_doing(LoseClient(EntityPath.parse(path), working, waiting, together)))


def _doing(operation: Operation[Any]) -> Steps[Any]:
    return (yield Do(operation))


def choose_suspects(receiver: AsyncReceiver, choice: SuspectChoice) -> None:
    """Receive so that suspects are alone on a connection."""
    inner: Any = receiver
    inner._inner._choice = choice


def introduce(receiver: AsyncReceiver, path: str, kind: str, name: str) -> None:
    """Receive as somebody else than this program: a client, by a name that people know it by."""
    inner: Any = receiver
    inner._inner._taker = Taker(str(EntityPath.parse(path)), kind, name)


class Posting:
    """Sends to one queue or topic."""

    def __init__(self, sender: AsyncSender) -> None:
        inner: Any = sender
        self._sender: Sender = inner._inner
        self._driver: Driver = inner._driver

    def send(self, messages: Sequence[Message], then: Then) -> None:
        """Send messages in one commit; `then` is called with their numbers, or with an error."""
        self._driver.begin(steps_of(self._sender.send, messages), then)


class Receiving:
    """Receives what is there at once, for a receiver."""

    def __init__(self, receiver: AsyncReceiver) -> None:
        inner: Any = receiver
        self._receiver: Receiver = inner._inner
        self._driver: Driver = inner._driver

    def receive(self, most: int, then: Then) -> None:
        """Receive up to `most` messages; `then` is called with them, maybe none, or with an error."""
        self._driver.begin(steps_of(self._receiver.receive, most, 0.0), then)


class Enlisting:
    """Adds to a transaction what it has no verb for. What is wrong may only be told by its commit."""

    def __init__(self, transaction: AsyncTransaction) -> None:
        inner: Any = transaction
        self._work: UnitOfWork = inner._inner._work

    def schedule(self, path: str, messages: Sequence[Message]) -> NumberedSend:
        """Send messages, whose numbers the commit gives. Raises LazarettoError for those that cannot be."""
        sent = NumberedSend(Send(sendable(path), prepare_all(messages)))
        self._work.enlist(sent)
        return sent

    def cancel(self, path: str, numbers: Sequence[int]) -> None:
        """Delete scheduled messages: all of them, or the transaction fails."""
        self._work.enlist(CancelScheduled(EntityPath.parse(path), check_numbers(numbers)))

    def set_session_state(self, receiver: AsyncReceiver, state: bytes | None) -> None:
        """Store the state of a receiver's session. Raises LazarettoError if it holds none."""
        inner: Any = receiver
        receiver_: Receiver = inner._inner
        self._work.enlist(SetSessionState(receiver_._path, receiver_._held(), state))


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
