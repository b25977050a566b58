"""What Azure's client for Python does at a door, in either way: a program, for any version of the client.

Arguments: the connection string, the file with the server's certificate, and "sync" or "async".
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus._version import VERSION
from azure.servicebus.exceptions import SessionCannotBeLockedError
from azure.servicebus.management import SqlRuleAction, SqlRuleFilter

WAIT = 120
#: What returns at once also in the asynchronous client.
_OPENERS = ("get_queue_sender", "get_queue_receiver", "get_topic_sender", "get_subscription_receiver")


class Awaited:
    """A synchronous object of the client, used as one of its asynchronous ones."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return _as_awaited(found)
        if name.startswith("list_") or name in _OPENERS:
            return lambda *given, **named: _as_awaited(found(*given, **named))

        async def call(*given: Any, **named: Any) -> Any:
            return _as_awaited(found(*given, **named))

        return call

    async def __aenter__(self) -> Awaited:
        self._inner.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._inner.__exit__(*_)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for one in self._inner:
            yield one


def _as_awaited(value: Any) -> Any:
    kinds = ("ServiceBusSender", "ServiceBusReceiver", "ServiceBusSession", "ItemPaged")
    return Awaited(value) if type(value).__name__ in kinds else value


def opened(name: str, way: str, *given: Any, **named: Any) -> Any:
    """Open a client by its class's name."""
    home = "azure.servicebus.management" if "Administration" in name else "azure.servicebus"
    if way == "async":
        home = home.replace("azure.servicebus", "azure.servicebus.aio")
    made = getattr(importlib.import_module(home), name).from_connection_string(*given, **named)
    return made if way == "async" else Awaited(made)


def bodies(messages: list[Any]) -> list[str]:
    """Return the bodies of messages, as text."""
    return [str(message) for message in messages]


async def some(receiver: Any, count: int) -> list[Any]:
    """Receive messages, all of which must be there."""
    found: list[Any] = []
    while len(found) < count:
        more = await receiver.receive_messages(count - len(found), WAIT)
        assert more, "nothing came"
        found += more
    return found


async def administer(client: Any) -> Any:
    """Make what the rest of the story uses."""
    await client.create_queue("orders", lock_duration=timedelta(seconds=30), max_delivery_count=3)
    await client.create_queue("sessions", requires_session=True)
    await client.create_topic("news")
    await client.create_subscription("news", "large")
    await client.delete_rule("news", "large", "$Default")
    rule = {"filter": SqlRuleFilter("size > 10"), "action": SqlRuleAction("SET big = true")}
    await client.create_rule("news", "large", "size", **rule)
    queue = await client.get_queue("orders")
    queue.lock_duration = timedelta(seconds=40)
    await client.update_queue(queue)
    return {
        "queues": [one.name async for one in client.list_queues()],
        "lock": (await client.get_queue("orders")).lock_duration.total_seconds(),
        "rules": [one.name async for one in client.list_rules("news", "large")],
    }


async def settle(client: Any) -> Any:
    """Send in every way, and settle in every way."""
    async with client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("a", message_id="m-a", subject="s"))
        batch = await sender.create_message_batch()
        for body in "bc":
            batch.add_message(ServiceBusMessage(body))
        await sender.send_messages(batch)
        await sender.send_messages([ServiceBusMessage("d"), ServiceBusMessage("e")])
        later = datetime.now(UTC) + timedelta(hours=1)
        numbers = await sender.schedule_messages([ServiceBusMessage("f"), ServiceBusMessage("g")], later)
        await sender.cancel_scheduled_messages(numbers[:1])
    told: dict[str, Any] = {}
    async with client.get_queue_receiver("orders") as receiver:
        told["peeked"] = bodies(await receiver.peek_messages(10))
        a, b, c, d, e = await some(receiver, 5)
        told["received"] = [a.message_id, a.subject, *bodies([a, b, c, d, e])]
        await receiver.complete_message(a)
        await receiver.abandon_message(b)
        await receiver.defer_message(c)
        await receiver.dead_letter_message(d, reason="why", error_description="because")
        told["renewed"] = await receiver.renew_message_lock(e) > datetime.now(UTC)
        await receiver.complete_message(e)
        (again,) = await receiver.receive_messages(1, WAIT)
        told["again"] = [str(again), again.delivery_count]
        await receiver.complete_message(again)
        (deferred,) = await receiver.receive_deferred_messages([c.sequence_number])
        await receiver.complete_message(deferred)
        told["deferred"] = str(deferred)
    dead = {
        "sub_queue": ServiceBusSubQueue.DEAD_LETTER,
        "receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE,
    }
    async with client.get_queue_receiver("orders", **dead) as receiver:
        (letter,) = await receiver.receive_messages(1, WAIT)
        told["dead"] = [str(letter), letter.dead_letter_reason, letter.dead_letter_error_description]
    return told


async def hold_sessions(client: Any) -> Any:
    """Take sessions by their id and the next one, with their state."""
    async with client.get_queue_sender("sessions") as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}", session_id="ab"[n % 2]) for n in range(4)])
    told: dict[str, Any] = {}
    async with client.get_queue_receiver("sessions", session_id=NEXT_AVAILABLE_SESSION) as receiver:
        session = receiver.session
        await session.set_state(b"half")
        told["state"] = (await session.get_state()).decode()
        told["renewed"] = await session.renew_lock() > datetime.now(UTC)
        found = await some(receiver, 2)
        told["next"] = [session.session_id, *bodies(found)]
        for message in found:
            await receiver.complete_message(message)
        try:
            async with client.get_queue_receiver("sessions", session_id="a"):
                pass
        except SessionCannotBeLockedError as error:
            told["refused"] = type(error).__name__
    async with client.get_queue_receiver("sessions", session_id="b") as receiver:
        told["named"] = bodies(await some(receiver, 2))
    return told


async def publish(client: Any) -> Any:
    """Publish to a topic with a rule."""
    async with client.get_topic_sender("news") as sender:
        sent = [ServiceBusMessage(f"{n}", application_properties={"size": n}) for n in (5, 50)]
        await sender.send_messages(sent)
    async with client.get_subscription_receiver("news", "large") as receiver:
        (found,) = await receiver.receive_messages(5, WAIT)
        await receiver.complete_message(found)
        return {"body": str(found), "big": found.application_properties[b"big"]}


async def main(text: str, certificate: str, way: str) -> None:
    """Tell the story, and print what came of it."""
    told: dict[str, Any] = {"version": VERSION}
    trusting = {"connection_verify": certificate, "retry_total": 0}
    async with opened("ServiceBusAdministrationClient", way, text, **trusting) as client:
        told["administer"] = await administer(client)
    async with opened("ServiceBusClient", way, text, retry_total=0) as client:
        assert inspect.iscoroutinefunction(client.__aenter__)
        for part in (settle, hold_sessions, publish):
            told[part.__name__] = await part(client)
    async with opened("ServiceBusAdministrationClient", way, text, **trusting) as client:
        counts = await client.get_queue_runtime_properties("orders")
        told["left"] = [counts.total_message_count, counts.scheduled_message_count]
        await client.delete_topic("news")
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
