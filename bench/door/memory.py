"""`python -m bench.door.memory`: the engine with queues in memory, which is what the protocol alone costs.

It prints its port, and serves until it is ended. Tokens are accepted, whatever they are.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections import defaultdict, deque
from typing import Any, Final, cast

import uvloop

from lazaretto.servicebus.amqp import Connection, Header, Link, Properties, Section, Sections, encode
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.connection import ConnectionLimits
from lazaretto.servicebus.amqp.events import (
    CreditChanged,
    DeliveriesUpdated,
    Event,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    SaslStarted,
)
from lazaretto.servicebus.amqp.performatives import Target
from lazaretto.servicebus.amqp.values import Int, Symbol

_LIMITS: Final = ConnectionLimits(max_frame_size=1 << 20)
_CREDIT: Final = 1_000
_BATCH: Final = 0x80013700
_HEADER: Final = encode_composite(Header(delivery_count=0))


class Queue:
    """Messages, and the links that wait for them."""

    def __init__(self) -> None:
        self.last = 0
        self.ready: deque[tuple[int, bytes]] = deque()
        self.waiting: dict[Link, Peer] = {}

    def add(self, payload: bytes) -> None:
        """Read what a broker must know of a message, and keep it."""
        sections = Sections(payload)
        sections.header(), sections.properties()
        sections.mapping(Section.MESSAGE_ANNOTATIONS), sections.mapping(Section.APPLICATION_PROPERTIES)
        first = sections.get(Section.PROPERTIES)
        self.last += 1
        self.ready.append((self.last, payload if first is None else payload[first.start :]))

    def feed(self) -> None:
        """Hand over what there is credit for."""
        for link, peer in self.waiting.items():
            while self.ready and link.credit > 0 and not peer.paused:
                number, kept = self.ready.popleft()
                token = struct.pack(">QQ", 7, number)
                annotations = {
                    Symbol("x-opt-sequence-number"): number,
                    Symbol("x-opt-enqueued-time"): 1_700_000_000_000,
                }
                payload = _HEADER + b"\x00\x53\x72" + encode(annotations) + kept
                link.session.transfer(link, payload, token)
            if link.drain and link.credit:
                link.session.finish_drain(link)
            peer.flush()


_queues: Final[defaultdict[str, Queue]] = defaultdict(Queue)


class Peer(asyncio.Protocol):
    """A connection to one client."""

    def __init__(self) -> None:
        self.paused = False
        self._connection = Connection(server=True, container_id="memory", limits=_LIMITS)
        self._replies: Link | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        for queue in _queues.values():
            queue.waiting = {link: peer for link, peer in queue.waiting.items() if peer is not self}

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        for queue in list(_queues.values()):
            queue.feed()

    def data_received(self, data: bytes) -> None:
        fed: set[Queue] = set()
        came: dict[Link, list[int]] = {}
        for event in self._connection.receive(data):
            self._act(event, fed, came)
        for link, numbers in came.items():
            if numbers:
                link.session.settle(numbers[0], numbers[-1])
            if link.credit < _CREDIT // 2:
                link.session.grant(link, _CREDIT)
        for queue in fed:
            queue.feed()
        self.flush()

    def flush(self) -> None:
        """Send what there is to send."""
        self._transport.write(self._connection.take())

    def _act(self, event: Event, fed: set[Queue], came: dict[Link, list[int]]) -> None:
        if isinstance(event, MessageReceived):
            came.setdefault(event.link, []).append(event.delivery_id)
            if event.link.context == "$cbs":
                self._answer(event.payload)
            else:
                queue = _queues[event.link.context]
                for payload in _messages(event):
                    queue.add(payload)
                fed.add(queue)
        elif isinstance(event, DeliveriesUpdated):
            if not event.settled:
                event.deliveries[0].link.session.settle_sent(event.deliveries, _echoed(event))
        elif isinstance(event, CreditChanged):
            if event.link.sends and event.link.context != "$cbs":
                fed.add(_queues[event.link.context])
        elif isinstance(event, LinkAttached):
            self._attach(event.link)
        elif isinstance(event, LinkDetached):
            for queue in _queues.values():
                queue.waiting.pop(event.link, None)
        elif isinstance(event, SaslStarted):
            self._connection.authenticate()

    def _attach(self, link: Link) -> None:
        end: Any = link.source if link.sends else link.target
        name = str(end.address).rpartition("/")[2].lower()
        link.context = name
        if link.snd_settle_mode == 2:
            link.snd_settle_mode = 0
        link.session.accept(link, source=link.source, target=link.target or Target())
        if not link.sends:
            link.session.grant(link, _CREDIT)
        elif name == "$cbs":
            self._replies = link
        else:
            _queues[name].waiting[link] = self

    def _answer(self, payload: bytes) -> None:
        asked = Sections(payload).properties()
        told = {"status-code": Int(202), "status-description": "Accepted"}
        assert self._replies is not None
        reply = encode_composite(Properties(correlation_id=asked.message_id))
        reply += b"\x00\x53\x74" + encode(told) + b"\x00\x53\x77" + encode(None)
        self._replies.session.transfer(self._replies, reply, b"r", settled=True)


def _messages(event: MessageReceived) -> list[bytes]:
    if event.message_format != _BATCH:
        return [event.payload]
    return [body for body in Sections(event.payload).body() if isinstance(body, bytes)]


def _echoed(event: DeliveriesUpdated) -> bytes:
    assert event.state is not None
    return encode_composite(event.state)


async def _main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Peer, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main())
