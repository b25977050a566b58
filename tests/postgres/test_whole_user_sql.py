"""The user's own SQL keeps nobody from the broker: its commit alone takes locks, with its last round trip."""

from __future__ import annotations

import multiprocessing
import random
import threading

import psycopg
import pytest
from servers import Server

import lazaretto
from lazaretto import (
    Broker,
    ManualClock,
    Message,
    MessageLockLost,
    PoisonPolicy,
    QueueDisabled,
    QueueOptions,
    QueueStatus,
    StoreError,
    StoreUnavailable,
    TransactionError,
)
from lazaretto.host import Handler, HandlerContext, ServiceHost

from .witness import IDLE, Witness, store_of, turns_that_lock

_HELD = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid() AND objsubid = 2"
)

#: What the server says last when it waits for a client that has a transaction open.
_OPEN = b"Z\x00\x00\x00\x05T"


@pytest.fixture
def ledger(hosts: tuple[Broker, Broker]) -> str:
    with hosts[1].transaction() as tx:
        tx.execute("CREATE TABLE ledger (id BIGINT PRIMARY KEY, body BYTEA)")
    return "INSERT INTO ledger VALUES (%s, %s)"


def rows(broker: Broker) -> list[tuple[int, bytes]]:
    with broker.transaction() as tx:
        found = tx.execute("SELECT id, body FROM ledger ORDER BY id").fetchall()
    return [(number, bytes(body)) for number, body in found]


def test_a_commit_with_sql_takes_its_locks_with_its_last_round_trip(
    hosts: tuple[Broker, Broker], witness: Witness, postgres: Server, ledger: str
) -> None:
    one, other = hosts
    theirs = other.sender("work")
    for turn in range(3):
        theirs.send([Message(b"x")] * 4)
        with one.transaction() as tx, psycopg.connect(postgres.url, autocommit=True) as looking:
            messages = tx.receive("work", 4)
            tx.execute(ledger, (turn, b"y"))
            assert looking.execute(_HELD).fetchone() == (0,)
            tx.send("other", Message(b"next"))
            tx.abandon(messages[1], error="it failed")
            tx.dead_letter(messages[2], reason="bad")
            (own,) = (said for said in witness.said.values() if said and said[-1][1].endswith(_OPEN))
            begun = len(own)
            tx.commit()
        end = next(n for n in range(begun, len(own)) if own[n][1].endswith(IDLE))
        # All is read before, without a lock. What is done under locks is the last thing that is said; the
        # first time it is in pieces, because the statements are prepared with it.
        locking = [place for place in turns_that_lock(own) if begun <= place < end]
        assert locking == [end - 1] or not turn
    assert [body for _, body in rows(one)] == [b"y"] * 3
    assert one.queue("work").counts.dead_letter == 3
    assert one.queue("other").counts.active == 3
    assert one.check() == []


def test_others_go_on_while_sql_runs(hosts: tuple[Broker, Broker], ledger: str) -> None:
    one, other = hosts
    one.sender("work").send([Message(b"1"), Message(b"2"), Message(b"3")])
    with one.transaction() as tx:
        (first,) = tx.receive("work")
        tx.execute(ledger, (1, first.body))
        with other.transaction() as theirs:
            (second,) = theirs.receive("work")
            theirs.execute(ledger, (2, second.body))
            theirs.send("work", Message(b"4"))
        receiver = other.receiver("work")
        receiver.complete(receiver.receive(1))
        assert other.create_queue("new") is not None
        tx.send("new", Message(b"5"))
    assert [m.body for m in one.peek("work", 9)] == [b"4"]
    assert [m.body for m in one.peek("new", 9)] == [b"5"]
    assert rows(one) == [(1, b"1"), (2, b"2")]


def test_sql_is_undone_with_what_cannot_be_committed(
    hosts: tuple[Broker, Broker], ledger: str, clock: ManualClock
) -> None:
    one, other = hosts
    other.sender("work").send([Message(b"1"), Message(b"2")])
    with pytest.raises(QueueDisabled), one.transaction() as tx:
        tx.receive("work")
        tx.execute(ledger, (1, b"1"))
        tx.send("other", Message(b"x"))
        other.set_status("other", QueueStatus.SEND_DISABLED)
    other.set_status("other", QueueStatus.ACTIVE)
    with pytest.raises(MessageLockLost), one.transaction() as tx:
        tx.receive("work")
        tx.execute(ledger, (2, b"1"))
        clock.advance(31)
    # A constraint that is looked at in the end is looked at before anything of the broker's is locked.
    with one.transaction() as tx:
        tx.execute("CREATE TABLE child (n BIGINT REFERENCES ledger (id) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(StoreError, match="foreign key"), one.transaction() as tx:
        tx.receive("work")
        tx.execute("INSERT INTO child VALUES (7)")
        tx.send("other", Message(b"x"))
    assert rows(one) == []
    assert one.queue("other").counts.total == 0
    with one.transaction() as tx:
        tx.complete(tx.receive("work", 2))
        tx.execute(ledger, (1, b"done"))
    assert one.queue("work").counts.active == 0
    assert one.check() == []


@pytest.mark.parametrize(
    "lock", ["FOR UPDATE", "for no key  update", "FOR SHARE", "FOR KEY SHARE SKIP LOCKED"]
)
def test_rows_of_the_broker_cannot_be_locked(hosts: tuple[Broker, Broker], ledger: str, lock: str) -> None:
    with hosts[0].transaction() as tx:
        both = "SELECT l.id FROM ledger l, lazaretto_messages AS m WHERE m.key = l.id"
        for refused in (
            f"SELECT key FROM lazaretto_messages {lock}",
            "SELECT key FROM lazaretto_messages FOR UPDATE OF lazaretto_messages",
            f"{both} {lock}",
            f"{both} FOR UPDATE OF l, m",
        ):
            with pytest.raises(TransactionError, match="lock rows of the broker's table lazaretto_messages"):
                tx.execute(refused)
        tx.execute(f"SELECT id FROM ledger {lock}")
        tx.execute(f"{both} FOR UPDATE OF l SKIP LOCKED")


def test_what_cannot_be_planned_commits_with_sql_too(hosts: tuple[Broker, Broker], ledger: str) -> None:
    one, other = hosts
    one.dialogs.create_service("Front", "front")
    one.dialogs.create_service("Shop", "shop", ["DEFAULT"])
    with one.dialogs.transaction() as work:
        work.send(work.begin_dialog("Front", "Shop"), body=b"ask")
        work.execute(ledger, (1, b"asked"))
    with other.dialogs.transaction("shop") as work:
        (message,) = work.receive()
        work.execute(ledger, (2, bytes(message.body)))
        work.end(message.conversation)
    assert rows(one) == [(1, b"asked"), (2, b"ask")]
    assert one.check() == []


def test_a_session_that_ends_in_the_middle_commits_nothing(hosts: tuple[Broker, Broker], ledger: str) -> None:
    one, other = hosts
    other.sender("work").send(Message(b"x"))
    with (
        psycopg.connect(store_of(one)._conninfo, autocommit=True) as ending,
        pytest.raises(StoreUnavailable),
        one.transaction() as tx,
    ):
        tx.receive("work")
        (pid,) = tx.execute("SELECT pg_backend_pid()").fetchone()
        tx.execute(ledger, (1, b"x"))
        tx.send("other", Message(b"y"))
        ending.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))
    assert rows(one) == []
    assert one.queue("other").counts.total == 0
    (again,) = other.receiver("work").receive(1)
    assert (again.body, again.attempt) == (b"x", 2)
    # The thread is free to work, on another session.
    with one.transaction() as tx:
        tx.execute(ledger, (1, b"again"))
        tx.send("other", Message(b"y"))
    assert rows(one) == [(1, b"again")]
    assert one.queue("other").counts.total == 1


def test_sql_that_fails_is_alone_undone(hosts: tuple[Broker, Broker], ledger: str) -> None:
    one, other = hosts
    other.sender("work").send([Message(b"1"), Message(b"2")])
    with one.transaction() as tx:
        first, second = tx.receive("work", 2)
        tx.execute(ledger, (1, first.body))
        with pytest.raises(psycopg.errors.UniqueViolation):
            tx.execute(ledger, (1, second.body))
        with pytest.raises(psycopg.errors.ActiveSqlTransaction):
            tx.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        tx.send("other", Message(b"next"))
    assert rows(one) == [(1, b"1")]
    assert one.queue("work").counts.total == 0
    assert one.queue("other").counts.active == 1


def test_what_is_counted_is_counted_once(hosts: tuple[Broker, Broker], ledger: str) -> None:
    one, other = hosts
    one.sender("work").send([Message(b"1"), Message(b"2")])
    one.sender("other").send(Message(b"0"))
    with one.transaction() as tx:
        _, second = tx.receive("work", 2)
        tx.execute(ledger, (1, b"1"))
        tx.send("other", [Message(b"a"), Message(b"b")])
        tx.dead_letter(second, reason="bad")
        # What is known of the queue is wrong by now: the first attempt fails, and another does all again.
        other.update_queue("other", lock_duration=77)
    store_of(one).write_rates()
    (work,), (to,) = (one.rates(path, span="hour", limit=1) for path in ("work", "other"))
    assert (work.completed, work.dead, to.sent) == (1, 1, 3)
    assert [cause.total for cause in one.triage("work").causes] == [1]


def _work(url: str, seed: int) -> None:
    """Move messages from queue to queue, each noted in a row of its own in the same commit."""
    draw = random.Random(seed)
    note = "INSERT INTO moves (body) VALUES (%s)"

    def run(broker: Broker) -> None:
        while True:
            with broker.transaction() as tx:
                messages = tx.receive("from", draw.choice((1, 1, 3)), max_wait=1.0)
                if not messages:
                    return
                for message in messages:
                    if draw.random() < 0.1:
                        tx.abandon(message, error="now and then")
                        continue
                    tx.execute(note, (message.body,))
                    tx.send(draw.choice(("left", "right")), Message(message.body))

    with lazaretto.connect(url, timeout=60) as broker:
        threads = [threading.Thread(target=run, args=(broker,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_several_processes_commit_with_sql_at_once(url: str) -> None:
    with lazaretto.connect(url) as owner:
        policy = PoisonPolicy(receive_retry_count=1_000)
        owner.create_queue("from", QueueOptions(policy=policy))
        for path in ("left", "right"):
            owner.create_queue(path)
        with owner.transaction() as tx:
            tx.execute("CREATE TABLE moves (id BIGSERIAL PRIMARY KEY, body BYTEA)")
        bodies = [b"%d" % n for n in range(150)]
        owner.sender("from").send([Message(body) for body in bodies])
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=_work, args=(url, seed)) for seed in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            assert process.exitcode == 0
        moved = [m.body for path in ("left", "right") for m in owner.receiver(path).receive(1000)]
        with owner.transaction() as tx:
            noted = [bytes(body) for (body,) in tx.execute("SELECT body FROM moves").fetchall()]
        assert sorted(moved) == sorted(noted) == sorted(bodies)
        assert owner.queue("from").counts.total == 0
        assert owner.check() == []


def test_a_host_s_sql_keeps_nobody_waiting(hosts: tuple[Broker, Broker], ledger: str) -> None:
    one, other = hosts
    entered, go_on, done = threading.Event(), threading.Event(), threading.Event()
    with psycopg.connect(store_of(one)._conninfo, autocommit=False) as blocking:
        blocking.execute("INSERT INTO ledger VALUES (1, 'first')")

        def work(message: lazaretto.ReceivedMessage, context: HandlerContext) -> None:
            context.execute(ledger, (1 + message.attempt, message.body))
            context.execute("INSERT INTO ledger VALUES (1, 'second') ON CONFLICT DO NOTHING")
            context.send("other", Message(b"done"))
            entered.set()

        other.sender("work").send(Message(b"x"))
        with ServiceHost(one, Handler("work", work, isolation="inline")):
            assert entered.wait(120)

            def use() -> None:
                # The host waits for a row of somebody else's; the broker goes on.
                other.sender("work").send(Message(b"y"))
                one.sender("other").send(Message(b"z"))
                go_on.set()

            thread = threading.Thread(target=use)
            thread.start()
            assert go_on.wait(120)
            thread.join()
            blocking.commit()
            receiver = other.receiver("other")
            found: list[bytes] = []
            while len(found) < 3:
                found += [m.body for m in receiver.receive(3, max_wait=120)]
            done.set()
    assert sorted(found) == [b"done", b"done", b"z"]
