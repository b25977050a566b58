"""Whatever bytes come, an end answers or closes: no exception, no hang, bounded memory."""

from __future__ import annotations

import os
import random
import tracemalloc

from peers import Peers

from lazaretto.servicebus.amqp import Connection, DecodeError, Section, Sections
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.encode import encode, symbol_map
from lazaretto.servicebus.amqp.events import (
    CreditChanged,
    Event,
    Failed,
    LinkAttached,
    MessageReceived,
    SaslStarted,
)
from lazaretto.servicebus.amqp.performatives import Modified
from lazaretto.servicebus.amqp.sections import Header, Properties
from lazaretto.servicebus.amqp.states import ConnectionState
from lazaretto.servicebus.amqp.values import Symbol

ROUNDS = 60_000 if os.environ.get("LAZARETTO_SOAK") else 1_500
MESSAGE = b"".join(
    (
        encode_composite(Header(durable=True, ttl=5)),
        b"\x00\x53\x72" + symbol_map({"x-opt": [1, 2.5]}),
        encode_composite(Properties("id", group_id="g")),
        b"\x00\x53\x74" + encode({"a": "b"}),
        b"\x00\x53\x75" + encode(b"hello"),
    )
)


def recorded() -> list[bytes]:
    """Return what a client says in a session with everything in it."""
    peers = Peers()
    session, _ = peers.begin()
    sender, _ = peers.link(session, sends=True, name="s", credit=100)
    receiver, theirs = peers.link(session, sends=False, name="r", credit=10)
    session.transfer(sender, MESSAGE, b"one")
    session.transfer(sender, b"\x00\x53\x75" + encode(b"z" * 100_000), b"two")
    theirs.session.transfer(theirs, MESSAGE, b"three")
    peers.pump()
    came = peers.of(peers.client_events, MessageReceived)
    state = encode_composite(Modified(delivery_failed=True, message_annotations={Symbol("k"): 1}))
    session.settle(came.delivery_id, came.delivery_id, state, settled=False)
    session.grant(receiver, 3, drain=True)
    session.detach(sender)
    peers.pump()
    session.end()
    peers.pump()
    peers.client.close()
    peers.pump()
    return peers.recorded


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Return the bytes with some of them changed, gone, put in or said twice."""
    found = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        kind, at = dice.random(), dice.randrange(len(found) + 1)
        if kind < 0.4 and at < len(found):
            found[at] = dice.randrange(256)
        elif kind < 0.6 and at < len(found):
            found[at] = dice.choice((0, 1, 0x40, 0x45, 0x7F, 0x80, 0xC0, 0xD0, 0xE0, 0xF0, 0xFF))
        elif kind < 0.75:
            del found[at : at + dice.randrange(1, 9)]
        elif kind < 0.9:
            found[at:at] = dice.randbytes(dice.randrange(1, 9))
        else:
            other = dice.randrange(len(found) + 1)
            found[at:at] = found[other : other + 64]
    return bytes(found)


def act(server: Connection, event: Event) -> None:
    """Do what a door does."""
    if isinstance(event, SaslStarted):
        server.authenticate()
    elif isinstance(event, LinkAttached):
        link = event.link
        link.session.accept(link)
        if not link.sends:
            link.session.grant(link, 1000)
    elif isinstance(event, MessageReceived):
        try:
            sections = Sections(event.payload)
            sections.header(), sections.properties(), sections.data(), sections.body()
            for section in (Section.MESSAGE_ANNOTATIONS, Section.APPLICATION_PROPERTIES, Section.FOOTER):
                sections.mapping(section)
        except DecodeError:
            pass
        event.link.session.settle(event.delivery_id, event.delivery_id)
    elif isinstance(event, CreditChanged) and event.link.attached and event.link.credit > 0:
        event.link.session.transfer(event.link, MESSAGE, b"t")


def test_mutated_traffic() -> None:
    said = recorded()
    dice = random.Random(20_261_122)
    failed = whole = 0
    tracemalloc.start()
    try:
        for _ in range(ROUNDS):
            server = Connection(server=True, container_id="server")
            which = dice.randrange(len(said))
            events: list[Event] = []
            for at, data in enumerate(said):
                events = server.receive(mutated(data, dice) if at == which else data)
                for event in events:
                    act(server, event)
                server.take()
                if server.state is ConnectionState.CLOSED:
                    break
            ended = server.state is ConnectionState.CLOSED
            failed += ended and any(isinstance(event, Failed) for event in events)
            whole += ended and not any(isinstance(event, Failed) for event in events)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert failed > ROUNDS / 4
    assert whole > ROUNDS / 20
    assert peak < 32 << 20
