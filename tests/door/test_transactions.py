"""Transactions over AMQP: what a client sends and settles in one takes effect together, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from door.client import Client, connected, opened, run
from lazaretto import Message, QueueOptions
from lazaretto.aio import AsyncBroker
from lazaretto.servicebus import DoorLimits
from lazaretto.servicebus.amqp import Link, Section, encode
from lazaretto.servicebus.amqp.composites import Composite, encode_composite
from lazaretto.servicebus.amqp.events import (
    CreditChanged,
    DeliveriesUpdated,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    SenderUpdated,
    SessionBegun,
)
from lazaretto.servicebus.amqp.performatives import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Error,
    Modified,
    Rejected,
    Source,
    TransactionalState,
)


class Transactor:
    """A client with a coordinator link."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def open(self) -> None:
        session = self.client.connection.begin()
        await self.client.until(SessionBegun)
        # So a client announces that its transactions have several entities.
        self.client.shared = session
        session.attach("coordinator", sends=True, source=Source(), target=Coordinator())
        self.link: Link = (await self.client.until(LinkAttached)).link
        while not self.link.credit:
            await self.client.until(CreditChanged)

    async def ask(self, body: Composite) -> Any:
        payload = b"\x00\x53" + bytes((Section.VALUE,)) + encode_composite(body)
        self.link.session.transfer(self.link, payload, b"t")
        return (await self.client.until(DeliveriesUpdated)).state

    async def declare(self) -> bytes:
        state = await self.ask(Declare())
        assert isinstance(state, Declared)
        return state.txn_id

    async def discharge(self, id_: bytes, *, fail: bool = False) -> str | None:
        """Return the condition of the error, if it is refused."""
        state = await self.ask(Discharge(id_, fail))
        if isinstance(state, Accepted):
            return None
        assert isinstance(state, Rejected)
        assert state.error is not None
        return state.error.condition

    async def sender(self, address: str, **options: Any) -> Link:
        link = await self.client.link(sends=True, address=address, name=f"to {address}", **options)
        while not link.credit:
            await self.client.until(CreditChanged)
        return link

    async def send(self, link: Link, id_: bytes, body: bytes) -> Any:
        state = encode_composite(TransactionalState(id_))
        link.session.transfer(link, b"\x00\x53\x75" + encode(body), b"t", state=state)
        return (await self.client.until(DeliveriesUpdated)).state

    async def settle(self, message: MessageReceived, id_: bytes, outcome: Any) -> Any:
        state = encode_composite(TransactionalState(id_, outcome))
        session, number = message.link.session, message.delivery_id
        session.settle(number, number, state, settled=False)
        return (await self.client.until(SenderUpdated)).state


@asynccontextmanager
async def transacting(path: Path, **options: Any) -> AsyncIterator[tuple[AsyncBroker, Transactor]]:
    async with opened(path, **options) as (broker, door), connected(door) as client:
        transactor = Transactor(client)
        await transactor.open()
        yield broker, transactor


async def bodies(broker: AsyncBroker, path: str = "q") -> list[bytes]:
    return [message.body for message in await broker.peek(path, 100)]


def test_one_entity_unless_several_are_announced(tmp_path: Path) -> None:
    async def work() -> None:
        async with transacting(tmp_path) as (broker, own):
            own.client.shared = None
            await broker.create_topic("t")
            await broker.create_subscription("t", "s")
            await broker.sender("t").send([Message(b"1")])
            take = await own.client.link(sends=False, address="t/Subscriptions/s", name="take")
            take.session.grant(take, 1)
            taken = await own.client.until(MessageReceived)
            to, other = await own.sender("T"), await own.sender("q")
            id_ = await own.declare()
            # What belongs to the topic is one entity.
            assert await own.settle(taken, id_, Accepted()) == TransactionalState(id_, Accepted())
            assert await own.send(to, id_, b"a") == TransactionalState(id_, Accepted())
            refused = await own.send(other, id_, b"b")
            assert isinstance(refused, Rejected)
            assert refused.error is not None
            assert refused.error.condition == "amqp:not-allowed"
            assert await own.discharge(id_) is None
            assert (await bodies(broker, "t/subscriptions/s"), await bodies(broker)) == ([b"a"], [])

    run(work)


def test_a_commit_does_all_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with transacting(tmp_path) as (broker, own):
            for path in ("in", "out"):
                await broker.create_queue(path)
            await broker.sender("in").send([Message(b"1"), Message(b"2"), Message(b"3")])
            take = await own.client.link(sends=False, address="in", name="take")
            take.session.grant(take, 3)
            taken = [await own.client.until(MessageReceived) for _ in range(3)]
            out, other = await own.sender("out"), await own.sender("q")
            id_ = await own.declare()
            assert await own.send(out, id_, b"a") == TransactionalState(id_, Accepted())
            assert await own.settle(taken[0], id_, Accepted()) == TransactionalState(id_, Accepted())
            await own.send(other, id_, b"b")
            rejection = Rejected(Error("com.microsoft:dead-letter", info={"DeadLetterReason": "bad"}))
            assert await own.settle(taken[1], id_, rejection) == TransactionalState(id_, Rejected())
            await own.settle(taken[2], id_, Modified(True, message_annotations={"tried": 1}))
            assert await bodies(broker, "out") == await bodies(broker) == []
            assert (await broker.queue("in")).counts.locked == 3
            assert await own.discharge(id_) is None
            assert (await bodies(broker, "out"), await bodies(broker)) == ([b"a"], [b"b"])
            (left,) = await broker.peek("in", 5)
            assert (left.body, left.properties, left.delivery_count) == (b"3", {"tried": 1}, 1)
            assert [letter.reason async for letter in broker.dead_letters("in")] == ["bad"]
            # It has ended, and stands for nothing any more.
            assert await own.discharge(id_) == "amqp:transaction:unknown-id"

    run(work)


def test_a_rollback_does_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with transacting(tmp_path) as (broker, own):
            await broker.create_queue("in")
            await broker.sender("in").send(Message(b"1"))
            take = await own.client.link(sends=False, address="in", name="take")
            take.session.grant(take, 1)
            taken = await own.client.until(MessageReceived)
            out = await own.sender("q")
            id_ = await own.declare()
            await own.send(out, id_, b"a")
            await own.settle(taken, id_, Accepted())
            assert await own.discharge(id_, fail=True) is None
            assert await bodies(broker) == []
            # The lock stays with the client.
            assert (await broker.queue("in")).counts.locked == 1

    run(work)


def test_what_cannot_commit_is_rolled_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with transacting(tmp_path) as (broker, own):
            await broker.create_queue("s", QueueOptions(requires_session=True))
            out, sessions = await own.sender("q"), await own.sender("s")
            id_ = await own.declare()
            await own.send(out, id_, b"a")
            await own.send(sessions, id_, b"without a session")
            assert await own.discharge(id_) == "amqp:transaction:rollback"
            assert await bodies(broker) == []
            # A lock that is lost meanwhile.
            await broker.create_queue("in")
            await broker.sender("in").send(Message(b"1"))
            take = await own.client.link(sends=False, address="in", name="take")
            take.session.grant(take, 1)
            taken = await own.client.until(MessageReceived)
            id_ = await own.declare()
            await own.send(out, id_, b"b")
            await own.settle(taken, id_, Accepted())
            await broker.delete_queue("in")
            assert await own.discharge(id_) == "amqp:transaction:rollback"
            assert await bodies(broker) == []

    run(work)


def test_messages_pass_through_a_queue_in_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with transacting(tmp_path) as (broker, own):
            await broker.create_queue("to")
            through = {"com.microsoft:transfer-destination-address": "to"}
            link = await own.sender("q", properties=through)
            id_ = await own.declare()
            await own.send(link, id_, b"a")
            assert await own.discharge(id_) is None
            assert (await bodies(broker, "to"), await bodies(broker)) == ([b"a"], [])

    run(work)


def test_a_link_that_goes_takes_its_transactions_with_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with transacting(tmp_path) as (broker, own):
            out = await own.sender("q")
            id_ = await own.declare()
            await own.send(out, id_, b"a")
            own.link.session.detach(own.link)
            await own.client.until(LinkDetached)
            state = await own.send(out, id_, b"b")
            assert isinstance(state, Rejected)
            assert state.error is not None
            assert state.error.condition == "amqp:transaction:unknown-id"
            await own.open()
            assert await own.discharge(id_) == "amqp:transaction:unknown-id"
            assert await bodies(broker) == []

    run(work)


def test_they_are_bounded(tmp_path: Path) -> None:
    async def work() -> None:
        limits = DoorLimits(transactions=2, transaction_messages=2)
        async with transacting(tmp_path, limits=limits) as (broker, own):
            out = await own.sender("q")
            id_, _ = await own.declare(), await own.declare()
            assert isinstance(await own.ask(Declare()), Rejected)
            for body in (b"a", b"b"):
                assert isinstance(await own.send(out, id_, body), TransactionalState)
            assert isinstance(await own.send(out, id_, b"c"), Rejected)
            assert await own.discharge(id_) is None
            assert await bodies(broker) == [b"a", b"b"]
            await own.declare()

    run(work)


def test_they_end_in_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with transacting(tmp_path, limits=DoorLimits(transaction_seconds=0.0)) as (broker, own):
            out = await own.sender("q")
            id_ = await own.declare()
            assert isinstance(await own.send(out, id_, b"a"), Rejected)
            assert await own.discharge(id_) == "amqp:transaction:timeout"
            assert await bodies(broker) == []

    run(work)


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with transacting(tmp_path) as (_, own):
            for payload in (b"junk", b"\x00\x53\x75" + encode(b"x"), b"\x00\x53\x77" + encode(1)):
                own.link.session.transfer(own.link, payload, b"t")
                assert isinstance((await own.client.until(DeliveriesUpdated)).state, Rejected)
            assert isinstance(await own.ask(Accepted()), Rejected)
            await own.declare()

    run(work)
