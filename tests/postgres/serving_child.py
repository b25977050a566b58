"""A service host of a long soak: works off plain queues, subscriptions and sessions, and retries some."""

from __future__ import annotations

import random
import sys

import lazaretto
from lazaretto import ReceivedMessage
from lazaretto.host import Handler, HandlerContext, Isolation, ServiceHost

#: Which part of the attempts on plain messages fails.
FAILING = 0.03


class Refused(Exception):
    """What a handler raises now and then."""


def _note(context: HandlerContext, place: str, message: ReceivedMessage) -> None:
    """Write the message down in the commit that settles it."""
    context.execute("INSERT INTO ledger (place, message_id) VALUES (%s, %s)", (place, message.message_id))


def work(message: ReceivedMessage, context: HandlerContext) -> None:
    """Pass the message on, too."""
    if random.random() < FAILING:
        raise Refused("now and then")
    _note(context, "work", message)
    context.send("passed", lazaretto.Message(b"", message_id=message.message_id))


def read(message: ReceivedMessage, context: HandlerContext) -> None:
    if random.random() < FAILING:
        raise Refused("now and then")
    _note(context, "news/subscriptions/a", message)


def hear(message: ReceivedMessage, context: HandlerContext) -> None:
    _note(context, "chats", message)


def main(url: str, isolation: str) -> None:
    """Serve until told to stop."""
    with lazaretto.connect(url, timeout=10) as broker:
        kind = Isolation(isolation)
        handlers = [
            Handler("work", work, isolation=kind, batch_size=20, concurrency=2),
            Handler("news/subscriptions/a", read, isolation=Isolation.INLINE, batch_size=10),
            Handler("chats", hear, isolation=Isolation.INLINE, batch_size=5, concurrency=2),
        ]
        ServiceHost(broker, handlers, grace=2.0).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
