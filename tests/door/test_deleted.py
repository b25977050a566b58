"""Links of an entity that is deleted: they are detached at once, whoever deletes it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from forked import fork_program

from door.client import Client, Manager, connected, opened, run, token
from lazaretto import QueueOptions
from lazaretto.aio import AsyncBroker
from lazaretto.servicebus import AccessPolicy, Right
from lazaretto.servicebus.amqp import Link
from lazaretto.servicebus.amqp.events import CreditChanged, LinkAttached, LinkDetached, SessionBegun
from lazaretto.servicebus.amqp.performatives import Source, Target

NOT_FOUND = "amqp:not-found"
#: The links of an entity, by address and direction, and how much credit each has.
LINKS = [
    ("q", True, 0), ("Q", False, 0), ("q", False, 5), ("q/$DeadLetterQueue", False, 1),
    ("q/$management", True, 0), ("q/$management", False, 1),
    ("amqps://localhost/q", False, 1),
]  # fmt: skip


async def attach(client: Client, address: str, *, sends: bool, credit: int, name: str) -> Link:
    link = await client.link(sends=sends, address=address, name=name)
    if sends:
        while not link.credit:
            await client.until(CreditChanged)
    elif credit:
        link.session.grant(link, credit)
    return link


async def gone(client: Client, count: int) -> set[str]:
    """Wait until links are detached because of what is not there any more; return their names."""
    names = set()
    for _ in range(count):
        told = await client.until(LinkDetached)
        assert told.error is not None
        assert told.error.condition == NOT_FOUND
        names.add(told.link.name)
    return names


async def by_the_broker(broker: AsyncBroker, url: str) -> None:
    await broker.delete_queue("q")


async def by_another_process(broker: AsyncBroker, url: str) -> None:
    ended = fork_program(["queue", "delete", "q", "--yes", "--store", url], (None, None, None), os.environ)
    # It does not wait for this loop.
    assert ended.wait(120) == 0


@pytest.mark.parametrize("delete", [by_the_broker, by_another_process])
def test_all_its_links_are_detached(url: str, delete: Callable[[AsyncBroker, str], Awaitable[None]]) -> None:
    async def work() -> None:
        async with opened(url) as (broker, door), connected(door) as client:
            await broker.create_queue("other")
            other = await attach(client, "other", sends=False, credit=1, name="other")
            names = set()
            for at, (address, sends, credit) in enumerate(LINKS):
                names.add((await attach(client, address, sends=sends, credit=credit, name=f"l{at}")).name)
            await delete(broker, url)
            assert await gone(client, len(LINKS)) == names
            assert other.attached

    run(work)


@pytest.mark.stores("sqlite")
def test_links_of_all_that_goes_with_a_topic_are_detached(url: str) -> None:
    async def work() -> None:
        async with opened(url) as (broker, door), connected(door) as client:
            await broker.create_topic("t")
            await broker.create_subscription("t", "s")
            await attach(client, "t", sends=True, credit=0, name="to")
            await attach(client, "t/Subscriptions/s", sends=False, credit=1, name="from")
            await broker.delete_topic("t")
            assert await gone(client, 2) == {"to", "from"}

    run(work)


@pytest.mark.stores("sqlite")
def test_who_waits_for_a_session_of_it_is_refused(url: str) -> None:
    async def work() -> None:
        async with opened(url) as (broker, door), connected(door) as client:
            await broker.create_queue("s", QueueOptions(requires_session=True))
            session = client.connection.begin()
            await client.until(SessionBegun)
            source = Source("s", filter={"com.microsoft:session-filter": None})
            session.attach("next", sends=False, source=source, target=Target("me"))
            # By then the door waits for a session.
            await attach(client, "q", sends=True, credit=0, name="to")
            await broker.delete_queue("s")
            assert (await client.until(LinkAttached)).attach.source is None
            assert await gone(client, 1) == {"next"}

    run(work)


@pytest.mark.stores("sqlite")
def test_links_of_its_successor_stay(url: str) -> None:
    async def work() -> None:
        async with opened(url) as (broker, door), connected(door) as client:
            await attach(client, "q", sends=True, credit=0, name="first")
            await broker.delete_queue("q")
            await gone(client, 1)
            await broker.create_queue("q")
            second = await attach(client, "q", sends=True, credit=0, name="second")
            await broker.create_queue("more")
            await broker.delete_queue("more")
            await attach(client, "q", sends=True, credit=0, name="third")
            assert second.attached

    run(work)


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize(
    ("audience", "status"),
    [
        ("sb://localhost/q", 202), ("sb://localhost/q/$management", 202), ("sb://localhost/", 202),
        ("sb://localhost/q/$DeadLetterQueue", 202), ("amqp://localhost:5672/T/Subscriptions/S", 202),
        ("sb://localhost/none", 404), ("sb://localhost/none/$management", 404),
        ("sb://localhost/t/Subscriptions/none", 404), ("sb://localhost/q/none", 404),
    ],
)  # fmt: skip
def test_a_token_for_what_is_not_there_is_answered_so(url: str, audience: str, status: int) -> None:
    async def work() -> None:
        async with opened(url) as (broker, door), connected(door) as client:
            await broker.create_topic("t")
            await broker.create_subscription("t", "s")
            manager = Manager(client)
            await manager.open("$cbs")
            assert (await manager.put_token(audience, "any"))[0] == status

    run(work)


@pytest.mark.stores("sqlite")
def test_only_who_has_a_key_is_told_what_is_not_there(url: str) -> None:
    policies = [AccessPolicy("all", "key"), AccessPolicy("one", "other", frozenset(Right), "q")]

    async def work() -> None:
        async with opened(url, policies=policies) as (_, door), connected(door) as client:
            manager = Manager(client)
            await manager.open("$cbs")
            for name, key, status in (("all", "key", 404), ("all", "wrong", 401), ("one", "other", 401)):
                audience = "sb://localhost/none"
                told: Any = await manager.put_token(audience, token(name, key, audience))
                assert told[0] == status

    run(work)
