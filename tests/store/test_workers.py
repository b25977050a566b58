"""The processes that take messages, and what service hosts among them hold."""

from __future__ import annotations

from lazaretto import Broker, HeldMessages

from .actions import Die, create, send
from .conftest import Connect


def test_workers_and_what_they_hold(broker: Broker, connect: Connect) -> None:
    create(broker)
    first, second = send(broker, b"1", b"2")
    assert broker.workers() == []
    taken = broker.receiver("q").take(2, 0, started=True)
    assert taken is not None
    (worker,) = broker.workers()
    assert worker.alive
    assert worker.holds == (HeldMessages("q", None, (first, second), started=True),)
    assert connect().workers() == [worker]
    broker._store.run(Die())
    assert [(w.name, w.alive, w.holds) for w in broker.workers()] == [(worker.name, False, ())]
