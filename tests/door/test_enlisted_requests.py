"""Requests to a management node within a transaction: they take effect with it, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from door.client import Manager, connected, opened, run
from door.test_transactions import Transactor, bodies
from lazaretto import Message, QueueOptions
from lazaretto.aio import AsyncBroker
from lazaretto.servicebus import DoorLimits
from lazaretto.servicebus.amqp import Section, encode_section
from lazaretto.servicebus.amqp.composites import encode_composite
from lazaretto.servicebus.amqp.events import DeliveriesUpdated
from lazaretto.servicebus.amqp.performatives import Accepted, TransactionalState
from lazaretto.servicebus.amqp.values import Array, Int, Symbol, Timestamp

FAR = 1 << 42


class Asker:
    """Asks management nodes, in a transaction or without one."""

    def __init__(self, own: Transactor, manager: Manager, broker: AsyncBroker) -> None:
        self.own = own
        self.broker = broker
        self._manager = manager

    async def ask(self, id_: bytes | None, operation: str, **body: Any) -> tuple[int, Any]:
        asked = {"operation": f"com.microsoft:{operation}"}
        given = {name.replace("_", "-"): value for name, value in body.items()}
        state = {} if id_ is None else {"state": encode_composite(TransactionalState(id_))}
        answer = await self._manager.exchange(asked, given, **state)
        confirmed = (await self.own.client.until(DeliveriesUpdated)).state
        assert confirmed == (Accepted() if id_ is None else TransactionalState(id_, Accepted()))
        told = answer.mapping(Section.APPLICATION_PROPERTIES)
        return int(told["statusCode"]), told.get("errorCondition") or answer.body()[0]

    async def schedule(self, id_: bytes | None, body: bytes) -> Any:
        at = encode_section(
            Section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(FAR)}
        )
        payload = at + encode_section(Section.DATA, body)
        status, answer = await self.ask(id_, "schedule-message", messages=[{"message": payload}])
        assert status == 200
        return answer["sequence-numbers"]


@asynccontextmanager
async def asking(url: str, path: str = "q", **options: Any) -> AsyncIterator[Asker]:
    async with opened(url, **options) as (broker, door), connected(door) as client:
        own, manager = Transactor(client), Manager(client)
        await broker.create_queue("s", QueueOptions(requires_session=True))
        await own.open()
        await manager.open(f"{path}/$management")
        yield Asker(own, manager, broker)


#: Prepares something, does it in a transaction, and tells what is there then.
Way = Callable[[Asker, bytes], Awaitable[Callable[[], Awaitable[Any]]]]


async def _schedule(asker: Asker, id_: bytes) -> Callable[[], Awaitable[Any]]:
    await asker.schedule(id_, b"x")
    return lambda: bodies(asker.broker)


async def _cancel(asker: Asker, id_: bytes) -> Callable[[], Awaitable[Any]]:
    numbers = await asker.schedule(None, b"x")
    assert (await asker.ask(id_, "cancel-scheduled-message", sequence_numbers=numbers))[0] == 200
    return lambda: bodies(asker.broker)


async def _settle(asker: Asker, id_: bytes, status: str, *, deferred: bool) -> Callable[[], Awaitable[Any]]:
    broker = asker.broker
    number = await broker.sender("q").send(Message(b"x"))
    # Somebody else has received it.
    receiver = broker.receiver("q")
    (held,) = await receiver.receive(1)
    token = held.lock_token
    if deferred:
        await receiver.defer(held)
        wanted = {"sequence_numbers": Array(0x81, [number]), "receiver_settle_mode": Int(1)}
        _, answer = await asker.ask(id_, "receive-by-sequence-number", **wanted)
        token = answer["messages"][0]["lock-token"]
    tokens = Array(0x98, [token])
    assert (await asker.ask(id_, "renew-lock", lock_tokens=tokens))[0] == 200
    done = await asker.ask(id_, "update-disposition", lock_tokens=tokens, disposition_status=status)
    assert done[0] == 200

    async def state() -> Any:
        counts = (await broker.queue("q")).counts
        return counts.locked, counts.total, counts.dead_letter

    return state


async def _set_state(asker: Asker, id_: bytes) -> Callable[[], Awaitable[Any]]:
    await asker.own.client.link(
        sends=False, address="s", name="held", filters={"com.microsoft:session-filter": "a"}
    )
    state = {"session_id": "a", "session_state": b"state"}
    assert (await asker.ask(id_, "set-session-state", **state))[0] == 200

    async def told() -> Any:
        return (await asker.ask(None, "get-session-state", session_id="a"))[1]["session-state"]

    return told


WAYS: dict[str, tuple[Way, Any, Any]] = {
    "schedule": (_schedule, [], [b"x"]),
    "cancel": (_cancel, [b"x"], []),
    "complete": (lambda a, i: _settle(a, i, "completed", deferred=False), (1, 1, 0), (0, 0, 0)),
    "complete deferred": (lambda a, i: _settle(a, i, "completed", deferred=True), (1, 1, 0), (0, 0, 0)),
    "dead-letter": (lambda a, i: _settle(a, i, "suspended", deferred=False), (1, 1, 0), (0, 1, 1)),
    "dead-letter deferred": (lambda a, i: _settle(a, i, "suspended", deferred=True), (1, 1, 0), (0, 1, 1)),
    "abandon": (lambda a, i: _settle(a, i, "abandoned", deferred=False), (1, 1, 0), (0, 1, 0)),
    "defer": (lambda a, i: _settle(a, i, "defered", deferred=False), (1, 1, 0), (0, 1, 0)),
    "session state": (_set_state, None, b"state"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_request_takes_effect_with_its_transaction(url: str, way: str) -> None:
    do, before, after = WAYS[way]

    async def work() -> None:
        async with asking(url, "s" if way == "session state" else "q") as asker:
            id_ = await asker.own.declare()
            state = await do(asker, id_)
            assert await state() == before
            assert await asker.own.discharge(id_) is None
            assert await state() == after

    run(work)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.stores("sqlite")
def test_a_request_is_undone_with_its_transaction(url: str, way: str) -> None:
    do, before, _ = WAYS[way]

    async def work() -> None:
        async with asking(url, "s" if way == "session state" else "q") as asker:
            id_ = await asker.own.declare()
            state = await do(asker, id_)
            assert await asker.own.discharge(id_, fail=True) is None
            assert await state() == before

    run(work)


def test_what_was_scheduled_in_a_transaction_can_be_cancelled(url: str) -> None:
    async def work() -> None:
        async with asking(url) as asker:
            id_ = await asker.own.declare()
            numbers = await asker.schedule(id_, b"x")
            cancel = {"sequence_numbers": numbers}
            assert (await asker.ask(None, "cancel-scheduled-message", **cancel))[0] == 404
            assert await asker.own.discharge(id_) is None
            assert await bodies(asker.broker) == [b"x"]
            assert (await asker.ask(None, "cancel-scheduled-message", **cancel))[0] == 200
            assert await bodies(asker.broker) == []
            assert (await asker.ask(None, "cancel-scheduled-message", **cancel))[0] == 404

    run(work)


@pytest.mark.stores("sqlite")
def test_what_cannot_commit_undoes_its_requests(url: str) -> None:
    async def work() -> None:
        async with asking(url) as asker:
            id_ = await asker.own.declare()
            await asker.schedule(id_, b"x")
            numbers = Array(0x81, [99])
            assert (await asker.ask(id_, "cancel-scheduled-message", sequence_numbers=numbers))[0] == 200
            assert await asker.own.discharge(id_) == "amqp:transaction:rollback"
            assert await bodies(asker.broker) == []

    run(work)


@pytest.mark.stores("sqlite")
def test_what_cannot_take_part_is_refused(url: str) -> None:
    async def work() -> None:
        async with asking(url, limits=DoorLimits(transaction_messages=2)) as asker:
            await asker.broker.sender("q").send(Message(b"x"))
            id_ = await asker.own.declare()
            for operation, body in (
                ("batch-delete-messages", {"message_count": Int(5), "enqueued_time_utc": Timestamp(FAR)}),
                ("add-rule", {"rule_name": "r", "rule_description": {"sql-filter": {"expression": "1=1"}}}),
                ("remove-rule", {"rule_name": "$Default"}),
            ):
                assert await asker.ask(id_, operation, **body) == (400, "amqp:not-allowed")
            peek = {"from_sequence_number": 1, "message_count": Int(5)}
            assert (await asker.ask(id_, "peek-message", **peek))[0] == 200
            # As many messages as a transaction may send, and no more; settlements do not count.
            await asker.schedule(id_, b"1")
            await asker.schedule(id_, b"2")
            data = encode_section(Section.DATA, b"3")
            told = await asker.ask(id_, "schedule-message", messages=[{"message": data}])
            assert told == (403, "amqp:resource-limit-exceeded")
            assert await asker.own.discharge(id_) is None
            for operation in ("peek-message", "schedule-message"):
                told = await asker.ask(id_, operation, messages=[{"message": data}], **peek)
                assert told == (400, "amqp:transaction:unknown-id")

    run(work)
