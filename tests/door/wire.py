"""A door in this process whose clock a test moves, and Azure's client on it in short words."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from lazaretto import Broker, ManualClock, PoisonPolicy, QueueOptions, aio
from lazaretto.servicebus import open_door
from lazaretto.serving.guard import Guard

#: Seconds to wait for what comes, and for what does not.
WAIT, MOMENT = 120, 0.2
DEAD = ServiceBusSubQueue.DEAD_LETTER
DELETES = ServiceBusReceiveMode.RECEIVE_AND_DELETE


class Wire:
    """Clients of a door. What they open is closed by `close`."""

    def __init__(self, broker: Broker, guard: Guard, clock: ManualClock, text: str, certificate: str) -> None:
        self.broker = broker
        self.guard = guard
        self.clock = clock
        self.client = ServiceBusClient.from_connection_string(text, retry_total=0)
        self.administration = ServiceBusAdministrationClient.from_connection_string(
            text, connection_verify=certificate, retry_total=0
        )
        self._opened = contextlib.ExitStack()
        self._names = (f"q{n}" for n in itertools.count())

    def name(self) -> str:
        """Return a name that no entity has."""
        return next(self._names)

    def make(self, path: str | None = None, deliveries: int = 10, **options: Any) -> str:
        """Make a queue as Service Bus makes it, and return its path."""
        made = path or self.name()
        options.setdefault("policy", PoisonPolicy.service_bus(deliveries))
        self.broker.create_queue(made, QueueOptions(**options))
        return made

    def topic(self, *subscriptions: str, **options: Any) -> str:
        """Make a topic with subscriptions, and return its path."""
        made = self.name()
        self.broker.create_topic(made)
        for one in subscriptions:
            self.broker.create_subscription(made, one, QueueOptions(**options))
        return made

    def send(self, path: str, *bodies: bytes, **fields: Any) -> None:
        """Send a message for each body."""
        with self.client.get_queue_sender(path) as sender:
            sender.send_messages([ServiceBusMessage(body, **fields) for body in bodies])

    def receiver(self, path: str, **options: Any) -> ServiceBusReceiver:
        """Open a receiver, which stays open until the test ends."""
        return self._opened.enter_context(self.client.get_queue_receiver(path, **options))

    def take(self, path: str, **options: Any) -> ServiceBusReceivedMessage:
        """Receive one message, which must be there."""
        return some(self.receiver(path, **options))[0]

    def fail(self, path: str, **options: Any) -> None:
        """Receive one message and abandon it."""
        receiver = self.receiver(path, **options)
        receiver.abandon_message(some(receiver)[0])
        receiver.close()

    def set_aside(self, path: str, *bodies: bytes, **why: str) -> None:
        """Send messages and dead-letter them."""
        self.send(path, *bodies)
        receiver = self.receiver(path)
        for message in some(receiver, len(bodies)):
            receiver.dead_letter_message(message, **why)
        receiver.close()

    def peek(self, path: str, **options: Any) -> list[ServiceBusReceivedMessage]:
        """Return the messages of a queue or subqueue as they stand."""
        return self.receiver(path, **options).peek_messages(20)

    def count(self, path: str, **options: Any) -> int | None:
        """Return the delivery count of the only message of a queue or subqueue."""
        (message,) = self.peek(path, **options)
        return message.delivery_count

    def close(self) -> None:
        """Close what was opened."""
        self._opened.close()
        self._opened = contextlib.ExitStack()


def some(receiver: ServiceBusReceiver, count: int = 1) -> list[ServiceBusReceivedMessage]:
    """Receive messages, all of which must be there."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        more = receiver.receive_messages(count - len(found), WAIT)
        assert more, "nothing came"
        found += more
    return found


def none(receiver: ServiceBusReceiver) -> bool:
    """Whether a receiver gets nothing."""
    return receiver.receive_messages(1, MOMENT) == []


def texts(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    """Return the bodies of messages, as text."""
    return [str(message) for message in messages]


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Wire]:
    """Serve a store of its own, with and without TLS."""
    authority, certificate = trustme.CA(), folder / "authority.pem"
    authority.cert_pem.write_to_path(certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    clock, port, stop = ManualClock(time.time()), list[int](), asyncio.Event()
    loop, ready, opened = asyncio.new_event_loop(), threading.Event(), list[Any]()
    guards: list[Guard] = []

    async def serve() -> None:
        async with (
            await aio.connect(folder / "store.db", clock=clock) as broker,
            open_door(broker, port=0, tls=context, tls_only=False) as door,
        ):
            opened.append(broker)
            port.append(door.port)
            guards.append(door.guard)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(WAIT)
    text = f"Endpoint=sb://localhost:{port[0]};SharedAccessKeyName=a;SharedAccessKey=k;UseDevelopmentEmulator=true;"
    wire = Wire(opened[0]._inner, guards[0], clock, text, str(certificate))
    try:
        yield wire
    finally:
        wire.close()
        wire.client.close()
        wire.administration.close()
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT)
        loop.close()
