"""Claims hold their queue alone: whoever sends, receives or settles in another one waits for none of them."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from servers import Server

import lazaretto
from lazaretto import Broker, ManualClock, Message, Outcome, PoisonPolicy, QueueOptions
from lazaretto.broker.claims import ClaimConsumer, _keys_of
from lazaretto.engine.claims.outbox import ForgetStaged, SendStaged, StageMessages
from lazaretto.engine.claims.settle_claims import StagedRow, staged_rows
from lazaretto.engine.messages.prepare import prepare_all
from lazaretto.engine.timers import Sweep
from lazaretto.errors import StoreBusy
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import Failure
from lazaretto.model.keys import lower_bound
from lazaretto.store.postgres.commits import WRITING
from lazaretto.store.postgres.confined_commits import ConfinedCommits
from lazaretto.store.postgres.queue_locks import QueueLock, lock_of
from lazaretto.store.records.claims import ShardRecord

from .test_silence import Proxy
from .witness import store_of

_ROWS = 40
#: By then whoever waits for nobody is done.
_SOON = 120.0
_FAILED = Failure("ValueError", "no", "a stack")
#: The tables of which each operation on claims writes a row that is there before.
_TABLES = ("lazaretto_consumers", "lazaretto_claims", "lazaretto_shards", "lazaretto_messages")


class Claims:
    """A queue with two claims, of which the first is open and done."""

    def __init__(self, broker: Broker, partitions: int = 1) -> None:
        options = QueueOptions(policy=PoisonPolicy(receive_retry_count=3), partitions=partitions)
        broker.create_queue("claimed", options)
        broker.create_queue("out")
        broker.sender("claimed").send([Message(b"%d" % n) for n in range(_ROWS)])
        self.broker = broker
        self.consumer = ClaimConsumer(broker._store, "claimed", "job")
        self.consumer.attach()
        assert self.consumer.take(0, max_rows=_ROWS // 2, shards=2) == 1
        self.consumer.revoke(1)
        assert self.consumer.take(1, max_rows=_ROWS // 2, shards=2) == 2
        self.shards = [shard for _, shard in self.consumer.shards(1, 2)]

    def keys(self, place: int) -> list[int]:
        """Return the keys of a shard's messages."""
        return broker_keys(self.broker, self.shards[place])

    def stage(self, stage: str, others: list[StagedRow] | None = None) -> None:
        """Stage all of the claim as completed, but for others."""
        left = others or []
        not_completed = {row.key for row in left}
        for place, shard in enumerate(self.shards):
            keys = self.keys(place)
            own = [row for row in left if row.key in keys]
            done = [key for key in keys if key not in not_completed]
            self.consumer.stage(stage, staged_rows(shard.token, done, own, {}))


def broker_keys(broker: Broker, shard: ShardRecord) -> list[int]:
    """Return the keys of a shard's messages."""
    return broker._store.read(functools.partial(_keys_of, shard))


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a commit fail that gives up to hold its queues alone."""
    run = ConfinedCommits.run

    def whole(self: ConfinedCommits, *arguments: Any, **named: Any) -> Any:
        found: Any = run(self, *arguments, **named)
        assert found is not None, f"{arguments[0]} took the store's lock"
        return found

    monkeypatch.setattr(ConfinedCommits, "run", whole)


@pytest.fixture
def claims(hosts: tuple[Broker, Broker]) -> Claims:
    return Claims(hosts[0])


@contextlib.contextmanager
def held_up(server: Server, broker: Broker, tables: tuple[str, ...] = _TABLES) -> Iterator[None]:
    """Lock rows of claims within a block, so that whoever writes one of them waits."""
    schema = store_of(broker).schema
    with psycopg.connect(server.url) as connection:
        for table in tables:
            connection.execute(f'SELECT * FROM "{schema}".{table} FOR UPDATE')
        yield


def wait_until_blocked(server: Server, kinds: tuple[str, ...] = ("transactionid", "tuple")) -> None:
    """Wait until a commit waits for a lock of these kinds."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        end = time.monotonic() + _SOON
        while time.monotonic() < end:
            query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = ANY(%s)"
            found = connection.execute(query, (list(kinds),)).fetchone()
            if found and found[0]:
                return
            time.sleep(0.01)
    raise AssertionError("no commit waits")


class Call(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.answer: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        """Wait for the answer."""
        self.join(_SOON)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.answer


def cycle(broker: Broker) -> None:
    """Send, receive and complete in another queue."""
    broker.sender("other").send(Message(b"x"))
    receiver = broker.receiver("other")
    receiver.complete(receiver.receive(1))


_CALLS: dict[str, Callable[[Claims], object]] = {
    "attach": lambda c: ClaimConsumer(c.broker._store, "claimed", "job").attach(),
    "take": lambda c: c.consumer.take(2, max_rows=5),
    "start": lambda c: c.consumer.start(c.shards[0].token, "worker"),
    "begin": lambda c: c.consumer.begin(c.shards[0].token),
    "mark": lambda c: c.consumer.mark(c.shards[0].token, c.shards[0].first),
    "note an error": lambda c: c.consumer.note_error(c.shards[0].token),
    "note a cancellation": lambda c: c.consumer.note_cancellation(),
    "renew": lambda c: c.consumer.renew(),
    "settle": lambda c: c.consumer.settle([2], ["done"]),
    "settle nothing": lambda c: c.consumer.settle([2], []),
    "revoke": lambda c: c.consumer.revoke(2),
    "trim": lambda c: c.consumer.trim(1),
}


@pytest.mark.parametrize("name", _CALLS)
def test_nobody_else_waits_for_a_claim(
    claims: Claims, hosts: tuple[Broker, Broker], postgres: Server, no_fallback: None, name: str
) -> None:
    claims.stage("done")
    # Only a task that reads a shard notes anything of it.
    claims.consumer.start(claims.shards[0].token, "worker")
    with held_up(postgres, claims.broker):
        call = Call(lambda: _CALLS[name](claims))
        wait_until_blocked(postgres)
        for broker in (*hosts, hosts[0]):
            assert Call(functools.partial(cycle, broker)).result() is None
        assert call.is_alive()
    call.result()
    assert claims.broker.check() == []


@pytest.mark.parametrize("partitions", [1, 4])
def test_what_a_claim_has_sent_and_failed_is_one_commit(
    hosts: tuple[Broker, Broker], no_fallback: None, partitions: int
) -> None:
    claims = Claims(hosts[0], partitions)
    store, path = claims.broker._store, EntityPath.parse("out")
    queue = store.read(lambda tx: tx.queues.by_path("out"))
    assert queue is not None
    first, second, third = claims.keys(0)[:3]
    others = [
        StagedRow(first, Outcome.COMPLETED.value, sends=[("out", prepare_all([Message(b"result")]))]),
        StagedRow(second, Outcome.FAILED.value, _FAILED),
        StagedRow(third, Outcome.DEAD_LETTERED.value, None, "bad", "it is"),
    ]
    claims.stage("done", others)
    (summary,) = claims.consumer.settle([2], ["done"])
    assert summary.outcomes == {"completed": _ROWS // 2 - 2, "failed": 1, "dead_lettered": 1}
    for broker in hosts:
        assert [m.body for m in broker.peek("out", 10)] == [b"result"]
        assert broker.queue("claimed").counts.total == _ROWS // 2 + 2
        assert broker.queue("claimed").counts.dead_letter == 1
        assert broker.check() == []
    assert store.run(StageMessages(path, "s", prepare_all([Message(b"staged")] * 3))) is None
    assert store.run(SendStaged(path, ["s"], "writer", 1)) == 3
    assert store.run(StageMessages(path, "s", prepare_all([Message(b"staged")] * 3))) is None
    assert store.run(SendStaged(path, ["s"], "writer", 1)) == 0
    store.run(ForgetStaged(path, ["s"]))
    assert hosts[1].queue("out").counts.total == 4


def test_who_writes_events_waits_for_the_end_of_a_claim_alone(
    claims: Claims, hosts: tuple[Broker, Broker], postgres: Server, no_fallback: None
) -> None:
    one, other = hosts
    claims.stage("done")
    seen = [event.position for event in other.events()]
    with held_up(postgres, one):
        call = Call(lambda: claims.consumer.settle([2], ["done"]))
        wait_until_blocked(postgres)
        other.sender("other").send(Message(b"x"))
        receiver = other.receiver("other")
        receiver.dead_letter(receiver.receive(1), reason="bad")
        (letter,) = [event for event in other.events() if event.position not in seen]
        assert letter.kind == "dead_lettered"
    call.result()
    # It came later, and no follower has passed it.
    (settled,) = other.events(after=letter.position)
    assert settled.kind == "claim_settled"


def test_a_claim_waits_for_whoever_writes_events(
    claims: Claims, hosts: tuple[Broker, Broker], postgres: Server, no_fallback: None
) -> None:
    """They may wait for the claim's queue, so it begins anew, and takes their lock before that one."""
    store = store_of(hosts[0])
    queue = store.read(lambda tx: tx.queues.by_path("claimed"))
    assert queue is not None
    claims.stage("done")
    with psycopg.connect(postgres.url) as connection:
        log, end = (lock_of(store._number, one, QueueLock.END) for one in (0, queue.queue_id))
        connection.execute(
            "SELECT pg_advisory_xact_lock_shared(%s, %s), pg_advisory_xact_lock(%s)",
            (WRITING, store._number, log),
        )
        call = Call(lambda: claims.consumer.settle([2], ["done"]))
        wait_until_blocked(postgres, ("advisory",))
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (end,))
        assert call.is_alive()
    call.result()
    assert hosts[1].queue("claimed").counts.total == _ROWS // 2
    assert hosts[1].check() == []


def test_who_waits_in_vain_for_a_queue_holds_up_no_other_one(
    url: str, hosts: tuple[Broker, Broker], postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited for the lock of the store next would have all others wait behind it."""
    store = store_of(hosts[1])
    queue = store.read(lambda tx: tx.queues.by_path("work"))
    assert queue is not None

    def begin(*_: object) -> None:
        raise AssertionError("it took the lock of the store")

    with (
        lazaretto.connect(url, timeout=1) as third,
        psycopg.connect(postgres.url) as connection,
    ):
        third.sender("other").send(Message(b"x"))
        monkeypatch.setattr(store_of(third)._commits, "begin", begin)
        connection.execute(
            "SELECT pg_advisory_xact_lock_shared(%s, %s), pg_advisory_xact_lock(%s)",
            (WRITING, store._number, lock_of(store._number, queue.queue_id, QueueLock.END)),
        )
        with pytest.raises(StoreBusy):
            third.sender("work").send(Message(b"x"))
        third.sender("other").send(Message(b"x"))
        connection.rollback()
        third.sender("work").send(Message(b"x"))
        monkeypatch.undo()


def test_a_claim_on_another_server_starts_from_its_first_message(
    hosts: tuple[Broker, Broker], postgres: Server
) -> None:
    """After a failover, numbers that this process has seen taken may be given again."""
    one, _ = hosts
    store = store_of(one)
    consumer = ClaimConsumer(one._store, "work", "job")
    consumer.attach()
    one.sender("work").send([Message(b"x")] * 5)
    queue = store.read(lambda tx: tx.queues.by_path("work"))
    assert queue is not None
    # As the server was that is gone.
    store._memory.cursors[queue.queue_id] = lower_bound(queue.queue_id) + 3
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 60000)", (store._connection.pid,))
    assert consumer.take(0) == 1
    assert sum(shard.rows for _, shard in consumer.shards(0, 1)) == 5


def test_what_is_known_of_another_server_counts_for_nothing(hosts: tuple[Broker, Broker]) -> None:
    """A network that was cut without a word hides a failover from the writer, not from new connections."""
    one, other = hosts
    store = store_of(one)
    consumer = ClaimConsumer(one._store, "work", "job")
    consumer.attach()
    other.sender("work").send([Message(b"x")] * 9)
    queue = store.read(lambda tx: tx.queues.by_path("work"))
    assert queue is not None
    first = lower_bound(queue.queue_id)
    store._connection.era -= 1
    store._memory.cursors[queue.queue_id] = first + 3
    assert consumer.take(0, max_rows=4) == 1
    (shard,) = (shard for _, shard in consumer.shards(0, 1))
    assert shard.first == first + 1
    assert store._memory.cursors[queue.queue_id] == first + 3


def test_a_claim_leaves_a_server_that_is_away_to_the_writer(
    url: str, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer waits for it, and has a connection of its own where the server has no more to give."""
    left: list[int] = []
    naps: list[float] = []
    run = ConfinedCommits.run

    with Proxy(postgres) as proxy, lazaretto.connect(proxy.url(url), timeout=30) as broker:
        try:
            broker.create_queue("work")
            broker.sender("work").send(Message(b"x"))
            consumer = ClaimConsumer(broker._store, "work", "job")
            consumer.attach()
            store = store_of(broker)
            wait = store._patience._ended.wait

            def noted(self: ConfinedCommits, *arguments: Any, **named: Any) -> Any:
                naps.clear()
                assert run(self, *arguments, **named) is None
                left.append(len(naps))
                proxy.frozen.clear()

            def nap(seconds: float) -> bool:
                # The broker's own thread waits for the server, too.
                if threading.current_thread() is threading.main_thread():
                    naps.append(seconds)
                return wait(seconds)

            monkeypatch.setattr(store._patience._ended, "wait", nap)
            monkeypatch.setattr(ConfinedCommits, "run", noted)
            for idle in store._readers.take_idle():
                idle.close()
            proxy.refuse()
            assert consumer.take(0) == 1
            assert left == [0]
        finally:
            proxy.frozen.clear()


def test_what_is_set_otherwise_takes_the_lock_of_the_store(hosts: tuple[Broker, Broker]) -> None:
    """A message that fails may halt its queue, which nobody does beside others."""
    one, other = hosts
    policy = PoisonPolicy(receive_retry_count=0, on_poison=lazaretto.Disposition.FAULT)
    one.create_queue("halting", QueueOptions(policy=policy))
    one.sender("halting").send([Message(b"x")] * 3)
    consumer = ClaimConsumer(one._store, "halting", "job")
    consumer.attach()
    assert consumer.take(0) == 1
    ((_, shard),) = consumer.shards(0, 1)
    keys = broker_keys(one, shard)
    failed = StagedRow(keys[0], Outcome.FAILED.value, _FAILED)
    consumer.stage("done", staged_rows(shard.token, keys[1:], [failed], {}))
    consumer.settle([1], ["done"])
    assert other.queue("halting").halted_by is not None
    assert other.check() == []
    with pytest.raises(lazaretto.PoisonMessageError):
        consumer.take(1)


def test_a_queue_made_anew_is_another_one(hosts: tuple[Broker, Broker]) -> None:
    one, other = hosts
    claims = Claims(one)
    other.delete_queue("claimed")
    with pytest.raises(lazaretto.EntityNotFound):
        claims.consumer.renew()
    other.create_queue("claimed", QueueOptions(partitions=3))
    with pytest.raises(lazaretto.ClaimFenced):
        claims.consumer.renew()
    claims.consumer.attach()
    other.sender("claimed").send([Message(b"%d" % n) for n in range(9)])
    assert claims.consumer.take(0) == 1
    assert [claim.rows for claim, _ in claims.consumer.shards(0, 1)] == [9]
    assert one.check() == []


def test_timers_of_other_queues_do_not_wait_for_a_claim(
    claims: Claims, hosts: tuple[Broker, Broker], postgres: Server, clock: ManualClock, no_fallback: None
) -> None:
    one, other = hosts
    other.create_queue("late", QueueOptions(lock_duration=5))
    other.sender("late").send(Message(b"x"))
    (taken,) = other.receiver("late").receive(1)
    claims.stage("done")
    # Of fresh messages, which it locks by a range.
    assert claims.consumer.take(2) == 3
    with held_up(postgres, one, ("lazaretto_claims",)):
        call = Call(lambda: claims.consumer.settle([2], ["done"]))
        wait_until_blocked(postgres)
        clock.advance(6)
        Call(lambda: other._store.run(Sweep())).result()
        (again,) = Call(lambda: other.receiver("late").receive(1)).result()
        assert (again.sequence_number, again.attempt) == (taken.sequence_number, 2)
    call.result()
    assert one.check() == []
