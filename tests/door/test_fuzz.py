"""Whatever bytes come over the socket, the door answers or hangs up, logs no fault, and serves the others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import tracemalloc
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from door.client import Client, connected, opened, run
from lazaretto import Message, QueueOptions
from lazaretto.servicebus import Door
from lazaretto.servicebus.amqp import Header, Link, Properties, Section, encode
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.events import (
    CreditChanged,
    DeliveriesUpdated,
    LinkAttached,
    MessageReceived,
    Opened,
)
from lazaretto.servicebus.amqp.performatives import Error, Modified, Rejected, Source, Target
from lazaretto.servicebus.amqp.values import Array, Symbol, Timestamp, UByte

ROUNDS = 2_000 if os.environ.get("LAZARETTO_SOAK") else 300


def section(kind: Section, value: Any) -> bytes:
    return b"\x00\x53" + bytes((kind,)) + encode(value)


FULL = b"".join(
    (
        encode_composite(Header(True, 7, 60_000)),
        section(Section.MESSAGE_ANNOTATIONS, {Symbol("x-mine"): [UByte(1), None]}),
        encode_composite(Properties(uuid.UUID(int=7), b"user", content_encoding=Symbol("gzip"))),
        section(Section.APPLICATION_PROPERTIES, {"n": UByte(5), "when": Timestamp(5), "list": [1]}),
        section(Section.SEQUENCE, [1, {"a": b"b"}]),
        section(Section.FOOTER, {Symbol("x-crc"): 1}),
    )
)
PLAIN = section(Section.DATA, b"hello")


class _Said(Exception):
    """The rest of the session was said at once."""


class FuzzingClient(Client):
    """Says what it should up to write number `at`, which it changes; then the rest as it was recorded."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        said: list[bytes],
        at: int,
        dice: random.Random | None,
    ) -> None:
        super().__init__(reader, writer)
        self.recorded: list[bytes] = []
        self._said, self._at, self._dice = said, at, dice

    def write(self, data: bytes) -> None:
        if not data:
            return
        self.recorded.append(data)
        if self._dice is not None and len(self.recorded) == self._at + 1:
            self.writer.write(mutated(data, self._dice) + b"".join(self._said[self._at + 1 :]))
            raise _Said
        self.writer.write(data)


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Return the bytes with some of them changed, gone, put in or said twice."""
    found = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        kind, at = dice.random(), dice.randrange(len(found) + 1)
        if kind < 0.6 and at < len(found):
            found[at] = dice.choice((dice.randrange(256), 0, 0x40, 0x45, 0x80, 0xC0, 0xD0, 0xF0, 0xFF))
        elif kind < 0.75:
            del found[at : at + dice.randrange(1, 9)]
        elif kind < 0.9:
            found[at:at] = dice.randbytes(dice.randrange(1, 9))
        else:
            other = dice.randrange(len(found) + 1)
            found[at:at] = found[other : other + 64]
    return bytes(found)


async def attached(client: Client, like: Link, address: str, *, sends: bool, name: str) -> Link:
    like.session.attach(name, sends=sends, source=Source(address), target=Target(address), snd_settle_mode=2)
    return (await client.until(LinkAttached)).link


async def say_everything(client: Client) -> None:
    """Send, receive, settle in each way, and ask for everything that can be asked for."""
    await client.until(Opened)
    sender = await client.link(sends=True)
    while not sender.credit:
        await client.until(CreditChanged)
    for payload in (FULL, PLAIN, PLAIN + PLAIN):
        sender.session.transfer(sender, payload, b"t")
        await client.until(DeliveriesUpdated)
    receiver = await attached(client, sender, "q", sends=False, name="r")
    receiver.session.grant(receiver, 3)
    numbers = [(await client.until(MessageReceived)).delivery_id for _ in range(3)]
    modified = Modified(True, message_annotations={Symbol("n"): 1})
    rejected = Rejected(Error("x:y", "why", {Symbol("DeadLetterReason"): "r", Symbol("n"): 2}))
    for number, state in zip(numbers[1:], (modified, rejected), strict=True):
        receiver.session.settle(number, number, encode_composite(state), settled=False)
    asks = await attached(client, sender, "q/$management", sends=True, name="a")
    replies = await attached(client, sender, "q/$management", sends=False, name="p")
    replies.session.grant(replies, 50)
    while not asks.credit:
        await client.until(CreditChanged)
    scheduled = (
        section(Section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-scheduled-enqueue-time"): _later()}) + PLAIN
    )
    tokens = Array(0x98, [uuid.UUID(int=1)])
    requests: dict[str, dict[str, Any]] = {
        "peek-message": {"from-sequence-number": 0, "message-count": 5},
        "schedule-message": {"messages": [{"message": scheduled, "message-id": "m"}]},
        "cancel-scheduled-message": {"sequence-numbers": Array(0x81, [5])},
        "renew-lock": {"lock-tokens": tokens},
        "update-disposition": {"lock-tokens": tokens, "disposition-status": "completed"},
        "receive-by-sequence-number": {
            "sequence-numbers": Array(0x81, [1]),
            "receiver-settle-mode": UByte(1),
        },
        "set-session-state": {"session-id": "s", "session-state": b"x"},
    }
    for name, body in requests.items():
        asks.session.transfer(asks, _request(f"com.microsoft:{name}", body), b"t")
        await client.until(MessageReceived)
    sender.session.detach(sender)
    client.connection.close()
    client.write(client.connection.take())


def _later() -> Timestamp:
    return Timestamp(int(datetime.now(UTC).timestamp() * 1000) + 3_600_000)


def _request(operation: str, body: dict[str, Any]) -> bytes:
    properties = encode_composite(Properties("id", reply_to="q/$management"))
    return (
        properties
        + section(Section.APPLICATION_PROPERTIES, {"operation": operation})
        + section(Section.VALUE, body)
    )


async def _one(door: Door, said: list[bytes], at: int, dice: random.Random | None) -> list[bytes]:
    """Say a session, from one write on changed; return what was said. The door must hang up at its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    client = FuzzingClient(reader, writer, said, at, dice)
    try:
        with contextlib.suppress(_Said):
            await say_everything(client)
        with contextlib.suppress(OSError):
            writer.write_eof()
        async with asyncio.timeout(120):
            with contextlib.suppress(OSError):
                while await reader.read(65_536):
                    pass
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return client.recorded


def test_mutated_sessions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        dice = random.Random(20_261_123)
        async with opened(tmp_path) as (broker, door):
            await broker.create_queue("s", QueueOptions(requires_session=True))
            await broker.create_queue("good")
            said = await _one(door, [], 0, None)
            assert len(said) >= 18
            async with connected(door) as good:
                link = await good.link(sends=True, address="good")
                while not link.credit:
                    await good.until(CreditChanged)
                for number in range(ROUNDS):
                    await _one(door, said, dice.randrange(len(said)), dice)
                    if number % 25 == 0:
                        link.session.transfer(link, PLAIN, b"t")
                        await good.until(DeliveriesUpdated)
            assert (await broker.queue("good")).counts.active == ROUNDS // 25
            for queue in ("q", "q/$DeadLetterQueue"):
                # What was taken in can be given out.
                async with broker.receiver(queue) as receiver:
                    assert all(isinstance(one.body, bytes) for one in await receiver.peek(10_000))
            await broker.sender("q").send(Message(b"last"))

    tracemalloc.start()
    try:
        with caplog.at_level(logging.WARNING):
            run(work)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    # The store logs attempts that failed, as it should.
    faults = [record for record in caplog.records if record.name != "lazaretto.messages"]
    assert [(record.name, record.getMessage()) for record in faults] == []
