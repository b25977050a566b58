"""Queues that the server makes for a link, and links that look at messages and take none."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from patience import wait_until

from door.client import Client, connected, run
from door.served import Served
from lazaretto import Broker, Message
from lazaretto.errors import EntityNotFound
from lazaretto.servicebus.amqp import Link
from lazaretto.servicebus.amqp.events import LinkAttached, LinkDetached, MessageReceived, SessionBegun
from lazaretto.servicebus.amqp.performatives import Source, Target
from lazaretto.servicebus.amqp.values import Symbol


async def attach(
    client: Client, *, sends: bool = False, source: Source | None = None, target: Target | None = None
) -> Link:
    """Attach a link, in a session of its own."""
    session = client.connection.begin()
    await client.until(SessionBegun)
    session.attach("l", sends=sends, source=source or Source("q"), target=target or Target("q"))
    return (await client.until(LinkAttached)).link


async def refusal(client: Client, **ends: Any) -> str:
    """Return the condition with which a link is refused."""
    await attach(client, **ends)
    error = (await client.until(LinkDetached)).error
    assert error is not None
    return error.condition


def is_gone(broker: Broker, name: str) -> bool:
    try:
        broker.queue(name)
    except EntityNotFound:
        return True
    return False


def address_of(link: Link) -> str:
    """Return the address of the queue that was made for a link."""
    end = link.target if link.sends else link.source
    assert isinstance(end, Source | Target)
    assert end.address is not None
    return end.address


class TestTemporaryQueues:
    @pytest.mark.parametrize("sends", [False, True])
    def test_one_lives_as_long_as_its_link(self, served: Served, broker: Broker, *, sends: bool) -> None:
        async def work() -> None:
            async with connected(served) as client:
                link = await attach(
                    client, sends=sends, source=Source(dynamic=True), target=Target(dynamic=True)
                )
                name = address_of(link)
                broker.sender(name).send(Message(b"an answer"))
                link.session.detach(link)
                client.write(client.connection.take())
                await asyncio.to_thread(wait_until, lambda: is_gone(broker, name))

        run(work)

    def test_one_is_gone_with_its_connection(self, served: Served, broker: Broker) -> None:
        async def work() -> None:
            async with connected(served) as client:
                names = {address_of(await attach(client, source=Source(dynamic=True))) for _ in range(2)}
                assert len(names) == 2
            for name in names:
                await asyncio.to_thread(wait_until, partial(is_gone, broker, name))

        run(work)

    def test_a_topic_is_refused(self, served: Served) -> None:
        async def work() -> None:
            async with connected(served) as client:
                asked = Target(dynamic=True, capabilities=[Symbol("temporary-topic")])
                assert await refusal(client, sends=True, target=asked) == "amqp:not-implemented"

        run(work)


class TestBrowsers:
    def test_one_shows_each_message_once_and_locks_none(self, served: Served, broker: Broker) -> None:
        async def work() -> None:
            for body in (b"a", b"b"):
                broker.sender("q").send(Message(body))
            async with connected(served) as client:
                link = await attach(client, source=Source("q", distribution_mode="copy"))
                link.session.grant(link, 2)
                seen = [(await client.until(MessageReceived)) for _ in range(2)]
                broker.sender("q").send(Message(b"c"))
                link.session.grant(link, 2)
                seen.append(await client.until(MessageReceived))
                assert [one.settled for one in seen] == [True] * 3
                assert [one.payload[-1:] for one in seen] == [b"a", b"b", b"c"]
                counts = broker.queue("q").counts
                assert (counts.active, counts.locked) == (3, 0)

        run(work)

    def test_one_of_a_queue_that_is_not_there_is_refused(self, served: Served) -> None:
        async def work() -> None:
            async with connected(served) as client:
                asked = Source("nowhere", distribution_mode="copy")
                assert await refusal(client, source=asked) == "amqp:not-found"

        run(work)


def test_a_receiver_that_would_choose_its_messages_is_refused(served: Served) -> None:
    async def work() -> None:
        async with connected(served) as client:
            asked = Source("q", filter={"apache.org:selector-filter:string": "colour = 'red'"})
            assert await refusal(client, source=asked) == "amqp:not-implemented"

    run(work)
