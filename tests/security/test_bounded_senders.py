"""What clients of AMQP send and is not stored is bounded for the process, however many they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from door.client import Client, connected, opened, run
from door.test_transactions import Transactor

from lazaretto.servicebus import DoorLimits
from lazaretto.servicebus.amqp import Link, Section, encode_section
from lazaretto.servicebus.amqp.conditions import RESOURCE_LIMIT_EXCEEDED
from lazaretto.servicebus.amqp.events import Closed, CreditChanged, DeliveriesUpdated
from lazaretto.serving.guard import Holdings

#: Bytes that each client leaves with the server, and those that all of them may.
SIZE, LIMIT = 50_000, 300_000


async def ready(client: Client) -> Link:
    """Attach a link on which there is credit."""
    link = await client.link(sends=True)
    while not link.credit:
        await client.until(CreditChanged)
    return link


async def half(client: Client) -> None:
    """Send half of a message, in whole frames."""
    link = await ready(client)
    client.connection.remote_max_frame_size = 5_000
    link.session.transfer(link, encode_section(Section.DATA, b"x" * 2 * SIZE), b"tag")
    sent = client.connection.take()
    client.write(sent[: len(sent) // 2])
    await client.writer.drain()


async def in_transaction(client: Client) -> None:
    """Send a message within a transaction that stays open."""
    own = Transactor(client)
    await own.open()
    await own.send(await own.sender("q"), await own.declare(), b"x" * SIZE)


async def ended(client: Client) -> str | None:
    """Return why the server hangs up."""
    while (data := await client.reader.read(65_536)) != b"":
        for event in client.connection.receive(data):
            if isinstance(event, Closed):
                assert event.error is not None
                return str(event.error.condition)
    return None


@pytest.mark.parametrize("leave", [half, in_transaction])
def test_many_connections_that_each_hold_something_are_ended(
    tmp_path: Path, leave: Callable[[Client], Awaitable[None]]
) -> None:
    async def work() -> None:
        limits = DoorLimits(unstored=LIMIT)
        async with (
            opened(tmp_path, limits=limits) as (broker, door),
            contextlib.AsyncExitStack() as stack,
            asyncio.timeout(120),
        ):
            clients = [await stack.enter_async_context(connected(door)) for _ in range(10)]
            for client in clients:
                await leave(client)
            ending = [asyncio.ensure_future(ended(client)) for client in clients]
            while sum(one.done() for one in ending) < 4:
                await asyncio.wait([one for one in ending if not one.done()], return_when="FIRST_COMPLETED")
            assert {one.result() for one in ending if one.done()} == {RESOURCE_LIMIT_EXCEEDED}
            # Those that are left go on, and so do others.
            async with connected(door) as other:
                link = await ready(other)
                link.session.transfer(link, encode_section(Section.DATA, b"whole"), b"tag")
                await other.until(DeliveriesUpdated)
            assert [one.body for one in await broker.peek("q")] == [b"whole"]
            assert door.guard._unstored.total <= LIMIT
            for one in ending:
                one.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    run(work)


def test_whoever_holds_most_goes_and_the_oldest_of_them() -> None:
    holdings = Holdings[str](100)
    for name, size in (("ana", 40), ("ben", 40), ("eve", 20), ("ana", 30), ("ana", 40)):
        holdings.hold(name, size)
        assert holdings.worst is None
    holdings.hold("eve", 21)
    assert holdings.worst == "ana"
    holdings.hold("ana", 0)
    assert not holdings.worst
    assert holdings.total == 61


def test_a_sender_waits_while_too_much_is_on_its_way_into_the_store(tmp_path: Path) -> None:
    async def work() -> None:
        limits = DoorLimits(unstored=1_000)
        async with opened(tmp_path, limits=limits) as (broker, door), connected(door) as client:
            link = await ready(client)
            for number in range(200):
                link.session.transfer(link, encode_section(Section.DATA, b"x" * 500), b"%d" % number)
            told = 0
            while told < 200:
                update = await client.until(DeliveriesUpdated)
                told += len(update.deliveries)
            assert door.guard.storing == 0
            assert len(await broker.peek("q", 250)) == 200

    run(work)
