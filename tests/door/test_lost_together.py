"""Several connections of one process that are lost at once: none of them says which message is to blame."""

from __future__ import annotations

import asyncio

from patience import wait_until

from door.client import Client, connected, run
from door.served import Served
from lazaretto import Broker, Event, Message, PoisonPolicy, QueueOptions
from lazaretto.servicebus.amqp.events import MessageReceived


async def receive(client: Client, path: str = "q") -> MessageReceived:
    """Receive one message on a link of its own."""
    link = await client.link(sends=False, address=path, name="takes")
    link.session.grant(link, 1)
    return await client.until(MessageReceived)


def lose(*clients: Client) -> None:
    """End connections as a process that is killed does."""
    for client in clients:
        client.writer.transport.abort()


def events(broker: Broker, kind: str) -> list[Event]:
    return broker.events(kind=kind)


async def until_events(broker: Broker, kind: str, count: int) -> None:
    await asyncio.to_thread(wait_until, lambda: len(events(broker, kind)) >= count)


def test_a_suspect_is_not_charged_for_what_another_connection_held(served: Served, broker: Broker) -> None:
    options = QueueOptions(lock_duration=1, blame_clients=True, policy=PoisonPolicy.service_bus(5))
    broker.create_queue("blamed", options)
    broker.create_queue("others", options)

    async def work() -> None:
        broker.sender("blamed").send(Message(b"suspect"))
        async with connected(served) as client:
            await receive(client, "blamed")
            lose(client)
        await until_events(broker, "suspects_held", 1)
        broker.sender("others").send(Message(b"killer"))
        async with connected(served) as tries, connected(served) as works:
            await receive(tries, "blamed")
            await receive(works, "others")
            lose(tries, works)
        await until_events(broker, "suspects_held", 3)
        assert events(broker, "killer_found") == []
        # Lost for the third time, it is not by chance.
        async with connected(served) as tries, connected(served) as works:
            await receive(tries, "blamed")
            await receive(works, "others")
            lose(tries, works)
        await until_events(broker, "killer_found", 1)
        assert {event.queue for event in events(broker, "killer_found")} == {"blamed"}

    run(work)
