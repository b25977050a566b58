"""Rates: what happened to a queue's messages, summed in memory and written with other commits."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import lazaretto
from lazaretto import (
    BreakerStatus,
    Broker,
    ManualClock,
    Message,
    PoisonPolicy,
    QueueOptions,
    QueueStatus,
)
from lazaretto.engine.timers import CleanUp
from lazaretto.errors import EntityNotFound, InvalidOption, MessageLockLost
from lazaretto.model.clock import to_datetime

from .actions import create, send, set_aside, stored

DAY = 86_400


def counts(broker: Broker, path: str = "q", span: str = "minute", limit: int = 2) -> list[tuple[int, ...]]:
    """Return the counts of the latest spans, the one that is not over last."""
    return [
        (rate.sent, rate.received, rate.completed, rate.failed, rate.dead)
        for rate in broker.rates(path, span=span, limit=limit)
    ]


def test_counts_of_each_minute_and_hour(broker: Broker, clock: ManualClock) -> None:
    create(broker, lock_duration=20.0)
    clock.advance(3_600 - clock.now() // 1_000_000 % 3_600)
    send(broker, *[b"x"] * 5)
    receiver = broker.receiver("q")
    first, second, *rest = receiver.receive(4)
    receiver.complete([first])
    receiver.abandon(second, error=ValueError("no"))
    clock.advance(60)
    # The locks of two have expired, and one message is tried again.
    again = receiver.receive(5)
    assert len(again) == 4
    receiver.complete(again[:3])
    receiver.dead_letter(again[3], reason="bad")
    assert len(rest) == 2
    assert counts(broker) == [(5, 4, 1, 1, 0), (0, 4, 3, 2, 1)]
    assert counts(broker, span="hour", limit=1) == [(5, 8, 4, 3, 1)]
    clock.advance(3_600)
    assert counts(broker, span="hour") == [(5, 8, 4, 3, 1), (0, 0, 0, 0, 0)]
    assert [rate.time.minute for rate in broker.rates("q", limit=2)] == [0, 1]
    # What is received from the dead letters says nothing of the queue.
    letters = broker.receiver("q/$deadletterqueue")
    letters.complete(letters.receive(5))
    assert counts(broker, limit=1) == [(0, 0, 0, 0, 0)]


def test_when_an_entity_was_used_last(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    broker.create_topic("t")
    broker.create_subscription("t", "s")
    clock.advance(60 - clock.now() // 1_000_000 % 60)
    assert broker.queue("q").accessed == broker.queue("q").updated
    clock.advance(600)
    minute = to_datetime(clock.now())
    clock.advance(20)
    send(broker, b"x")
    send(broker, b"x", path="t")
    # Asking for rates writes what is counted.
    assert broker.rates("q")[-1].sent == 1
    found = broker.subscription("t", "s").queue.accessed, broker.topic("t").accessed
    assert found == (minute, minute)
    clock.advance(3 * DAY)
    (queue,) = [one for one in broker.queues() if one.path == "q"]
    assert queue.accessed >= minute


def test_all_queues_together(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    broker.create_queue("other")
    clock.advance(60 - clock.now() // 1_000_000 % 60)
    send(broker, b"x", b"y")
    broker.sender("other").send(Message(b"z"))
    clock.advance(60)
    broker.sender("other").send(Message(b"z"))
    assert [rate.sent for rate in broker.rates(limit=2)] == [3, 1]
    broker.delete_queue("other")
    assert [rate.sent for rate in broker.rates(limit=2)] == [3, 1]
    assert [rate.sent for rate in broker.rates(span="hour", limit=2)][-1] in (1, 4)


def test_copies_of_a_topic_and_duplicates(broker: Broker) -> None:
    broker.create_topic("t")
    broker.create_subscription("t", "a")
    broker.create_subscription("t", "b")
    broker.sender("t").send([Message(b"x"), Message(b"y")])
    create(broker, requires_duplicate_detection=True)
    for _ in range(2):
        broker.sender("q").send(Message(b"x", message_id="1"))
    assert counts(broker, "t/subscriptions/a", limit=1) == [(2, 0, 0, 0, 0)]
    assert counts(broker, "t/subscriptions/b", limit=1) == [(2, 0, 0, 0, 0)]
    assert counts(broker, limit=1) == [(1, 0, 0, 0, 0)]


def test_what_is_rolled_back_does_not_count(broker: Broker) -> None:
    create(broker, lock_duration=20.0)
    send(broker, b"1", b"2")
    receiver = broker.receiver("q")
    one, two = receiver.receive(2)
    with pytest.raises(RuntimeError), broker.transaction() as tx:
        tx.send("q", Message(b"never"))
        raise RuntimeError
    with pytest.raises(RuntimeError), broker.transaction() as tx:
        tx.execute("SELECT 1")
        tx.send("q", Message(b"never"))
        raise RuntimeError
    receiver.complete([one])
    with pytest.raises(MessageLockLost):
        receiver.complete([one, two])
    assert counts(broker, limit=1) == [(2, 2, 1, 0, 0)]
    with broker.transaction() as tx:
        tx.execute("SELECT 1")
        tx.send("q", Message(b"indeed"))
    assert counts(broker, limit=1) == [(3, 2, 1, 0, 0)]


def test_threads_whose_commits_are_shared(broker: Broker) -> None:
    create(broker)

    def work() -> None:
        for _ in range(25):
            broker.sender("q").send(Message(b"x"))
            receiver = broker.receiver("q")
            receiver.complete(receiver.receive(1))

    run_all([work] * 4)
    assert counts(broker, limit=1) == [(100, 100, 100, 0, 0)]


def run_all(works: list[Callable[[], None]]) -> None:
    """Run functions in threads of their own."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_an_idle_process_writes_what_it_counted(broker: Broker, connect: Any) -> None:
    create(broker)
    send(broker, b"x")
    other = connect()
    end = time.monotonic() + 120
    while counts(other, limit=1) != [(1, 0, 0, 0, 0)]:
        assert time.monotonic() < end
        time.sleep(0.05)
    # It is written once.
    assert counts(broker, limit=1) == counts(other, limit=1) == [(1, 0, 0, 0, 0)]


def test_closing_writes_what_is_left(connect: Any) -> None:
    broker = connect()
    create(broker)
    send(broker, b"x", b"y")
    broker.close()
    assert counts(connect(), limit=1) == [(2, 0, 0, 0, 0)]


PROCESS = """
import sys, lazaretto
with lazaretto.connect(sys.argv[1], create=False) as broker:
    for _ in range(200):
        broker.sender("q").send(lazaretto.Message(b"x"))
        receiver = broker.receiver("q")
        receiver.complete(receiver.receive(1))
"""


def test_processes_add_up(url: str) -> None:
    with lazaretto.connect(url) as broker:
        create(broker)
        others = [subprocess.Popen([sys.executable, "-c", PROCESS, url]) for _ in range(2)]
        for _ in range(100):
            send(broker, b"x")
        assert [other.wait(120) for other in others] == [0, 0]
        sums = [sum(kind) for kind in zip(*counts(broker, limit=5), strict=True)]
    assert sums[0] == 500
    assert sums[1] == sums[2] == 400


def test_what_is_old_is_removed(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    for wait in (30 * DAY - 3_600, DAY - 60, 60, 3_600):
        send(broker, b"x")
        clock.advance(wait)
        broker._store.write_rates()
        broker._store.run(CleanUp())

    def rows(span: int) -> list[int]:
        each = stored(broker, f"SELECT queue_id FROM lazaretto_rates WHERE span = {span}")
        return sorted(min(1, queue_id) for (queue_id,) in each)

    # Two of the last day's minutes, their hour, and one of the day before; and the same of all queues.
    assert (rows(1), rows(60)) == ([0, 0, 1, 1], [0, 0, 1, 1])
    assert broker.rates("q", limit=1440)[0].sent == 0
    broker.delete_queue("q")
    while broker._store.run(CleanUp()):
        pass
    assert (rows(1), rows(60)) == ([0, 0], [0, 0])


def test_status_tells_rates_per_minute(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    clock.advance(60 - clock.now() / 1_000_000 % 60)
    set_aside(broker, b"1", b"2", reason="r")
    send(broker, *[b"x"] * 14)
    receiver = broker.receiver("q")
    receiver.complete(receiver.receive(4))
    clock.advance(240)
    broker.rates("q")
    rates = broker.status(name_contains="q").queues[0].rates
    assert (rates.sent, rates.completed, rates.failed, rates.dead, rates.growing) == (
        4.0,
        1.0,
        0.0,
        0.5,
        True,
    )
    receiver.complete(receiver.receive(10))
    broker.rates("q")
    assert not broker.status(name_contains="q").queues[0].rates.growing
    clock.advance(300)
    assert broker.status(name_contains="q").queues[0].rates.sent == 0


def test_refusals(broker: Broker) -> None:
    create(broker)
    with pytest.raises(EntityNotFound):
        broker.rates("none")
    with pytest.raises(InvalidOption):
        broker.rates("q", span="second")
    with pytest.raises(InvalidOption):
        broker.rates("q", span="hour", limit=721)
    assert len(broker.rates("q", limit=1440)) == 1440


def test_totals_outlive_the_process_and_those_of_all_queues_their_queue(url: str, broker: Broker) -> None:
    broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
    broker.create_queue("gone")
    broker.sender("work").send([Message(b"x")] * 5)
    receiver = broker.receiver("work")
    receiver.complete(receiver.receive(3))
    receiver.abandon(receiver.receive(1), error="no")
    broker.sender("gone").send([Message(b"x")] * 2)
    broker.close()
    with lazaretto.connect(url) as again:
        status = again.status()
        (work,) = (one for one in status.queues if one.path == "work")
        assert dataclasses.astuple(work.totals) == (5, 4, 3, 1, 1)
        assert dataclasses.astuple(status.totals) == (7, 4, 3, 1, 1)
        assert (work.status, work.breaker) == (QueueStatus.ACTIVE, BreakerStatus.CLOSED)
        assert (work.fingerprints, work.held_sessions, status.open_claims) == (1, 0, 0)
        again.delete_queue("gone")
        assert again.status().totals.sent == 7
        again.create_queue("gone")
        assert {one.totals.sent for one in again.status().queues} == {5, 0}
