"""A client of AMQP 1.0 for measurements: the engine on a blocking socket."""

from __future__ import annotations

import socket
import struct
from typing import Final, TypeVar

from lazaretto.servicebus.amqp import Connection, Link, Properties, Section, encode
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.connection import ConnectionLimits
from lazaretto.servicebus.amqp.events import (
    CreditChanged,
    DeliveriesUpdated,
    Event,
    LinkAttached,
    MessageReceived,
    Opened,
    SenderUpdated,
    SessionBegun,
)
from lazaretto.servicebus.amqp.performatives import Source, Target

E = TypeVar("E", bound=Event)

_LIMITS: Final = ConnectionLimits(max_frame_size=1 << 20, window=1 << 20)
#: A message: properties, two application properties and a kibibyte.
PAYLOAD: Final = b"".join(
    (
        encode_composite(Properties("id-00000005")),
        b"\x00\x53" + bytes((Section.APPLICATION_PROPERTIES,)) + encode({"kind": "order", "n": 5}),
        b"\x00\x53" + bytes((Section.DATA,)) + encode(b"x" * 1024),
    )
)


class AmqpClient:
    """One connection with one session. `sasl`: the mechanism, and what it says first.

    `slack`: messages that may come beyond the credit. RabbitMQ 3.10 counts those twice that are on their way
    when credit is given.
    """

    def __init__(self, port: int, sasl: tuple[str, bytes] = ("ANONYMOUS", b""), slack: int = 0) -> None:
        self._slack = slack
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(120)
        self._connection = Connection(
            server=False, container_id="bench", hostname="localhost", limits=_LIMITS, sasl=sasl
        )
        self.until(Opened)
        self._session = self._connection.begin()
        self.until(SessionBegun)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def sender(self, queue: str) -> Link:
        """Attach a link to send on, and wait for credit."""
        link = self._session.attach(
            "send", sends=True, source=Source("bench"), target=Target(queue), snd_settle_mode=0
        )
        while not link.credit:
            self.until(CreditChanged)
        return link

    def receiver(self, queue: str) -> Link:
        """Attach a link to receive on."""
        self._session.attach(
            "receive", sends=False, source=Source(queue), target=Target("bench"), snd_settle_mode=0
        )
        return self.until(LinkAttached).link

    def send(self, link: Link, count: int, window: int) -> None:
        """Send messages, of which at most `window` are not answered."""
        sent = done = 0
        while done < count:
            while sent < count and sent - done < window and link.credit > 0:
                link.session.transfer(link, PAYLOAD, struct.pack(">I", sent))
                sent += 1
            done += sum(len(e.deliveries) for e in self.exchange() if isinstance(e, DeliveriesUpdated))

    def receive(self, link: Link, count: int, window: int) -> None:
        """Receive and complete messages, with so many credits."""
        self._grant(link, window)
        done = 0
        while done < count:
            numbers = []
            for event in self.exchange():
                if isinstance(event, MessageReceived):
                    numbers.append(event.delivery_id)
                elif isinstance(event, SenderUpdated):
                    done += event.last - event.first + 1
            if numbers:
                link.session.settle(numbers[0], numbers[-1], settled=False)
                if link.credit - self._slack <= window // 2:
                    self._grant(link, window)
        # What comes later is for later.
        link.session.grant(link, 0)
        self.tell()

    def _grant(self, link: Link, window: int) -> None:
        link.session.grant(link, window)
        link.credit += self._slack

    def tell(self) -> None:
        """Send what there is to send, and wait for nothing."""
        data = self._connection.take()
        if data:
            self._socket.sendall(data)

    def until(self, kind: type[E]) -> E:
        """Return the first event of a kind; others are lost."""
        while True:
            for event in self.exchange():
                if isinstance(event, kind):
                    return event

    def exchange(self) -> list[Event]:
        """Send what there is to send, and return what comes back."""
        self.tell()
        found = self._socket.recv(1 << 20)
        if not found:
            raise ConnectionError("the server hung up")
        return self._connection.receive(found)
