"""The helpers for users' own tests do what their page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazaretto import Disposition, Message, PoisonPolicy, PoisonSession, QueueOptions
from lazaretto.host import Handler, ServiceHost
from lazaretto.model.messages import ReceivedMessage
from lazaretto.testing import (
    ManualClock,
    assert_dead_letter,
    assert_no_dead_letters,
    drain,
    temporary_broker,
)
from lazaretto.testing.hosts import DrainTimeout

pytest_plugins = ["pytester"]


def refuse(message: ReceivedMessage) -> None:
    if message.body.startswith(b"bad"):
        raise ValueError(f"no such thing: {message.body.decode()}")


def inline(queue: str) -> Handler:
    return Handler(queue, refuse, isolation="inline")


def test_a_temporary_broker_leaves_nothing_behind() -> None:
    with temporary_broker("orders", "invoices") as broker:
        path = Path(broker.facts()["path"])
        assert path.exists()
        assert {queue.path for queue in broker.queues()} >= {"orders", "invoices"}
    assert not path.parent.exists()


def test_drain_moves_the_clock_through_retries_and_schedules() -> None:
    clock = ManualClock()
    with temporary_broker(clock=clock) as broker:
        policy = PoisonPolicy(receive_retry_count=0, max_retry_cycles=2, retry_cycle_delay=1800)
        broker.create_queue("orders", QueueOptions(policy=policy))
        broker.sender("orders").send([Message(b"good"), Message(b"bad")])
        (report,) = drain(ServiceHost(broker, inline("orders")), clock=clock)
        assert report.completed == 1
        assert broker.queue("orders").counts.total == 1
        assert len(assert_dead_letter(broker, "orders").attempts) == 3


def test_drain_without_a_clock_leaves_what_is_delayed() -> None:
    with temporary_broker(clock=ManualClock()) as broker:
        policy = PoisonPolicy(receive_retry_count=0, max_retry_cycles=2, retry_cycle_delay=1800)
        broker.create_queue("orders", QueueOptions(policy=policy))
        broker.sender("orders").send([Message(b"good"), Message(b"bad")])
        drain(ServiceHost(broker, inline("orders")))
        assert broker.queue("orders").counts.delayed == 1
        assert_no_dead_letters(broker)


def test_drain_ends_at_a_halted_queue_and_a_held_session() -> None:
    with temporary_broker() as broker:
        policy = PoisonPolicy(receive_retry_count=0, on_poison=Disposition.FAULT)
        broker.create_queue("orders", QueueOptions(policy=policy))
        held = QueueOptions(
            requires_session=True,
            on_poison_session=PoisonSession.BLOCK,
            policy=PoisonPolicy(receive_retry_count=0),
        )
        broker.create_queue("tickets", held)
        broker.sender("orders").send([Message(b"bad"), Message(b"good")])
        broker.sender("tickets").send([Message(text, session_id="a") for text in (b"bad", b"good")])
        drain(ServiceHost(broker, [inline("orders"), inline("tickets")]))
        assert broker.queue("orders").halted_by is not None
        assert broker.queue("tickets").held_sessions == 1


def test_drain_through_an_outage_moves_the_clock_to_the_probes() -> None:
    clock, down = ManualClock(), [20]

    def fail_for_a_while(message: ReceivedMessage) -> None:
        if down[0]:
            down[0] -= 1
            raise ConnectionError("the database is away")

    with temporary_broker("orders", clock=clock) as broker:
        broker.sender("orders").send([Message(b"x") for _ in range(40)])
        host = ServiceHost(broker, [Handler("orders", fail_for_a_while, isolation="inline")])
        (report,) = drain(host, clock=clock)
        assert report.completed == 40
        assert_no_dead_letters(broker)


def test_drain_says_what_is_left_when_the_time_is_over() -> None:
    with temporary_broker("orders") as broker:
        broker.sender("orders").send(Message(b"x"))
        broker.receiver("orders").receive()
        with pytest.raises(DrainTimeout, match="orders"):
            drain(ServiceHost(broker, inline("orders")), timeout=0.2)


def test_assertions_name_what_is_there_instead() -> None:
    with temporary_broker() as broker:
        broker.create_queue("orders", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
        assert_no_dead_letters(broker)
        with pytest.raises(AssertionError, match="none at all"):
            assert_dead_letter(broker, "orders")
        broker.sender("orders").send([Message(b"bad 1"), Message(b"bad 2")])
        drain(ServiceHost(broker, inline("orders")))
        assert (
            assert_dead_letter(broker, "orders", text="bad 2", error_type="ValueError").sequence_number == 2
        )
        with pytest.raises(AssertionError, match=r"orders 1: MaxDeliveryCountExceeded: ValueError: no such"):
            assert_no_dead_letters(broker, "orders")
        with pytest.raises(AssertionError, match="got 2; there are"):
            assert_dead_letter(broker, "orders", error_type="ValueError")


def test_the_fixtures_work_in_a_users_tests(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["lazaretto.testing.fixtures"]')
    pytester.makepyfile(
        """
        from lazaretto import Message

        def test_an_order_expires(lazaretto_broker, lazaretto_clock):
            lazaretto_broker.create_queue("orders")
            lazaretto_broker.sender("orders").send(Message(b"lamp", time_to_live=60))
            lazaretto_clock.advance(61)
            assert lazaretto_broker.receiver("orders").receive() == []
            assert lazaretto_broker.queue("orders").expired == 1
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
