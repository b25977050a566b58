"""Messages received together are locked as a range, and nobody can tell but by the speed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from servers import Server

import lazaretto
from lazaretto import Broker, ManualClock, Message, MessageLockLost, MessageState, PoisonPolicy, QueueOptions
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.messages.receive import ReceiveAndDelete
from lazaretto.engine.messages.settle import COMPLETE, Settle, Settled
from lazaretto.model.entities import EntityPath
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


@pytest.mark.parametrize("verb", ["abandon", "defer", "dead_letter", "renew"])
def test_what_looks_at_one_writes_all_locks_down(broker: Broker, verb: str) -> None:
    receiver, another = broker.receiver("work"), broker.receiver("work")
    first, second = receiver.receive(4), another.receive(4)
    assert ranges(broker) == [4, 4]
    if verb == "renew":
        receiver.renew_lock(first[0])
    else:
        getattr(receiver, verb)(first[0])
    assert ranges(broker) == []
    assert broker.queue("work").counts.locked == (8 if verb == "renew" else 7)
    receiver.complete(first[1:])
    another.complete(second)
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
