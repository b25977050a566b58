"""Outage or poison, as a service host finds out: nothing is dead-lettered for an outage."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from patience import PATIENCE, wait_until

import lazaretto
from lazaretto import (
    BreakerPolicy,
    BreakerStatus,
    Broker,
    InvalidOption,
    PoisonPolicy,
    QueueOptions,
    ReceivedMessage,
)
from lazaretto.host import Handler, ServiceHost
from lazaretto.host.handlers import GivenIsolation

from .serving import send, serve, worked_off

QUICK = BreakerPolicy(probe_interval=0.05, longest_probe_interval=0.1)


class Dependent:
    """Fails while a file is there, as if that were a database that is down."""

    def __init__(self, down: Path) -> None:
        self._down = down

    def __call__(self, message: ReceivedMessage) -> None:
        if self._down.exists():
            raise ConnectionError("the database is down")
        if message.body == b"poison":
            raise ValueError("not this one")


@pytest.fixture
def down(tmp_path: Path) -> Path:
    return tmp_path / "down"


@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize("retries", [0, 1, 9])
def test_an_outage_costs_no_message_anything(
    broker: Broker, isolation: GivenIsolation, down: Path, batch_size: int, retries: int
) -> None:
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=retries), breaker=QUICK)
    numbers = send(broker, "work", *[b"%d" % n for n in range(300)])
    down.touch()
    dependent = Handler("work", Dependent(down), isolation=isolation, batch_size=batch_size)
    with ServiceHost(broker, dependent) as host:
        wait_until(lambda: broker.breaker("work").status is BreakerStatus.OPEN)
        found = broker.breaker("work")
        assert found.error == "ConnectionError: the database is down"
        # Some probes, whose attempts cost nothing either.
        wait_until(lambda: host.reports()[0].released > 3)
        assert broker.queue("work").counts.dead_letter == 0
        waiting = {m.sequence_number: m for m in broker.peek("work", 1000)}
        assert list(waiting) == numbers
        assert {m.delivery_count for m in waiting.values()} == {0}
        down.unlink()
        wait_until(worked_off(broker, "work"))
        assert broker.breaker("work").status is BreakerStatus.CLOSED
    assert broker.queue("work").counts.total == 0
    kinds = [e.kind for e in broker.events() if e.kind.startswith("breaker")]
    assert kinds == ["breaker_opened", "breaker_ramping", "breaker_closed"]
    (opened,) = broker.events(kind="breaker_opened")
    assert opened.detail["error"] == "ConnectionError: the database is down"


def test_poison_among_good_messages_does_not_open_it(
    broker: Broker, isolation: GivenIsolation, down: Path
) -> None:
    bodies = [b"poison" if n % 20 == 7 else b"good" for n in range(1000)]
    send(broker, "work", *bodies)
    (report,) = serve(broker, Handler("work", Dependent(down), isolation=isolation))
    assert (report.completed, report.dead) == (950, 50)
    assert not [e for e in broker.events() if e.kind.startswith("breaker")]


def test_one_poison_message_alone_does_not_open_it(broker: Broker, down: Path) -> None:
    send(broker, "work", b"poison")
    (report,) = serve(broker, Handler("work", Dependent(down)))
    assert report.dead == 1


def test_a_message_that_is_poison_anyway_does_not_keep_it_open(broker: Broker, down: Path) -> None:
    """Probes go round: one that fails in the same way after the outage is told apart."""

    class AlwaysDownForSome(Dependent):
        def __call__(self, message: ReceivedMessage) -> None:
            if message.body == b"poison":
                raise ConnectionError("this one's own")
            super().__call__(message)

    broker.update_queue("work", breaker=QUICK)
    send(broker, "work", *[b"poison"] * 3, *[b"%d" % n for n in range(100)])
    down.touch()
    with ServiceHost(broker, Handler("work", AlwaysDownForSome(down), isolation="inline")):
        wait_until(lambda: broker.breaker("work").status is BreakerStatus.OPEN)
        down.unlink()
        wait_until(worked_off(broker, "work"))
    assert broker.queue("work").counts.dead_letter == 3


def test_without_a_breaker_every_failure_counts(broker: Broker, down: Path) -> None:
    broker.update_queue("work", breaker=None)
    send(broker, "work", *[b"x"] * 50)
    down.touch()
    serve(broker, Handler("work", Dependent(down)))
    assert broker.queue("work").counts.dead_letter == 50


class TestOperator:
    def test_held_closed_every_failure_counts(self, broker: Broker, down: Path) -> None:
        found = broker.set_breaker("work", "close", actor="me")
        assert found.status is BreakerStatus.HELD_CLOSED
        send(broker, "work", *[b"x"] * 50)
        down.touch()
        serve(broker, Handler("work", Dependent(down)))
        assert broker.queue("work").counts.dead_letter == 50
        (entry,) = [e for e in broker.audit() if e.action == "breaker"]
        assert (entry.actor, entry.detail) == ("me", {"verb": "close", "before": "auto"})

    def test_held_open_nothing_is_handed_out(self, broker: Broker, down: Path) -> None:
        broker.set_breaker("work", "open")
        send(broker, "work", b"1", b"2")
        with ServiceHost(broker, Handler("work", Dependent(down), isolation="inline")) as host:
            # A later message in a queue without such a breaker shows that the host is at work.
            time.sleep(0.3)
            assert host.reports()[0].completed == 0
            broker.set_breaker("work", "auto")
            wait_until(worked_off(broker, "work"))
            # It is counted when the commit has been answered.
            wait_until(lambda: host.reports()[0].completed == 2)

    def test_an_unknown_verb(self, broker: Broker) -> None:
        with pytest.raises(InvalidOption, match="did you mean 'close'"):
            broker.set_breaker("work", "closed")

    def test_a_queue_tells_of_its_policy(self, broker: Broker) -> None:
        broker.create_queue("own", QueueOptions(breaker=BreakerPolicy(messages=50)))
        assert broker.queue("own").options.breaker == BreakerPolicy(messages=50)
        assert broker.queue("work").options.breaker == BreakerPolicy()


class Slow(Dependent):
    """Fails in the same way; a message "wait" says that it has begun, and waits."""

    def __init__(self, down: Path) -> None:
        super().__init__(down)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, message: ReceivedMessage) -> None:
        if message.body == b"wait":
            self.begun.set()
            assert self.go_on.wait(PATIENCE)
        super().__call__(message)


def test_what_one_host_has_counted_is_undone_when_another_finds_the_outage(
    store: Path, broker: Broker, down: Path
) -> None:
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=0), breaker=QUICK)
    down.touch()
    slow = Slow(down)
    with lazaretto.connect(store) as other, ServiceHost(broker, Handler("work", slow, isolation="inline")):
        send(broker, "work", b"first")
        wait_until(lambda: broker.queue("work").counts.dead_letter == 1)
        send(broker, "work", b"wait")
        assert slow.begun.wait(PATIENCE)
        with ServiceHost(other, Handler("work", Dependent(down), isolation="inline", batch_size=10)):
            send(broker, "work", *[b"x"] * 30)
            wait_until(lambda: other.breaker("work").status is BreakerStatus.OPEN)
            slow.go_on.set()
            wait_until(lambda: broker.queue("work").counts.dead_letter == 0)
            assert {m.delivery_count for m in broker.peek("work", 1000)} <= {0, 1}
            down.unlink()
            wait_until(worked_off(broker, "work"))
    assert broker.queue("work").counts.total == 0


def test_hosts_share_what_one_has_found(store: Path, broker: Broker, down: Path) -> None:
    """The breaker is the queue's: another broker on the store sees it and takes nothing but probes."""
    broker.update_queue("work", breaker=QUICK)
    send(broker, "work", *[b"x"] * 200)
    down.touch()
    with lazaretto.connect(store) as other:
        hosts = [
            ServiceHost(b, Handler("work", Dependent(down), isolation="inline", batch_size=10))
            for b in (broker, other)
        ]
        for host in hosts:
            host.start()
        wait_until(lambda: other.breaker("work").status is BreakerStatus.OPEN)
        wait_until(lambda: sum(h.reports()[0].released for h in hosts) > 15)
        assert {m.delivery_count for m in broker.peek("work", 1000)} <= {0, 1}
        down.unlink()
        wait_until(worked_off(broker, "work"))
        for host in hosts:
            host.stop()
    assert broker.queue("work").counts.total == 0
