"""Closing a broker beside all who use it: each of them learns that it was closed, and of nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import lazaretto
import lazaretto.aio
from lazaretto import NEXT_SESSION, Broker, BrokerClosed, Message
from lazaretto.broker.broker import store_of
from lazaretto.store.sql.transaction import Transaction

from .actions import create

PATIENCE = 120


def ends_of(jobs: list[Callable[[], object]], broker: Broker, meanwhile: Callable[[], None]) -> list[object]:
    """Run jobs in threads until each has raised an error, close the broker, and return the errors' types."""
    ends: list[object] = []

    def run(job: Callable[[], object]) -> None:
        try:
            while True:
                job()
        except BaseException as error:
            ends.append(type(error))

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    meanwhile()
    broker.close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return ends


def test_a_query_that_is_running(broker: Broker) -> None:
    """It has an answer, or learns that the broker was closed; never that the server is away."""
    running, closed = threading.Event(), threading.Event()
    ends: list[object] = []

    def query(tx: Transaction) -> int:
        running.set()
        closed.wait(PATIENCE)
        return tx.history.last_event()

    def run() -> None:
        try:
            ends.append(store_of(broker).read(query))
        except Exception as error:
            ends.append(type(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert running.wait(PATIENCE)
    broker.close()
    closed.set()
    thread.join(PATIENCE)
    assert ends in ([0], [BrokerClosed])
    assert not broker._store._readers


@pytest.mark.parametrize("n", range(8))
def test_all_who_wait_read_and_write(broker: Broker, n: int) -> None:
    create(broker)
    create(broker, "s", requires_session=True)

    def receive_in_a_transaction() -> None:
        with broker.transaction() as tx:
            tx.receive("q", max_wait=None)

    jobs: list[Callable[[], object]] = [
        lambda: broker.events(broker.last_event(), max_wait=None),
        lambda: broker.events(0, kind="dropped", max_wait=0.001),
        lambda: broker.receiver("q").receive(max_wait=None),
        lambda: broker.receiver("s", session=NEXT_SESSION).receive(max_wait=None),
        receive_in_a_transaction,
        lambda: broker.sender("q").send(Message(b"")),
        lambda: broker.peek("q", 10),
        lambda: broker.queue("q"),
        broker.queues,
        broker.audit,
        broker.facts,
        broker.check,
    ]
    ends = ends_of(jobs, broker, lambda: time.sleep(0.01 * n))
    assert ends == [BrokerClosed] * len(jobs)


def test_every_call_afterwards(broker: Broker) -> None:
    create(broker)
    broker.close()
    calls: list[Callable[[], object]] = [
        broker.facts,
        broker.check,
        broker.workers,
        broker.audit,
        broker.last_event,
        broker.dialogs.definitions,
        lambda: broker.events(0, max_wait=1),
        lambda: list(broker.dead_letters("q")),
        lambda: broker.session("q", "s"),
    ]
    for call in calls:
        with pytest.raises(BrokerClosed):
            call()


def test_coroutines_beside(url: str) -> None:
    async def main(after: float) -> None:
        broker = await lazaretto.aio.connect(url)
        if not after:
            await broker.create_queue("q")

        async def over_and_over(call: Callable[[], Any]) -> None:
            while True:
                await call()

        calls: list[Callable[[], Any]] = [
            lambda: broker.events(0, kind="dropped", max_wait=None),
            lambda: broker.events(0, kind="dropped", max_wait=0.001),
            lambda: broker.receiver("q").receive(1, 0.001),
            lambda: broker.receiver("q").receive(1, None),
            lambda: broker.sender("q").send(Message(b"")),
            broker.queues,
            broker.facts,
        ]
        tasks = [asyncio.create_task(over_and_over(call)) for call in calls for _ in range(3)]
        await asyncio.sleep(after)
        await broker.close()
        done, pending = await asyncio.wait(tasks, timeout=PATIENCE)
        assert not pending
        assert {type(task.exception()) for task in done} == {BrokerClosed}

    for n in range(8):
        asyncio.run(main(0.005 * n))


def test_every_call_of_a_coroutine_afterwards(url: str) -> None:
    async def main() -> None:
        broker = await lazaretto.aio.connect(url)
        await broker.create_queue("q")
        async with broker.receiver("q") as receiver:
            await broker.close()
            calls: list[Callable[[], Any]] = [
                receiver.receive,
                broker.queues,
                broker.facts,
                broker.events,
                lambda: broker.sender("q").send(Message(b"")),
            ]
            for call in calls:
                with pytest.raises(BrokerClosed):
                    await call()
            await broker.close()

    asyncio.run(main())
