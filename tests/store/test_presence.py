"""Who takes messages of which queues: idle ones, too, as other processes see it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Thread

from patience import PATIENCE, wait_until

import lazaretto.aio
from lazaretto import Broker, BrokerClosed, Receiver
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.host import Handler, ServiceHost
from lazaretto.model.clock import SystemClock

from .actions import create
from .conftest import Connect

Takers = list[tuple[str, str, str]]


def takers(broker: Broker) -> Takers:
    return [(one.queue, one.kind, one.name) for worker in broker.workers() for one in worker.takers]


def receive(receiver: Receiver) -> None:
    with suppress(BrokerClosed):
        receiver.receive(1, None)


def ship(message: object) -> None:
    raise AssertionError("there are no messages")


def test_idle_takers_are_seen_by_others_until_they_close(connect: Connect, url: str) -> None:
    other = connect(clock=SystemClock())
    for name in ("orders", "invoices", "flights"):
        create(other, name)
    with lazaretto.connect(url) as broker:
        assert takers(other) == []
        waiting = broker.receiver("invoices/$deadletterqueue")
        thread = Thread(target=receive, args=(waiting,), daemon=True)
        thread.start()
        consumer = ClaimConsumer(broker._store, "flights", "clean-up")
        consumer.attach()
        with ServiceHost(broker, Handler("orders", ship, isolation="inline", concurrency=2)):
            wait_until(lambda: len(takers(other)) == 3)
            program = takers(other)[1][2]
            assert takers(other) == [
                ("flights", "pipeline", "clean-up"),
                ("invoices/$deadletterqueue", "receiver", program),
                ("orders", "service host", f"{__name__}.ship"),
            ]
            (worker,) = other.workers()
            assert worker.alive
            assert worker.holds == ()
            assert worker.takers[0].since <= worker.takers[0].seen
        waiting.close()
    thread.join(PATIENCE)
    assert other.workers() == []


def test_coroutines_take_messages_too(connect: Connect, url: str) -> None:
    other = connect(clock=SystemClock())
    create(other)

    async def take() -> None:
        async with await lazaretto.aio.connect(url) as broker:
            receiving = asyncio.ensure_future(broker.receiver("q").receive(1, None))
            await asyncio.to_thread(lambda: wait_until(lambda: takers(other) != []))
            receiving.cancel()

    asyncio.run(take())
    assert other.workers() == []
