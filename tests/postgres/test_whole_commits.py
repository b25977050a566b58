"""No lock is held while the network is waited for: a commit goes out whole, whatever others do meanwhile."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable

import psycopg
import pytest
from servers import Server

import lazaretto
from lazaretto import (
    NEXT_SESSION,
    Broker,
    ManualClock,
    Message,
    MessageLockLost,
    PoisonPolicy,
    QueueDisabled,
    QueueOptions,
    QueueStatus,
)
from lazaretto.engine.workers.workers import Heartbeat
from lazaretto.model.clock import to_datetime
from lazaretto.store.postgres.queue_locks import QueueLock, lock_of
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

from .witness import IDLE, Witness, store_of, waits_under_a_lock, without_flush

#: How much the hot operations of a queue may be turned: what they need is read before, never under a lock.
_OPTIONS = {
    "plain": QueueOptions(lock_duration=30),
    "lives": QueueOptions(lock_duration=30, default_time_to_live=600),
    "sized": QueueOptions(lock_duration=30, max_size=10_000_000),
    "unique": QueueOptions(lock_duration=30, requires_duplicate_detection=True),
    "parts": QueueOptions(lock_duration=30, partitions=4),
    "unique-parts": QueueOptions(lock_duration=30, partitions=4, requires_duplicate_detection=True),
    "watched": QueueOptions(lock_duration=30, policy=PoisonPolicy(disable_after_rollbacks=50)),
}


@pytest.mark.parametrize("kind", _OPTIONS)
def test_no_hot_operation_waits_under_a_lock(
    hosts: tuple[Broker, Broker], witness: Witness, kind: str
) -> None:
    one, other = hosts
    one.create_queue(kind, _OPTIONS[kind])
    sender, receiver, theirs = one.sender(kind), one.receiver(kind), other.sender(kind)
    failure = RuntimeError("it failed")
    got: list[lazaretto.ReceivedMessage] = []
    ids = itertools.count()
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: sender.send(Message(b"x")),
        "send many": lambda: sender.send([Message(b"x")] * 10),
        "send new": lambda: sender.send(Message(b"x", message_id=str(next(ids)))),
        "send again": lambda: sender.send(Message(b"x", message_id="known")),
        "send large": lambda: sender.send(Message(b"x" * 5_000)),
        "receive": lambda: got.extend(receiver.receive(1)),
        "renew": lambda: receiver.renew_lock(got[0]),
        "abandon": lambda: receiver.abandon(got.pop(), error=failure),
        "receive again": lambda: got.extend(receiver.receive(1)),
        "release": lambda: receiver.release(got.pop()),
        "receive released": lambda: got.extend(receiver.receive(1)),
        "dead-letter": lambda: receiver.dead_letter(got.pop(), reason="bad", description="it is"),
        "receive another": lambda: got.extend(receiver.receive(1)),
        "defer": lambda: receiver.defer(got.pop()),
        "receive one more": lambda: got.extend(receiver.receive(1)),
        "complete": lambda: receiver.complete(got.pop()),
        "receive many": lambda: got.extend(receiver.receive(5)),
        "renew many": lambda: receiver.renew_lock(got[0]),
        "abandon one of many": lambda: receiver.abandon(got.pop(), error=failure),
        "complete many": lambda: receiver.complete(got[:2]),
        "dead-letter many": lambda: receiver.dead_letter(got[2:], reason="bad"),
        "heartbeat": lambda: one._store.run(Heartbeat([])),
    }
    said = witness.writing(one)
    for turn in range(3):
        got.clear()
        for name, call in calls.items():
            theirs.send([Message(b"theirs")] * 3)
            said.clear()
            call()
            # The first time, what holds for long is asked: how queues are set, and whether one is known.
            assert not turn or not waits_under_a_lock(said), (name, len(said))
    assert one.check() == []


def test_only_a_timer_that_comes_soon_is_looked_for_at_once(hosts: tuple[Broker, Broker]) -> None:
    one, other = hosts
    sender, receiver, theirs, store = (
        one.sender("work"),
        one.receiver("work"),
        other.sender("work"),
        store_of(one),
    )

    def changes(message: Message) -> int:
        theirs.send(Message(b"theirs"))
        receiver.complete(receiver.receive())
        before = store._changes
        sender.send(message)
        receiver.complete(receiver.receive())
        return store._changes - before

    assert changes(Message(b"first")) <= 1
    assert changes(Message(b"x")) == 0
    assert changes(Message(b"x", time_to_live=0.5)) == 1


def test_sessions_and_timers_wait_for_nothing_under_a_lock(
    hosts: tuple[Broker, Broker], witness: Witness, clock: ManualClock
) -> None:
    one, other = hosts
    one.create_queue("talks", QueueOptions(lock_duration=30, requires_session=True))
    sender, receiver, theirs = one.sender("work"), one.receiver("work"), other.sender("talks")
    talker = one.receiver("talks", session=NEXT_SESSION)
    got: list[lazaretto.ReceivedMessage] = []

    def expire() -> None:
        receiver.receive(1)
        clock.advance(31)

    calls: dict[str, Callable[[], object]] = {
        "accept and receive": lambda: got.extend(talker.receive(2)),
        "renew session": lambda: talker.renew_session_lock(),
        "set state": lambda: talker.set_session_state(b"on"),
        "abandon of session": lambda: talker.abandon(got.pop(), error="it failed"),
        "complete of session": lambda: talker.complete(got.pop()),
        "release session": lambda: talker.leave_session(),
        "send": lambda: sender.send(Message(b"x")),
        "let a lock expire": expire,
        "receive what expired": lambda: got.extend(receiver.receive(1)),
        "complete": lambda: receiver.complete(got.pop()),
    }
    said = witness.writing(one)
    for turn in range(3):
        for name, call in calls.items():
            theirs.send([Message(b"theirs", session_id=f"{turn}")] * 2)
            said.clear()
            call()
            assert not turn or not waits_under_a_lock(said), (name, len(said))
    assert one.check() == []


def use(broker: Broker) -> None:
    """Send, receive and complete, as another host does between two calls of the one that is watched."""
    broker.sender("work").send(Message(b"theirs"))
    (message,) = broker.receiver("work").receive(1)
    broker.receiver("work").complete(message)


@pytest.mark.parametrize("size", [10, 5_000])
def test_no_answer_is_waited_for_between_lock_and_commit(
    hosts: tuple[Broker, Broker], witness: Witness, size: int
) -> None:
    one, other = hosts
    sender, receiver = one.sender("work"), one.receiver("work")
    for _ in range(3):
        # What is asked once, as how the queue is set, is known from then on.
        use(other)
        sender.send(Message(b"x" * size))
        receiver.complete(receiver.receive(1))

    def send() -> None:
        sender.send([Message(b"x" * size), Message(b"y")])

    said = witness.writing(one)
    held: list[lazaretto.ReceivedMessage] = []
    calls: dict[str, Callable[[], object]] = {
        "send": send,
        "receive": lambda: held.extend(receiver.receive(1)),
        "renew": lambda: receiver.renew_lock(held[0]),
        "complete": lambda: receiver.complete(held.pop()),
    }
    for name, call in calls.items():
        use(other) if name == "send" else other.sender("work").send(Message(b"theirs"))
        said.clear()
        call()
        told = without_flush(said)
        assert [who for who, _ in told] == ["client", "server"], name
        assert told[-1][1].endswith(IDLE), name
    assert one.check() == []


def test_a_commit_beside_a_change_of_settings_is_undone_and_done_again(
    hosts: tuple[Broker, Broker],
) -> None:
    one, other = hosts
    sender = one.sender("work")
    sender.send(Message(b"1"))
    other.set_status("work", QueueStatus.SEND_DISABLED)
    with pytest.raises(QueueDisabled):
        sender.send(Message(b"2"))
    other.set_status("work", QueueStatus.ACTIVE)
    assert sender.send(Message(b"3")) == 2
    other.delete_queue("work")
    with pytest.raises(lazaretto.EntityNotFound):
        sender.send(Message(b"4"))
    other.create_queue("work", QueueOptions(default_time_to_live=60))
    assert sender.send(Message(b"5")) == 1
    (message,) = one.receiver("work").receive(1)
    assert message.expires_at is not None


def test_numbers_go_on_whoever_sends_and_whatever_is_gone(hosts: tuple[Broker, Broker]) -> None:
    numbers = []
    for _ in range(3):
        for host in hosts:
            numbers.append(host.sender("work").send(Message(b"x")))
            receiver = host.receiver("work")
            receiver.complete(receiver.receive(1))
    assert numbers == [1, 2, 3, 4, 5, 6]


def test_a_message_that_another_host_has_settled_is_not_settled_again(hosts: tuple[Broker, Broker]) -> None:
    one, other = hosts
    one.sender("work").send(Message(b"x"))
    (message,) = one.receiver("work").receive(1)
    other.receiver("work").complete(message)
    with pytest.raises(MessageLockLost):
        one.receiver("work").complete(message)
    with pytest.raises(MessageLockLost):
        one.receiver("work").renew_lock(message)
    assert one.check() == []


def test_what_others_do_on_other_queues_is_not_waited_for(
    hosts: tuple[Broker, Broker], url: str, postgres: Server
) -> None:
    one, _ = hosts
    sender = one.sender("other")
    sender.send(Message(b"known"))
    store = store_of(one)
    queue = store.read(lambda tx: tx.queues.by_path("work"))
    assert queue is not None
    with psycopg.connect(postgres.url) as connection:
        # As a commit on another queue, that is not done yet.
        lanes = [lock_of(store._number, queue.queue_id, lane) for lane in QueueLock]
        connection.execute(
            "SELECT pg_advisory_xact_lock_shared(%s, %s), pg_advisory_xact_lock(lane) "
            "FROM unnest(%s::bigint[]) AS lane",
            (0x4C5A0002, store._number, lanes),
        )
        assert sender.send(Message(b"beside it")) == 2


def test_an_id_is_sent_once_whichever_partition_each_message_goes_to(url: str) -> None:
    options = QueueOptions(partitions=8, requires_session=True, requires_duplicate_detection=True)
    found: list[list[int]] = []
    with lazaretto.connect(url) as owner:
        owner.create_queue("once", options)
        start = threading.Barrier(4)

        def send(host: int) -> None:
            with lazaretto.connect(url) as broker:
                sender = broker.sender("once")
                start.wait()
                numbers: list[int] = []
                for first in range(0, 120, 3):
                    # The sessions differ, and so do the partitions; the ids are the same.
                    some = [
                        Message(b"x", message_id=f"{n}", session_id=f"{n + host}")
                        for n in range(first, first + 3)
                    ]
                    numbers += sender.send(some)
                found.append(numbers)

        threads = [threading.Thread(target=send, args=(host,)) for host in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [found[0]] * 4
        assert owner.queue("once").counts.active == 120
        assert owner.check() == []


def test_a_new_id_waits_for_no_other_partition(
    hosts: tuple[Broker, Broker], url: str, postgres: Server
) -> None:
    one, _ = hosts
    one.create_queue("parts", QueueOptions(partitions=8, requires_duplicate_detection=True))
    sender = one.sender("parts")
    (number,) = sender.send([Message(b"x", message_id="known")])
    store = store_of(one)
    queue = store.read(lambda tx: tx.queues.by_path("parts"))
    assert queue is not None
    own = queue.lanes[number >> 36]
    with psycopg.connect(postgres.url) as connection:
        # As commits on all other partitions, that are not done yet.
        lanes = [
            lock_of(store._number, other, lane) for other in queue.lanes for lane in QueueLock if other != own
        ]
        connection.execute(
            "SELECT pg_advisory_xact_lock_shared(%s, %s), pg_advisory_xact_lock(lane) "
            "FROM unnest(%s::bigint[]) AS lane",
            (0x4C5A0002, store._number, lanes),
        )
        again, new = sender.send([Message(b"x", message_id=name) for name in ("known", "unknown-3")])
        assert again == number
        assert new >> 36 == number >> 36


@pytest.mark.parametrize("kind", ["plain", "sized", "unique", "parts"])
def test_hosts_that_do_all_at_once_lose_nothing_and_settle_nothing_twice(url: str, kind: str) -> None:
    sent: list[bytes] = []
    done: list[bytes] = []
    with lazaretto.connect(url) as owner:
        owner.create_queue("busy", _OPTIONS[kind])

        def work(host: int) -> None:
            chance = random.Random(host)
            with lazaretto.connect(url) as broker:
                sender, receiver = broker.sender("busy"), broker.receiver("busy")
                for turn in range(25):
                    bodies = [b"%d %d %d" % (host, turn, n) for n in range(chance.choice((1, 1, 3)))]
                    sender.send([Message(body) for body in bodies])
                    sent.extend(bodies)
                    got = receiver.receive(chance.choice((1, 1, 4)))
                    if not got:
                        # The others have all of it.
                        continue
                    match chance.choice(("complete", "complete", "abandon", "release", "dead-letter")):
                        case "complete":
                            receiver.complete(got)
                            done.extend(message.body for message in got)
                        case "abandon":
                            receiver.abandon(got, error="it failed")
                        case "release":
                            receiver.renew_lock(got)
                            receiver.release(got)
                        case _:
                            receiver.dead_letter(got[:1], reason="bad")
                            receiver.release(got[1:])

        threads = [threading.Thread(target=work, args=(host,)) for host in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        receiver = owner.receiver("busy")
        while left := receiver.receive(100, 1):
            receiver.complete(left)
            done.extend(message.body for message in left)
        dead = owner.receiver("busy/$deadletterqueue").receive(1000)
        done.extend(message.body for message in dead)
        assert sorted(done) == sorted(sent)
        assert owner.check() == []


def test_a_timer_that_is_past_when_it_comes_is_not_overlooked(url: str) -> None:
    with lazaretto.connect(url) as broker:
        broker.create_queue("work", QueueOptions(default_time_to_live=0.001))
        sender = broker.sender("work")
        for _ in range(20):
            sender.send(Message(b"x"))
        assert broker.receiver("work").receive(1, 0.2) == []


def test_a_timer_that_another_host_sets_is_found_however_late_one_has_looked(
    hosts: tuple[Broker, Broker], clock: ManualClock
) -> None:
    one, other = hosts
    receiver, sender, theirs = one.receiver("work"), other.sender("work"), other.receiver("work")

    def bodies() -> list[bytes]:
        return [message.body for message in receiver.receive(1)]

    sender.send([Message(b"first"), Message(b"second"), Message(b"third")])
    assert [message.body for message in theirs.receive(1)] == [b"first"]
    clock.advance(29.999)
    assert bodies() == [b"second"]
    clock.advance(0.02)
    assert bodies() == [b"first"]
    assert bodies() == [b"third"]
    assert bodies() == []
    # None is looked for so soon again, but where nothing else is found.
    sender.schedule(Message(b"last"), to_datetime(clock.now() + 2_000))
    clock.advance(0.003)
    assert bodies() == [b"last"]
    assert bodies() == []


class Torn(Operation[str]):
    """Finds what cannot be while it is planned, as if a message had gone between two of its reads."""

    foreseeable = True

    def run(self, tx: Transaction) -> str:
        assert not tx.plans
        return "done"


def test_what_was_read_at_different_moments_is_read_again_under_the_lock(url: str) -> None:
    with lazaretto.connect(url) as broker:
        assert store_of(broker).run(Torn()) == "done"
