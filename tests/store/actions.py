"""Short words for what many tests do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any, overload

from lazaretto import (
    Broker,
    Event,
    Message,
    MessageState,
    PeekedMessage,
    PoisonPolicy,
    QueueOptions,
    ReceivedMessage,
)
from lazaretto.engine.workers.workers import bury
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction


def create(broker: Broker, path: str = "q", **options: Any) -> None:
    """Create a queue with some options; those that are the policy's go into its policy."""
    names = [f.name for f in dataclasses.fields(PoisonPolicy)]
    of_policy = {name: options.pop(name) for name in names if name in options}
    if of_policy:
        options["policy"] = PoisonPolicy(**of_policy)
    broker.create_queue(path, QueueOptions(**options))


@overload
def send(broker: Broker, body: bytes, /, *, path: str = ..., **fields: Any) -> int: ...
@overload
def send(
    broker: Broker, body: bytes, second: bytes, /, *more: bytes, path: str = ..., **fields: Any
) -> list[int]: ...
def send(broker: Broker, body: bytes, /, *more: bytes, path: str = "q", **fields: Any) -> int | list[int]:
    """Send a message for each body, in one call; return its number, or theirs."""
    bodies = (body, *more)
    with broker.sender(path) as sender:
        numbers = sender.send([Message(body, **fields) for body in bodies])
    return numbers[0] if len(bodies) == 1 else numbers


def take(broker: Broker, path: str = "q", **options: Any) -> ReceivedMessage:
    """Receive one message, which must be there."""
    (message,) = broker.receiver(path, **options).receive()
    return message


def fail(broker: Broker, path: str = "q", error: str | BaseException | None = None, **options: Any) -> int:
    """Receive one message and abandon it; return its number."""
    receiver = broker.receiver(path)
    (message,) = receiver.receive()
    receiver.abandon(message, error=error, **options)
    return message.sequence_number


def set_aside(broker: Broker, *bodies: bytes, path: str = "q", **letter: Any) -> list[int]:
    """Send messages and dead-letter them; return their numbers."""
    sent = broker.sender(path).send([Message(body) for body in bodies])
    receiver = broker.receiver(path)
    receiver.dead_letter(receiver.receive(len(bodies)), **letter)
    return sent


def bodies(messages: Iterable[Any]) -> list[bytes]:
    return [message.body for message in messages]


def numbers(messages: Iterable[Any]) -> list[int]:
    return [message.sequence_number for message in messages]


def peek_one(broker: Broker, path: str = "q") -> PeekedMessage:
    """Return the only message of a queue or subqueue, as it stands."""
    (message,) = broker.peek(path, 10)
    return message


def states(broker: Broker, path: str = "q") -> list[tuple[bytes, MessageState]]:
    return [(message.body, message.state) for message in broker.peek(path, 100)]


def kinds(events: Iterable[Event]) -> list[str]:
    return [event.kind for event in events]


def stored(broker: Broker, sql: str) -> list[tuple[Any, ...]]:
    """Return what a query finds in the broker's own tables."""
    with broker.transaction() as tx:
        found: list[tuple[Any, ...]] = tx.execute(sql).fetchall()
    return found


def is_sqlite(broker: Broker) -> bool:
    return "sqlite" in broker.facts()


def in_sql(broker: Broker, text: str) -> str:
    """Return a statement, written for SQLite, with its parameters as the broker's database has them."""
    if is_sqlite(broker):
        return text
    return re.sub(r":(\w+)", r"%(\1)s", text).replace("?", "%s")


class Die(Operation[None]):
    """Let the worker that this process is be dead, with all that it was handed as a service host."""

    def run(self, tx: Transaction) -> None:
        bury(tx, tx.worker)
