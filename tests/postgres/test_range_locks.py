"""Messages received together are locked as a range, and nobody can tell but by the speed."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from servers import Server

import lazaretto
from lazaretto import Broker, ManualClock, Message, MessageLockLost, MessageState, PoisonPolicy, QueueOptions
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.messages.receive import ReceiveAndDelete
from lazaretto.engine.messages.settle import COMPLETE, Settle, Settled, Settlement
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import Failure
from lazaretto.model.policy import Outcome
from lazaretto.store.addresses import copy_store, migrate_store
from lazaretto.store.postgres import schema
from lazaretto.store.postgres import store as served
from lazaretto.store.postgres.store import PostgresStore
from lazaretto.store.sql.group_commit import Ticket

OPTIONS = QueueOptions(lock_duration=30, policy=PoisonPolicy(receive_retry_count=3, max_retry_cycles=0))


@pytest.fixture
def broker(url: str, clock: ManualClock) -> Iterator[Broker]:
    with lazaretto.connect(url, clock=clock) as found:
        found.create_queue("work", OPTIONS)
        found.sender("work").send([Message(b"%d" % n) for n in range(10)])
        yield found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def ranges(broker: Broker) -> list[int]:
    """Return how many messages each range holds."""
    with broker.transaction() as tx:
        found = tx.execute("SELECT amount FROM lazaretto_range_locks ORDER BY last").fetchall()
    return [amount for (amount,) in found]


def commits(broker: Broker, server: Server) -> int:
    """Return how many commits have changed something."""
    where = broker.facts()["schema_name"]
    with psycopg.connect(server.url) as connection:
        ((number,),) = connection.execute(f'SELECT last_value FROM "{where}".lazaretto_version')
    return int(number)


def test_one_row_locks_them_all(broker: Broker) -> None:
    receiver = broker.receiver("work")
    messages = receiver.receive(6)
    assert ranges(broker) == [6]
    counts = broker.queue("work").counts
    assert (counts.locked, counts.active) == (6, 4)
    shown = broker.peek("work", 10)
    assert [m.state for m in shown] == [MessageState.LOCKED] * 6 + [MessageState.ACTIVE] * 4
    assert [m.locked_until for m in shown[:6]] == [messages[0].locked_until] * 6
    assert broker.check() == []
    receiver.complete(messages[1:3])
    receiver.complete(messages[5])
    assert ranges(broker) == [3]
    assert broker.check() == []
    receiver.complete([messages[0], *messages[3:5]])
    assert ranges(broker) == []
    assert [m.body for m in receiver.receive(10)] == [b"6", b"7", b"8", b"9"]


def test_one_alone_is_locked_in_its_own_row(broker: Broker) -> None:
    (message,) = broker.receiver("work").receive(1)
    assert ranges(broker) == []
    broker.receiver("work").complete(message)


@pytest.mark.parametrize("verb", ["abandon", "defer", "dead_letter", "release", "renew"])
def test_what_looks_at_one_leaves_the_others_in_their_range(
    broker: Broker, clock: ManualClock, verb: str
) -> None:
    receiver, another = broker.receiver("work"), broker.receiver("work")
    first, second = receiver.receive(4), another.receive(4)
    assert ranges(broker) == [4, 4]
    if verb == "renew":
        clock.advance(10)
        receiver.renew_lock(first[0])
    else:
        getattr(receiver, verb)(first[0])
    assert ranges(broker) == [3, 4]
    assert broker.queue("work").counts.locked == (8 if verb == "renew" else 7)
    assert broker.check() == []
    receiver.complete(first[1:])
    another.complete(second)
    assert ranges(broker) == []
    clock.advance(25)
    # The one that was renewed alone is still held.
    assert broker.queue("work").counts.locked == (verb == "renew")
    assert broker.check() == []


@pytest.mark.parametrize("alone", [False, True], ids=["beside others", "alone"])
def test_a_part_of_a_range_is_settled_in_one_commit(
    broker: Broker, clock: ManualClock, postgres: Server, alone: bool
) -> None:
    """What fails leaves its range with what is completed, whatever becomes of it."""
    store = broker._store
    assert isinstance(store, PostgresStore)
    while alone and not store._alone:
        broker.sender("work").send(Message(b"more"))
    receiver = broker.receiver("work")
    held = receiver.receive(9)
    outcomes = [
        Settlement(Outcome.COMPLETED),
        Settlement(Outcome.FAILED, Failure("Error", "it failed", "a stack")),
        Settlement(Outcome.COMPLETED),
        Settlement(Outcome.FAILED, delay=5),
        Settlement(Outcome.INVALID),
        Settlement(Outcome.DEAD_LETTERED),
        Settlement(Outcome.DEFERRED),
        Settlement(Outcome.RELEASED),
    ]
    before = commits(broker, postgres)
    store.run(Settle([Settled(*pair) for pair in zip(held, outcomes, strict=False)]))
    assert commits(broker, postgres) == before + 1
    assert ranges(broker) == [1]
    counts = broker.queue("work").counts
    assert (counts.locked, counts.dead_letter, counts.deferred, counts.delayed) == (1, 2, 1, 1)
    assert broker.check() == []
    again = receiver.receive(2)
    assert [(m.body, m.attempt) for m in again] == [(b"1", 2), (b"7", 2)]
    clock.advance(31)
    assert [(m.body, m.attempt) for m in receiver.receive(4)] == [
        (b"1", 3),
        (b"3", 2),
        (b"7", 3),
        (b"8", 2),
    ]
    assert ranges(broker) == []
    assert broker.check() == []


def test_a_range_runs_out(broker: Broker, clock: ManualClock, url: str) -> None:
    receiver = broker.receiver("work")
    messages = receiver.receive(3)
    clock.advance(31)
    with pytest.raises(MessageLockLost):
        receiver.complete(messages)
    with lazaretto.connect(url, clock=clock) as other:
        again = other.receiver("work").receive(4)
        assert [(m.body, m.attempt) for m in again] == [(b"0", 2), (b"1", 2), (b"2", 2), (b"3", 1)]
        (attempt,) = broker.attempts("work", again[0].sequence_number)
        assert attempt.outcome is Outcome.LOCK_EXPIRED
        with pytest.raises(MessageLockLost):
            receiver.complete(messages[0])
        other.receiver("work").complete(again)
    assert broker.queue("work").counts.active == 6


def test_two_processes_take_turns(broker: Broker, url: str, clock: ManualClock) -> None:
    with lazaretto.connect(url, clock=clock) as other:
        here, there = broker.receiver("work"), other.receiver("work")
        taken = [(one, one.receive(2)) for one in (here, there, here, there, here)]
        assert [m.body for _, some in taken for m in some] == [b"%d" % n for n in range(10)]
        assert there.receive(5) == []
        for one, some in reversed(taken):
            one.complete(some)
        assert ranges(broker) == []


def test_those_that_expire_are_not_in_it(broker: Broker, clock: ManualClock) -> None:
    broker.sender("work").send([Message(b"short", time_to_live=5), Message(b"long")])
    receiver = broker.receiver("work")
    receiver.complete(receiver.receive(10))
    clock.advance(6)
    messages = receiver.receive(5)
    assert [m.body for m in messages] == [b"long"]
    receiver.complete(messages)
    broker.sender("work").send([Message(b"short", time_to_live=5), Message(b"long")])
    messages = receiver.receive(5)
    clock.advance(6)
    # Held, it outlives its time.
    assert broker.queue("work").counts.locked == 2
    receiver.complete(messages)
    assert broker.check() == []


def test_one_that_is_over_is_not_held(broker: Broker, clock: ManualClock) -> None:
    # More than a receive looks after by itself.
    many = [Message(b"short", time_to_live=5) for _ in range(600)]
    broker.sender("work").send([*many, Message(b"last")])
    clock.advance(6)
    messages = broker.receiver("work").receive(20)
    assert [m.body for m in messages[-2:]] == [b"9", b"last"]
    held = [m for m in broker.peek("work", 1000) if m.state is MessageState.LOCKED]
    assert len(held) == broker.queue("work").counts.locked == len(messages)
    assert broker.check() == []


def test_what_needs_no_lock_leaves_them(broker: Broker) -> None:
    broker.create_queue("other", OPTIONS)
    broker.sender("other").send([Message(b"1"), Message(b"2")])
    other = broker.receiver("other")
    other.release(other.receive(1)[0])
    held = broker.receiver("work").receive(5)
    assert ranges(broker) == [5]
    broker.sender("work").send([Message(b"%d" % n) for n in range(100)])
    other.complete(other.receive(1))
    assert broker.receiver("work", subqueue="dead_letter").receive(1) == []
    assert ranges(broker) == [5]
    broker.receiver("work").complete(held)


def test_timers_of_a_commit_that_is_undone_are_looked_after_again(broker: Broker, clock: ManualClock) -> None:
    broker.create_queue("other", OPTIONS)
    broker.sender("other").send(Message(b"1"))
    receiver, other = broker.receiver("work"), broker.receiver("other")
    receiver.receive(2)
    done = other.receive(1)
    other.complete(done)
    clock.advance(31)
    again = Settle([Settled(done[0], COMPLETE)])
    group = [Ticket(ReceiveAndDelete(EntityPath("work"), 1)), Ticket(again)]
    store = broker._store
    assert isinstance(store, PostgresStore)
    # As the threads of two callers whose operations share a commit.
    with store._group.writing():
        store._commit(group)
    assert isinstance(group[1].error, MessageLockLost)
    assert [m.body for m in group[0].answer] == [b"0"]
    assert [(m.body, m.attempt) for m in receiver.receive(2)] == [(b"1", 2), (b"2", 1)]


def test_workers_that_do_not_know_them_are_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if the step that begins range locks were the newest: this version's statements need the others.
    steps = schema.migrations()
    steps.append(steps.pop(schema.RANGE_LOCKS - 1))
    steps = [step._replace(number=number) for number, step in enumerate(steps, 1)]
    begins = steps[-1].number
    monkeypatch.setattr(served, "RANGE_LOCKS", begins)
    monkeypatch.setattr(schema, "migrations", lambda: steps[:-1])
    with lazaretto.connect(url, create=True) as between:
        assert between.facts()["schema"] == begins - 1
        monkeypatch.setattr(schema, "migrations", lambda: steps)
        between.create_queue("work", OPTIONS)
        between.sender("work").send([Message(b"%d" % n) for n in range(10)])
        messages = between.receiver("work").receive(3)
        assert ranges(between) == []
        assert migrate_store(url, after=True) == [begins]
        with lazaretto.connect(url) as new:
            more = new.receiver("work").receive(3)
            assert ranges(new) == [3]
            rest = between.receiver("work").receive(9)
            assert [m.body for m in [*messages, *more, *rest]] == [b"%d" % n for n in range(10)]
            between.receiver("work").complete([*messages, *rest])
            new.receiver("work").complete(more)
        assert between.check() == []


def test_a_wrong_number_is_found(broker: Broker, postgres: Server) -> None:
    broker.receiver("work").receive(3)
    where = broker.facts()["schema_name"]
    with psycopg.connect(postgres.url) as connection:
        connection.execute(f'UPDATE "{where}".lazaretto_range_locks SET amount = 2')
    assert broker.check() == ["ranges that lock another number of messages: 1"]


def test_a_copy_has_none(broker: Broker, url: str, tmp_path: Path) -> None:
    broker.receiver("work").receive(3)
    file = f"sqlite:///{tmp_path / 'copy.db'}"
    copy_store(url, file)
    with lazaretto.connect(file) as copied:
        found = copied.receiver("work").receive(10)
        assert [m.attempt for m in found] == [2] * 3 + [1] * 7


def test_a_claim_beside_them_is_left_alone(broker: Broker, url: str, clock: ManualClock) -> None:
    """What has ranges written first cannot be planned where a claim locks some, and is run in turn."""
    consumer = ClaimConsumer(broker._store, "work", "job")
    consumer.attach()
    with lazaretto.connect(url, clock=clock) as other:
        receiver = other.receiver("work")
        first = receiver.receive(3)
        consumer.take(0, max_rows=4)
        second = receiver.receive(3)
        assert [m.body for m in second] == [b"7", b"8", b"9"]
        receiver.abandon(second[0])
        receiver.complete([first[0], *second[1:]])
        receiver.defer(first[1])
        assert [m.body for m in receiver.receive(5)] == [b"7"]
        counts = broker.queue("work").counts
        assert (counts.locked, counts.deferred, counts.active) == (4 + 2, 1, 0)
        assert broker.check() == []
    states = [m.state for m in broker.peek("work", 20)]
    assert states.count(MessageState.LOCKED) == 6
    assert consumer.revoke() == 1
    assert [m.body for m in broker.receiver("work").receive(10)] == [b"3", b"4", b"5", b"6"]


def test_several_settle_parts_of_ranges_at_once(broker: Broker, url: str) -> None:
    """Whoever settles a part leaves all others as they are, in two processes' brokers."""
    policy = PoisonPolicy(receive_retry_count=1000, max_retry_cycles=0)
    broker.create_queue("busy", QueueOptions(lock_duration=60, policy=policy))
    bodies = {b"%d" % n for n in range(120)}
    broker.sender("busy").send([Message(body) for body in sorted(bodies)])
    completed: list[bytes] = []
    deferred: list[int] = []
    errors: list[BaseException] = []

    def work(own: Broker, seed: int) -> None:
        chance = random.Random(seed)
        receiver = own.receiver("busy")
        try:
            while messages := receiver.receive(chance.randint(2, 12), max_wait=0.5):
                chance.shuffle(messages)
                while messages:
                    size = chance.randint(1, len(messages))
                    part, messages = messages[:size], messages[size:]
                    verb = chance.choice(("complete", "complete", "abandon", "release", "defer", "renew"))
                    if verb == "renew":
                        receiver.renew_lock(part[0])
                        messages += part
                        continue
                    if verb == "complete":
                        receiver.complete(part)
                        completed.extend(m.body for m in part)
                        continue
                    for message in part:
                        getattr(receiver, verb)(message)
                    if verb == "defer":
                        deferred.extend(m.sequence_number for m in part)
        except BaseException as error:
            errors.append(error)

    with lazaretto.connect(url, clock=broker._store.clock) as other:
        threads = [
            threading.Thread(target=work, args=(own, seed)) for seed, own in enumerate((broker, other) * 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert ranges(broker) == []
    rest = broker.receiver("busy").receive_deferred(deferred)
    assert sorted([*completed, *(m.body for m in rest)]) == sorted(bodies)
    assert broker.check() == []
