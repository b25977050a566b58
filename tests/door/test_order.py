"""What a client says on one session takes effect in its order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from door.client import Client, connected, opened, run
from lazaretto import Message
from lazaretto.aio import AsyncBroker
from lazaretto.servicebus.amqp import Link, Properties, Section, Sections, Session, encode_section
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.events import (
    CreditChanged,
    DeliveriesUpdated,
    LinkAttached,
    MessageReceived,
    SessionBegun,
)
from lazaretto.servicebus.amqp.performatives import (
    Coordinator,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Modified,
    Released,
    Source,
    Target,
    TransactionalState,
)
from lazaretto.servicebus.amqp.values import Array, Int, Symbol, Timestamp
from lazaretto.servicebus.order import BEFORE_RECEIVING, Kind, Order


class One:
    """A session with links on it, whose client says several things in one breath."""

    def __init__(self, client: Client, session: Session) -> None:
        self.client = client
        self.session = session

    async def attach(self, name: str, **options: Any) -> Link:
        options = {"source": Source("q"), "target": Target("q"), **options}
        self.session.attach(name, **options)
        link = (await self.client.until(LinkAttached)).link
        while link.sends and not link.credit:
            await self.client.until(CreditChanged)
        return link

    async def receive(self, link: Link, count: int = 1) -> list[MessageReceived]:
        link.session.grant(link, count)
        return [await self.client.until(MessageReceived) for _ in range(count)]

    def ask(self, asks: Link, operation: str, state: bytes | None = None, **body: Any) -> None:
        """Ask for something, and wait for nothing."""
        given = {name.replace("_", "-"): value for name, value in body.items()}
        parts = (
            encode_composite(Properties(operation, reply_to="me")),
            encode_section(Section.APPLICATION_PROPERTIES, {"operation": f"com.microsoft:{operation}"}),
            encode_section(Section.VALUE, given),
        )
        more = {} if state is None else {"state": state}
        self.session.transfer(asks, b"".join(parts), b"t", settled=True, **more)

    async def answer(self) -> tuple[int, Any]:
        sections = Sections((await self.client.until(MessageReceived)).payload)
        return int(sections.mapping(Section.APPLICATION_PROPERTIES)["statusCode"]), sections.body()[0]


@asynccontextmanager
async def one(url: str) -> AsyncIterator[tuple[AsyncBroker, One]]:
    async with opened(url) as (broker, door), connected(door) as client:
        session = client.connection.begin()
        await client.until(SessionBegun)
        yield broker, One(client, session)


async def node(own: One) -> Link:
    asks = await own.attach("asks", sends=True, target=Target("q/$management"))
    replies = await own.attach("replies", sends=False, source=Source("q/$management"), target=Target("me"))
    replies.session.grant(replies, 50)
    return asks


def body(message: MessageReceived) -> Any:
    return Sections(message.payload).body()[0]


@pytest.mark.parametrize("state", [Released(), Modified(True)], ids=["released", "abandoned"])
def test_a_message_that_is_given_back_comes_before_the_next(url: str, state: DeliveryState) -> None:
    async def work() -> None:
        async with one(url) as (broker, own):
            await broker.sender("q").send([Message(b"1"), Message(b"2")])
            link = await own.attach("l", sends=False)
            (first,) = await own.receive(link)
            for _ in range(4):
                # In one breath: what was given back is there again before the credit is used.
                own.session.settle(
                    first.delivery_id, first.delivery_id, encode_composite(state), settled=True
                )
                (first,) = await own.receive(link)
                assert body(first) == b"1"

    run(work)


def test_requests_are_done_one_after_the_other(url: str) -> None:
    async def work() -> None:
        async with one(url) as (_, own):
            asks = await node(own)
            at = encode_section(
                Section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1 << 42)}
            )
            for number in (1, 2, 3):
                message = at + encode_section(Section.DATA, b"%d" % number)
                own.ask(asks, "schedule-message", messages=[{"message": message}])
                own.ask(asks, "peek-message", from_sequence_number=1, message_count=Int(9))
                own.ask(asks, "cancel-scheduled-message", sequence_numbers=Array(0x81, [number]))
                own.ask(asks, "peek-message", from_sequence_number=1, message_count=Int(9))
                assert await own.answer() == (200, {"sequence-numbers": Array(0x81, [number])})
                assert [len((await own.answer())[1]["messages"]), (await own.answer())[0]] == [1, 200]
                assert await own.answer() == (204, None)

    run(work)


def test_a_request_sees_what_was_sent_and_settled_before_it(url: str) -> None:
    async def work() -> None:
        async with one(url) as (_, own):
            asks = await node(own)
            to, link = await own.attach("to", sends=True), await own.attach("l", sends=False)
            peek: dict[str, Any] = {"from_sequence_number": 1, "message_count": Int(9)}
            own.session.transfer(to, encode_section(Section.DATA, b"x"), b"t", settled=True)
            own.ask(asks, "peek-message", **peek)
            assert (await own.answer())[0] == 200
            (message,) = await own.receive(link)
            own.session.settle(message.delivery_id, message.delivery_id)
            own.ask(asks, "peek-message", **peek)
            assert (await own.answer())[0] == 204

    run(work)


def test_a_drain_finds_what_was_sent_before_it(url: str) -> None:
    async def work() -> None:
        async with one(url) as (_, own):
            to, link = await own.attach("to", sends=True), await own.attach("l", sends=False)
            for _ in range(4):
                own.session.transfer(to, encode_section(Section.DATA, b"x"), b"t", settled=True)
                own.session.grant(link, 5, drain=True)
                assert body(await own.client.until(MessageReceived)) == b"x"
                while link.credit:
                    await own.client.until(CreditChanged)

    run(work)


def test_a_transaction_has_all_that_was_said_before_its_end(url: str) -> None:
    async def work() -> None:
        async with one(url) as (broker, own):
            asks = await node(own)
            coordinator = await own.attach("c", sends=True, source=Source(), target=Coordinator())
            value = b"\x00\x53" + bytes((Section.VALUE,))

            own.session.transfer(coordinator, value + encode_composite(Declare()), b"t")
            declared = await _state(own)
            assert isinstance(declared, Declared)
            data = encode_section(Section.DATA, b"x")
            state = encode_composite(TransactionalState(declared.txn_id))
            own.ask(asks, "schedule-message", state, messages=[{"message": data}])
            own.session.transfer(
                coordinator, value + encode_composite(Discharge(declared.txn_id, False)), b"t", settled=True
            )
            own.ask(asks, "peek-message", from_sequence_number=1, message_count=Int(9))
            assert [(await own.answer())[0] for _ in range(2)] == [200, 200]
            assert len(await broker.peek("q", 9)) == 1

    run(work)


async def _state(own: One) -> DeliveryState | None:
    return (await own.client.until(DeliveriesUpdated)).state


def test_what_waits_for_what() -> None:
    order, done = Order(), list[str]()

    def say(kind: Kind, name: str) -> int:
        number = order.begin(kind)
        order.when_due(number, lambda: done.append(name))
        return number

    completed, changed = say(Kind.COMPLETE, "complete"), say(Kind.CHANGE, "change")
    assert done == ["complete", "change"]
    assert order.blocks(BEFORE_RECEIVING)
    first, second = say(Kind.REQUEST, "first"), say(Kind.REQUEST, "second")
    late = say(Kind.COMPLETE, "late")
    order.end(changed)
    assert done == ["complete", "change"]
    order.end(completed)
    assert done[2:] == ["first"]
    order.end(first)
    assert done[3:] == ["second"]
    order.end(second)
    assert done[4:] == ["late"]
    assert not order.blocks(BEFORE_RECEIVING)
    order.end(late)
