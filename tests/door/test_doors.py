"""Several doors on one store: what was locked through one is used and settled through another."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from patience import wait_until

from door.client import Client, Manager, connected, run
from door.served import Served
from lazaretto import (
    NEXT_SESSION,
    Broker,
    Message,
    PoisonPolicy,
    QueueOptions,
    Receiver,
    SessionCannotBeLocked,
)
from lazaretto.servicebus.amqp import Link
from lazaretto.servicebus.amqp.events import LinkDetached, MessageReceived
from lazaretto.servicebus.amqp.values import Array, Int

SESSION = "com.microsoft:session-filter"


@pytest.fixture
def doors(serve: Callable[..., Served], broker: Broker) -> tuple[Served, Served]:
    """Two servers of one store, which has a queue of sessions."""
    broker.create_queue("s", QueueOptions(requires_session=True, lock_duration=30))
    broker.sender("s").send([Message(body, session_id="a") for body in (b"x", b"y", b"z")])
    return serve(), serve()


def test_the_clients_of_a_server_are_told_of_and_the_server_is_no_worker(
    serve: Callable[..., Served], broker: Broker
) -> None:
    door = serve()

    def takers() -> list[tuple[str, str, str]]:
        return [(one.queue, one.kind, one.name) for worker in broker.workers() for one in worker.takers]

    async def take() -> None:
        async with connected(door) as client:
            link = await client.link(sends=False, address="q")
            link.session.grant(link, 1)
            client.write(client.connection.take())
            async with httpx.AsyncClient() as http:
                await http.delete(f"http://127.0.0.1:{door.port}/q/messages/head?timeout=0")
            await asyncio.to_thread(lambda: wait_until(lambda: len(takers()) == 2))

    assert broker.workers() == []
    run(take)
    assert takers() == [
        ("q", "AMQP client", "client at 127.0.0.1"),
        ("q", "HTTP client", "somebody at 127.0.0.1"),
    ]


@asynccontextmanager
async def both(doors: tuple[Served, Served]) -> AsyncIterator[tuple[Client, Link, Manager]]:
    """Give a link that holds the session through one door, and what asks the other."""
    async with connected(doors[0]) as here, connected(doors[1]) as there:
        link = await here.link(sends=False, address="s", name="taker", filters={SESSION: "a"})
        manager = Manager(there)
        await manager.open("s/$management")
        yield here, link, manager


async def received(client: Client, link: Link, count: int) -> list[uuid.UUID]:
    """Receive messages, and return their lock tokens."""
    link.session.grant(link, count)
    found = [await client.until(MessageReceived) for _ in range(count)]
    return [uuid.UUID(bytes_le=one.delivery_tag) for one in found]


def given_back(broker: Broker, session_id: str) -> Receiver:
    """Return a session's receiver, once the server whose client has gone has given the session back."""
    end = time.monotonic() + 120
    while True:
        try:
            return broker.receiver("s", session=session_id)
        except SessionCannotBeLocked:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def test_a_session_is_used_through_another_door(doors: tuple[Served, Served], broker: Broker) -> None:
    async def work() -> None:
        async with both(doors) as (here, link, manager):
            x, y, z = await received(here, link, 3)
            whose = {"session_id": "a", "link": "taker"}
            status, body = await manager.ask("set-session-state", **whose, session_state=b"half")
            assert status == 200
            assert await manager.ask("get-session-state", **whose) == (200, {"session-state": b"half"})
            status, body = await manager.ask("renew-session-lock", **whose)
            assert status == 200
            assert body["expiration"] > 0
            for token, what in ((x, "completed"), (y, "defered"), (z, "suspended")):
                asked = {"lock_tokens": Array(0x98, [token]), "disposition_status": what}
                assert (await manager.ask("update-disposition", **asked, session_id="a"))[0] == 200
            wanted = {"sequence_numbers": Array(0x81, [2]), "receiver_settle_mode": Int(1)}
            status, body = await manager.ask("receive-by-sequence-number", **wanted, **whose)
            assert status == 200
            again = Array(0x98, [body["messages"][0]["lock-token"]])
            done = {"lock_tokens": again, "disposition_status": "completed"}
            assert (await manager.ask("update-disposition", **done))[0] == 200
            # Settled once already, through the other door.
            assert (await manager.ask("update-disposition", **done))[0] == 410

    run(work)
    counts = broker.queue("s").counts
    assert (counts.total, counts.dead_letter) == (1, 1)
    with given_back(broker, "a") as receiver:
        assert receiver.get_session_state() == b"half"


def test_only_for_who_names_the_link_that_took_it(doors: tuple[Served, Served], broker: Broker) -> None:
    async def work() -> None:
        async with both(doors) as (here, link, manager):
            for whose in ({"link": "other"}, {}, {"link": ""}, {"link": "x" * 1000}):
                for operation in ("renew-session-lock", "get-session-state"):
                    status, _ = await manager.ask(operation, session_id="a", **whose)
                    assert status in (400, 410)
            assert (await manager.ask("renew-session-lock", session_id="b", link="taker"))[0] == 410
            assert (await manager.ask("renew-session-lock", session_id=Int(1), link="taker"))[0] == 410
            # Given back, the session is nobody's.
            link.session.detach(link)
            here.write(here.connection.take())
            await here.until(LinkDetached)
            while (await manager.ask("renew-session-lock", session_id="a", link="taker"))[0] == 200:
                await asyncio.sleep(0.01)

    run(work)


def test_a_link_holds_what_another_door_renews(doors: tuple[Served, Served], broker: Broker) -> None:
    """The lock runs out as the store says, not as the door knew when it took the session."""
    broker.update_queue("s", lock_duration=6)

    async def work() -> None:
        async with both(doors) as (here, link, manager):
            (token,) = await received(here, link, 1)
            begun = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < begun + 9:
                assert (await manager.ask("renew-session-lock", session_id="a", link="taker"))[0] == 200
                await asyncio.sleep(0.3)
            (second,) = await received(here, link, 1)
            asked = {"lock_tokens": Array(0x98, [second]), "disposition_status": "completed"}
            assert (await manager.ask("update-disposition", **asked))[0] == 200
            # Renewed no longer, it is lost at both doors.
            detached = await here.until(LinkDetached)
            assert detached.error is not None
            assert detached.error.condition == "com.microsoft:session-lock-lost"
            assert (await manager.ask("renew-session-lock", session_id="a", link="taker"))[0] == 410
            assert token != second

    run(work)


def test_a_killed_door_leaves_its_locks_to_others(
    serve: Callable[..., Served], broker: Broker, doors: tuple[Served, Served]
) -> None:
    """A session's lock outlives the door that took it: by its link's name another one goes on with it."""

    async def work() -> None:
        async with both(doors) as (here, link, manager):
            x, y, _ = await received(here, link, 3)
            doors[0].process.kill()
            whose = {"session_id": "a", "link": "taker"}
            assert (await manager.ask("renew-session-lock", **whose))[0] == 200
            asked = {"lock_tokens": Array(0x98, [x, y]), "disposition_status": "completed"}
            assert (await manager.ask("update-disposition", **asked))[0] == 200

    run(work)
    assert [message.body for message in broker.peek("s", 5)] == [b"z"]


@pytest.mark.parametrize("session", [None, "a"])
def test_the_death_of_a_door_is_not_blamed_on_what_its_clients_hold(
    serve: Callable[..., Served], broker: Broker, session: str | None
) -> None:
    policy = PoisonPolicy(receive_retry_count=9, max_worker_deaths=1)
    broker.create_queue("h", QueueOptions(requires_session=bool(session), lock_duration=5, policy=policy))
    broker.sender("h").send([Message(b"x", session_id=session)])
    door = serve()

    async def work() -> None:
        async with connected(door) as client:
            filters = {SESSION: session} if session else {}
            link = await client.link(sends=False, address="h", filters=filters)
            await received(client, link, 1)
            door.kill()

    run(work)
    assert [worker.holds[0].sequence_numbers for worker in broker.workers()] == [(1,)]
    (message,) = broker.receiver("h", session=NEXT_SESSION if session else None).receive(max_wait=120)
    assert message.delivery_count == 1
    attempts = broker.attempts("h", message.sequence_number)
    assert [attempt.outcome.value for attempt in attempts] == ["lock_expired"]


def test_the_lock_that_one_client_loses_takes_no_other_that_its_dead_door_took(
    serve: Callable[..., Served], broker: Broker
) -> None:
    broker.create_queue("h", QueueOptions(lock_duration=5))
    broker.sender("h").send([Message(b"lost"), Message(b"renewed")])
    first, second = serve(), serve()

    async def work() -> None:
        async with connected(first) as here, connected(second) as there:
            link = await here.link(sends=False, address="h")
            _, token = await received(here, link, 2)
            first.kill()
            manager = Manager(there)
            await manager.open("h/$management")
            asked: dict[str, Any] = {"lock_tokens": Array(0x98, [token])}
            other = broker.receiver("h")
            while not (found := await asyncio.to_thread(other.receive, 2, max_wait=0.2)):
                assert (await manager.ask("renew-lock", **asked))[0] == 200
            assert [message.body for message in found] == [b"lost"]
            asked["disposition_status"] = "completed"
            assert (await manager.ask("update-disposition", **asked))[0] == 200

    run(work)
