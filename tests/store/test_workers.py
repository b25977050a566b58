"""The processes that take messages, and what service hosts among them hold."""

from __future__ import annotations

from datetime import timedelta

from lazaretto import NEXT_SESSION, Broker, HeldMessages, ManualClock, Message, QueueOptions

from .actions import Die, create, send
from .conftest import Connect


def holds(broker: Broker) -> list[HeldMessages]:
    (worker,) = broker.workers()
    assert worker.complete
    return list(worker.holds)


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


def test_what_receivers_hold(broker: Broker, connect: Connect) -> None:
    create(broker)
    numbers = send(broker, *(b"%d" % n for n in range(5)))
    with broker.receiver("q") as receiver:
        messages = receiver.receive(3)
        held = tuple(sorted(m.sequence_number for m in messages))
        assert holds(broker) == [HeldMessages("q", None, held, started=True)]
        assert connect().workers() == broker.workers()
        receiver.complete(messages[0])
        receiver.defer(messages[1])
        (last,) = (m.sequence_number for m in messages[2:])
        assert holds(broker) == [HeldMessages("q", None, (last,), started=True)]
        receiver.dead_letter(messages[2])
    assert holds(broker) == []
    with broker.receiver("q", subqueue="dead_letter") as receiver:
        (letter,) = receiver.receive()
        (lies,) = holds(broker)
        assert (lies.queue, lies.sequence_numbers) == ("q/$deadletterqueue", (letter.sequence_number,))
    assert set(numbers) >= set(held)


def test_many_that_were_received_at_once(broker: Broker) -> None:
    create(broker)
    numbers = send(broker, *(b"%d" % n for n in range(400)))
    with broker.receiver("q") as receiver:
        messages = receiver.receive(300)
        held = [m.sequence_number for m in messages]
        (told,) = holds(broker)
        assert list(told.sequence_numbers) == sorted(held)
        receiver.complete(messages[:100])
        (told,) = holds(broker)
        assert list(told.sequence_numbers) == sorted(held[100:])
    assert len(numbers) == 400


def test_at_most_a_thousand_are_told_of_a_process(broker: Broker) -> None:
    create(broker)
    send(broker, *(b"%d" % n for n in range(1_500)))
    with broker.receiver("q") as receiver:
        held = sorted(m.sequence_number for m in receiver.receive(1_500))
        assert len(held) > 1_000
        (worker,) = broker.workers()
        (told,) = worker.holds
        assert list(told.sequence_numbers) == held[:1_000]
        assert not worker.complete


def test_a_lock_that_has_run_out_holds_nothing(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    send(broker, b"1")
    later = broker.queue("q").created + timedelta(days=1)
    broker.sender("q").send(Message(b"2", scheduled_enqueue_time=later))
    assert broker.receiver("q").receive()
    assert len(holds(broker)) == 1
    clock.advance(61)
    assert holds(broker) == []


def test_what_a_host_holds_is_told_once(broker: Broker) -> None:
    create(broker)
    send(broker, *(b"%d" % n for n in range(4)))
    taken = broker.receiver("q").take(2, 0, started=False)
    assert taken is not None
    with broker.receiver("q") as receiver:
        more = receiver.receive(2)
        lease, own = holds(broker)
        assert not lease.started
        assert own.started
        assert own.sequence_numbers == tuple(sorted(m.sequence_number for m in more))
        assert not set(own.sequence_numbers) & set(lease.sequence_numbers)


def test_sessions_that_are_locked(broker: Broker) -> None:
    broker.create_queue("s", QueueOptions(requires_session=True))
    a, _ = broker.sender("s").send([Message(b"1", session_id="a"), Message(b"2", session_id="a")])
    with broker.receiver("s", session=NEXT_SESSION) as receiver, broker.receiver("s", session="b") as other:
        (first,) = receiver.receive(1)
        assert first.sequence_number == a
        assert other.receive(1) == []
        assert holds(broker) == [
            HeldMessages("s", "a", (a,), started=True),
            HeldMessages("s", "b", (), started=True),
        ]
        receiver.complete(first)
        assert [one.sequence_numbers for one in holds(broker)] == [(), ()]
    assert holds(broker) == []
