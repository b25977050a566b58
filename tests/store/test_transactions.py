"""Units of work: receives, settles, sends and the user's own SQL in one commit, or not at all."""

from __future__ import annotations

import functools
import sqlite3
import threading
from datetime import timedelta

import psycopg
import pytest

from lazaretto import (
    Broker,
    BrokerTransaction,
    InvalidMessage,
    ManualClock,
    Message,
    MessageLockLost,
    MessageState,
    MessageTooLarge,
    NotAllowed,
    Outcome,
    PoisonPolicy,
    ReceivedMessage,
    TransactionError,
)

from .actions import bodies, create, in_sql, peek_one, send, set_aside, states, take
from .conftest import Connect


class OopsError(Exception):
    """Goes wrong in the middle of a transaction."""


@pytest.fixture(autouse=True)
def queues(broker: Broker) -> None:
    create(broker, "q", lock_duration=30)
    create(broker, "out")


@pytest.fixture
def table(broker: Broker) -> None:
    """A table of the user's own."""
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE expenses (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL)")


def _expenses(broker: Broker) -> list[tuple[int, int]]:
    tx = broker.transaction()
    found: list[tuple[int, int]] = tx.execute("SELECT id, amount FROM expenses ORDER BY id").fetchall()
    tx.rollback()
    return found


class TestCommit:
    """Everything takes effect together."""

    def test_received_is_completed_and_sent_is_there(self, broker: Broker) -> None:
        send(broker, b"x", b"y")
        with broker.transaction() as tx:
            for message in tx.receive("q", 5):
                tx.send("out", Message(message.body.upper()))
            assert broker.peek("out") == []
        assert broker.queue("q").counts.total == 0
        assert bodies(broker.peek("out", 5)) == [b"X", b"Y"]

    def test_each_settle(self, broker: Broker) -> None:
        send(broker, *[b"%d" % n for n in range(5)])
        with broker.transaction() as tx:
            done, failed, deferred, dead, released = tx.receive("q", 5)
            tx.complete(done)
            tx.abandon(failed, error="KeyError: x")
            tx.defer(deferred)
            tx.dead_letter(dead, reason="Because", description="it is")
            tx.release(released)
            assert {m.state for m in broker.peek("q", 5)} == {MessageState.LOCKED}
        assert states(broker) == [
            (b"1", MessageState.ACTIVE),
            (b"2", MessageState.DEFERRED),
            (b"4", MessageState.ACTIVE),
        ]
        assert [m.delivery_count for m in broker.peek("q", 5)] == [1, 1, 0]
        assert peek_one(broker, "q;poison").dead_letter_reason == "Because"

    def test_messages_of_a_receiver_outside(self, broker: Broker) -> None:
        send(broker, b"x")
        message = take(broker)
        with broker.transaction() as tx:
            tx.complete(message)
            tx.send("out", Message(b"y"))
        assert (len(broker.peek("q")), len(broker.peek("out"))) == (0, 1)

    def test_across_subqueues(self, broker: Broker) -> None:
        """Repaired by hand: the dead letter goes and the new message comes in one commit."""
        set_aside(broker, b"bad")
        with broker.transaction() as tx:
            (letter,) = tx.receive("q", subqueue="dead_letter")
            tx.send("q", Message(letter.body + b", repaired"))
        assert bodies(broker.peek("q")) == [b"bad, repaired"]
        assert broker.peek("q;poison") == []

    def test_nothing_at_all(self, broker: Broker) -> None:
        with broker.transaction():
            pass

    def test_by_hand(self, broker: Broker) -> None:
        tx = broker.transaction()
        tx.send("out", Message(b"x"))
        tx.commit()
        with pytest.raises(TransactionError, match="has ended; begin a new one"):
            tx.send("out", Message(b"y"))
        assert len(broker.peek("out", 5)) == 1

    def test_a_receiver_that_waits_is_woken(self, broker: Broker) -> None:
        found: list[ReceivedMessage] = []
        receiver = broker.receiver("out")
        thread = threading.Thread(target=lambda: found.extend(receiver.receive(max_wait=120)), daemon=True)
        thread.start()
        with broker.transaction() as tx:
            tx.execute("SELECT 1")
            tx.send("out", Message(b"x"))
        thread.join(120)
        assert bodies(found) == [b"x"]


class TestRollback:
    """Nothing takes effect, and each message received is charged one failure."""

    def test_by_an_exception(self, broker: Broker) -> None:
        send(broker, b"x", b"y")
        with pytest.raises(OopsError), broker.transaction() as tx:
            messages = tx.receive("q", 2)
            tx.complete(messages[0])
            tx.send("out", Message(b"z"))
            raise OopsError("no")
        assert broker.peek("out") == []
        assert [(m.state, m.delivery_count) for m in broker.peek("q", 5)] == [(MessageState.ACTIVE, 1)] * 2

    def test_the_exception_is_in_the_history(self, broker: Broker) -> None:
        number = send(broker, b"x")
        with pytest.raises(OopsError), broker.transaction() as tx:
            tx.receive("q")
            raise OopsError("no such customer")
        (attempt,) = broker.attempts("q", number)
        assert (attempt.outcome, attempt.error_message) == (Outcome.FAILED, "no such customer")
        assert (attempt.error_type or "").endswith("OopsError")

    def test_by_hand(self, broker: Broker) -> None:
        send(broker, b"x")
        with broker.transaction() as tx:
            tx.receive("q")
            tx.rollback()
        assert take(broker).delivery_count == 1

    def test_the_policy_decides(self, broker: Broker) -> None:
        broker.update_queue("q", policy=PoisonPolicy.service_bus(3))
        number = send(broker, b"x")
        for _ in range(3):
            with pytest.raises(OopsError), broker.transaction() as tx:
                assert tx.receive("q")
                raise OopsError
        assert broker.dead_letter("q", number).reason == "MaxDeliveryCountExceeded"

    def test_messages_of_a_receiver_outside_keep_their_lock(self, broker: Broker) -> None:
        send(broker, b"x")
        receiver = broker.receiver("q")
        (message,) = receiver.receive()
        with broker.transaction() as tx:
            tx.complete(message)
            tx.rollback()
        assert peek_one(broker).state is MessageState.LOCKED
        receiver.complete(message)

    def test_a_killed_worker_is_charged_by_the_lock(self, broker: Broker, clock: ManualClock) -> None:
        send(broker, b"x")
        broker.transaction().receive("q")
        clock.advance(30)
        assert take(broker).delivery_count == 1


class TestCommitThatFails:
    """A commit that cannot be done is a rollback."""

    def test_a_lost_lock_rolls_back_all(self, broker: Broker, clock: ManualClock, table: None) -> None:
        send(broker, b"x", b"y")
        tx = broker.transaction()
        tx.receive("q")
        tx.send("out", Message(b"z"))
        clock.advance(30)
        stolen = take(broker)
        tx.execute("INSERT INTO expenses VALUES (1, 100)")
        with pytest.raises(MessageLockLost):
            tx.commit()
        assert _expenses(broker) == []
        assert broker.peek("out") == []
        broker.receiver("q").complete(stolen)
        assert bodies(broker.peek("q", 5)) == [b"y"]

    def test_the_other_messages_are_given_back_charged(self, broker: Broker) -> None:
        send(broker, b"x", b"y")
        tx = broker.transaction()
        first, _second = tx.receive("q", 2)
        broker.receiver("q").complete(first)
        with pytest.raises(MessageLockLost):
            tx.commit()
        found = peek_one(broker)
        assert (found.body, found.state, found.delivery_count) == (b"y", MessageState.ACTIVE, 1)

    def test_a_send_that_is_refused(self, broker: Broker) -> None:
        broker.update_queue("out", max_message_size=1024)
        send(broker, b"x")
        with pytest.raises(MessageTooLarge), broker.transaction() as tx:
            tx.receive("q")
            tx.send("out", [Message(b"ok"), Message(b"x" * 1025)])
        assert broker.peek("out") == []
        assert take(broker).delivery_count == 1

    def test_what_is_wrong_with_a_message_is_said_at_once(self, broker: Broker) -> None:
        with broker.transaction() as tx:
            with pytest.raises(InvalidMessage):
                tx.send("out", Message("text"))  # type: ignore[arg-type]
            with pytest.raises(NotAllowed, match="nothing can be sent to the subqueue"):
                tx.send("out;poison", Message(b"x"))
            tx.send("out", Message(b"x"))
        assert bodies(broker.peek("out")) == [b"x"]

    def test_a_message_is_settled_once(self, broker: Broker) -> None:
        send(broker, b"x")
        with broker.transaction() as tx:
            (message,) = tx.receive("q")
            tx.defer(message)
            with pytest.raises(TransactionError, match="message 1 is already settled in this transaction"):
                tx.complete(message)
        assert peek_one(broker).state is MessageState.DEFERRED


class TestOwnSql:
    """The user's own SQL on the store's database, in the same commit."""

    def test_committed_with_it(self, broker: Broker, connect: Connect, table: None) -> None:
        send(broker, b"250")
        with broker.transaction() as tx:
            (message,) = tx.receive("q")
            by_place = in_sql(broker, "INSERT INTO expenses VALUES (?, ?)")
            tx.execute(by_place, (message.sequence_number, int(message.body)))
            tx.execute(in_sql(broker, "INSERT INTO expenses VALUES (:id, :amount)"), {"id": 9, "amount": 5})
        assert _expenses(connect()) == [(1, 250), (9, 5)]
        assert broker.queue("q").counts.total == 0

    def test_rolled_back_with_it(self, broker: Broker, table: None) -> None:
        send(broker, b"250")
        with pytest.raises(OopsError), broker.transaction() as tx:
            tx.receive("q")
            tx.execute("INSERT INTO expenses VALUES (1, 250)")
            raise OopsError
        assert _expenses(broker) == []
        assert take(broker).delivery_count == 1

    def test_errors_of_sql_come_as_they_are_and_do_not_end_it(self, broker: Broker, table: None) -> None:
        with broker.transaction() as tx:
            tx.execute("INSERT INTO expenses VALUES (1, 250)")
            with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
                tx.execute("INSERT INTO expenses VALUES (1, 1)")
            with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable), match="nowhere"):
                tx.execute("SELECT * FROM nowhere")
            tx.execute("INSERT INTO expenses VALUES (2, 99)")
        assert _expenses(broker) == [(1, 250), (2, 99)]

    @pytest.mark.stores("sqlite")
    @pytest.mark.parametrize("sql", ["INSERT INTO", "SELECT"])
    def test_sql_that_ends_the_transaction_ends_all_of_it(
        self, broker: Broker, table: None, sql: str
    ) -> None:
        """A conflict clause can roll back; what comes after it must not be committed by itself."""
        send(broker, b"x")
        then = {"INSERT INTO": "INSERT INTO expenses VALUES (2, 2)", "SELECT": "SELECT 1"}[sql]
        with pytest.raises(TransactionError, match="rolled back by its own SQL"), broker.transaction() as tx:
            tx.receive("q")
            tx.send("out", Message(b"y"))
            tx.execute("INSERT INTO expenses VALUES (1, 250)")
            with pytest.raises(sqlite3.IntegrityError):
                tx.execute("INSERT OR ROLLBACK INTO expenses VALUES (1, 1)")
            tx.execute(then)
        assert _expenses(broker) == []
        assert broker.peek("out") == []
        assert take(broker).delivery_count == 1

    @pytest.mark.stores("sqlite")
    def test_a_commit_after_that_is_refused_too(self, broker: Broker, table: None) -> None:
        tx = broker.transaction()
        tx.execute("INSERT INTO expenses VALUES (1, 250)")
        with pytest.raises(sqlite3.IntegrityError):
            tx.execute("INSERT OR ROLLBACK INTO expenses VALUES (1, 1)")
        tx.send("out", Message(b"y"))
        with pytest.raises(TransactionError, match="rolled back by its own SQL"):
            tx.commit()
        assert broker.peek("out") == []
        send(broker, b"x")

    def test_it_sees_what_it_wrote_and_others_do_not(self, broker: Broker, table: None) -> None:
        with broker.transaction() as tx:
            tx.execute("INSERT INTO expenses VALUES (1, 250)")
            assert tx.execute("SELECT count(*) FROM expenses").fetchone() == (1,)
            assert len(broker.queues()) == 3

    def test_receiving_after_it_is_refused(self, broker: Broker) -> None:
        send(broker, b"x")
        with broker.transaction() as tx:
            tx.execute("SELECT 1")
            with pytest.raises(TransactionError, match="receive before the first SQL"):
                tx.receive("q")
        assert take(broker).attempt == 1

    @pytest.mark.parametrize(
        "sql",
        [
            "DELETE FROM lazaretto_messages",
            "UPDATE LAZARETTO_queues SET path = 'x'",
            "INSERT INTO lazaretto_meta VALUES ('a', 'b')",
            "DROP TABLE lazaretto_events",
            "ALTER TABLE lazaretto_messages ADD COLUMN x",
            "CREATE INDEX x ON lazaretto_messages (state)",
            "CREATE TABLE lazaretto_mine (x)",
            "CREATE TEMP TABLE lazaretto_messages (key)",
            "CREATE TEMP VIEW lazaretto_messages AS SELECT 1",
            "CREATE TRIGGER t AFTER INSERT ON lazaretto_messages BEGIN SELECT 1; END",
            "COMMIT",
            "ROLLBACK",
            "BEGIN",
            "SAVEPOINT x",
        ],
    )
    def test_the_brokers_tables_and_the_transaction_are_protected(
        self, broker: Broker, table: None, sql: str
    ) -> None:
        self.protected(broker, sql)

    @pytest.mark.stores("sqlite")
    @pytest.mark.parametrize(
        "sql",
        [
            "CREATE TEMP TRIGGER t AFTER INSERT ON lazaretto_messages BEGIN DELETE FROM expenses; END",
            "PRAGMA journal_mode = DELETE",
            "ATTACH 'other.db' AS other",
        ],
    )
    def test_sqlites_own_ways_are_refused(self, broker: Broker, table: None, sql: str) -> None:
        self.protected(broker, sql)

    @pytest.mark.stores("postgres")
    @pytest.mark.parametrize(
        "sql",
        [
            "/* hello */ commit",
            "-- hello\n  End",
            "START TRANSACTION",
            "PREPARE TRANSACTION 'x'",
            "WITH gone AS (DELETE FROM lazaretto_messages RETURNING key) SELECT count(*) FROM gone",
            "TRUNCATE lazaretto_messages",
            "GRANT ALL ON lazaretto_messages TO public",
            "ABORT",
        ],
    )
    def test_postgresqls_own_ways_are_refused(self, broker: Broker, table: None, sql: str) -> None:
        self.protected(broker, sql)

    @staticmethod
    def protected(broker: Broker, sql: str) -> None:
        send(broker, b"x")
        with broker.transaction() as tx:
            tx.execute("INSERT INTO expenses VALUES (1, 250)")
            with pytest.raises(TransactionError, match="SQL within a transaction cannot"):
                tx.execute(sql)
            tx.send("out", Message(b"y"))
        assert _expenses(broker) == [(1, 250)]
        assert (bodies(broker.peek("q")), bodies(broker.peek("out"))) == ([b"x"], [b"y"])

    def test_the_brokers_tables_can_be_read(self, broker: Broker) -> None:
        send(broker, b"x", b"y")
        with broker.transaction() as tx:
            assert tx.execute("SELECT count(*) FROM lazaretto_messages").fetchone() == (2,)

    def test_others_wait_until_it_ends_on_a_file_alone(self, broker: Broker, connect: Connect) -> None:
        done = threading.Event()

        def others() -> None:
            send(connect(), b"x", path="out")
            send(broker, b"y", path="out")
            done.set()

        thread = threading.Thread(target=others, daemon=True)
        with broker.transaction() as tx:
            tx.execute("SELECT 1")
            thread.start()
            if "sqlite" in broker.facts():
                assert not done.wait(0.05)
            else:
                assert done.wait(120)
        assert done.wait(120)
        thread.join(120)

    def test_the_same_thread_cannot_write_past_it(self, broker: Broker) -> None:
        with broker.transaction() as tx:
            tx.execute("SELECT 1")
            with pytest.raises(TransactionError, match="is open: send, receive and settle through it"):
                send(broker, b"x")
            with pytest.raises(TransactionError, match="end it first"):
                broker.transaction().execute("SELECT 1")
        send(broker, b"x")


class TestSavepoints:
    """Partial rollback; the locks are kept."""

    def test_settles_and_sends_after_it_are_undone(self, broker: Broker) -> None:
        send(broker, b"x", b"y")
        with broker.transaction() as tx:
            x, y = tx.receive("q", 2)
            tx.send("out", Message(b"before"))
            tx.complete(x)
            point = tx.savepoint()
            tx.send("out", Message(b"after"))
            tx.dead_letter(y)
            point.rollback()
        assert bodies(broker.peek("out", 5)) == [b"before"]
        assert broker.queue("q").counts.total == 0

    def test_sql_after_it_is_undone(self, broker: Broker, table: None) -> None:
        with broker.transaction() as tx:
            tx.execute("INSERT INTO expenses VALUES (1, 1)")
            point = tx.savepoint()
            tx.execute("INSERT INTO expenses VALUES (2, 2)")
            point.rollback()
            tx.execute("INSERT INTO expenses VALUES (3, 3)")
        assert _expenses(broker) == [(1, 1), (3, 3)]

    def test_sql_that_began_after_it_is_undone(self, broker: Broker, table: None) -> None:
        with broker.transaction() as tx:
            point = tx.savepoint()
            tx.execute("INSERT INTO expenses VALUES (1, 1)")
            point.rollback()
            assert tx.receive("q") == []
            tx.execute("INSERT INTO expenses VALUES (2, 2)")
        assert _expenses(broker) == [(2, 2)]

    def test_sql_that_fails_around_it_undoes_itself_alone(self, broker: Broker, table: None) -> None:
        def insert(number: int) -> None:
            tx.execute(f"INSERT INTO expenses VALUES ({number}, {number})")

        def fail() -> None:
            with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
                insert(1)

        with broker.transaction() as tx:
            insert(1)
            fail()
            outer = tx.savepoint()
            fail()
            insert(2)
            inner = tx.savepoint()
            insert(3)
            fail()
            inner.rollback()
            fail()
            insert(4)
            outer.rollback()
            outer.rollback()
            insert(5)
            tx.savepoint()
            insert(6)
            fail()
        assert _expenses(broker) == [(1, 1), (5, 5), (6, 6)]

    def test_received_after_it_is_given_back_uncharged_by_the_commit(self, broker: Broker) -> None:
        send(broker, b"x")
        with broker.transaction() as tx:
            point = tx.savepoint()
            tx.receive("q")
            point.rollback()
            assert peek_one(broker).state is MessageState.LOCKED
            assert broker.receiver("q").receive() == []
        found = peek_one(broker)
        assert (found.state, found.delivery_count) == (MessageState.ACTIVE, 0)

    def test_what_was_given_back_may_still_be_settled(self, broker: Broker) -> None:
        send(broker, b"x")
        with broker.transaction() as tx:
            point = tx.savepoint()
            (message,) = tx.receive("q")
            point.rollback()
            tx.dead_letter(message, reason="Because")
        assert broker.queue("q").counts.dead_letter == 1

    def test_several_times(self, broker: Broker) -> None:
        with broker.transaction() as tx:
            point = tx.savepoint()
            for n in range(3):
                tx.send("out", Message(b"%d" % n))
                point.rollback()
            tx.send("out", Message(b"last"))
        assert bodies(broker.peek("out", 5)) == [b"last"]


class TestTrackMessage:
    """Failures counted in a table of one's own, in the commit that gives the message back.

    As the stored procedure TrackMessage of Service Broker's documentation: savepoint, receive, try;
    on failure roll back to the savepoint, which keeps the lock, and track. Its arithmetic puts the
    verdict at the fourth failure: inserted as 1, counted up at once, ended when above 3.
    """

    @pytest.fixture(autouse=True)
    def failed_messages(self, broker: Broker) -> None:
        broker.update_queue("q", policy=PoisonPolicy.service_broker())
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE failed_messages (message_id TEXT PRIMARY KEY, count INTEGER)")

    @staticmethod
    def _track(broker: Broker, tx: BrokerTransaction, message: ReceivedMessage) -> None:
        key, sql = (message.message_id,), functools.partial(in_sql, broker)
        row = tx.execute(sql("SELECT count FROM failed_messages WHERE message_id = ?"), key).fetchone()
        if row is None:
            tx.execute(sql("INSERT INTO failed_messages VALUES (?, 1)"), key)
        if row is not None and row[0] > 3:
            tx.execute(sql("DELETE FROM failed_messages WHERE message_id = ?"), key)
            tx.dead_letter(message, reason="500", description="Unable to process message.")
        else:
            tx.execute(sql("UPDATE failed_messages SET count = count + 1 WHERE message_id = ?"), key)

    def _process(self, broker: Broker, *, works: bool = False) -> None:
        with broker.transaction() as tx:
            point = tx.savepoint()
            (message,) = tx.receive("q")
            if works:
                gone = in_sql(broker, "DELETE FROM failed_messages WHERE message_id = ?")
                tx.execute(gone, (message.message_id,))
            else:
                point.rollback()
                self._track(broker, tx, message)

    @staticmethod
    def _tracked(broker: Broker) -> list[int]:
        tx = broker.transaction()
        found = [count for (count,) in tx.execute("SELECT count FROM failed_messages")]
        tx.rollback()
        return found

    def test_the_verdict_falls_at_the_fourth_failure(self, broker: Broker) -> None:
        number = send(broker, b"report")
        for count in (2, 3, 4):
            self._process(broker)
            assert self._tracked(broker) == [count]
            assert broker.queue("q").counts.active == 1
        self._process(broker)
        letter = broker.dead_letter("q", number)
        assert (letter.reason, letter.description) == ("500", "Unable to process message.")
        assert self._tracked(broker) == []

    def test_a_success_clears_the_count(self, broker: Broker) -> None:
        send(broker, b"report")
        self._process(broker)
        self._process(broker, works=True)
        assert self._tracked(broker) == []
        assert broker.queue("q").counts.total == 0

    def test_it_never_switches_the_queue_off(self, broker: Broker) -> None:
        for _ in range(3):
            send(broker, b"report")
            for _ in range(4):
                self._process(broker)
        assert broker.queue("q").counts.dead_letter == 3

    def test_a_rolled_back_transaction_tracks_nothing(self, broker: Broker) -> None:
        send(broker, b"report")
        with pytest.raises(OopsError), broker.transaction() as tx:
            (message,) = tx.receive("q")
            self._track(broker, tx, message)
            raise OopsError
        assert self._tracked(broker) == []


def test_two_transactions_at_once(broker: Broker) -> None:
    send(broker, b"x", b"y")
    with broker.transaction() as one, broker.transaction() as other:
        assert bodies(one.receive("q")) == [b"x"]
        assert bodies(other.receive("q")) == [b"y"]
        other.rollback()
    assert bodies(broker.peek("q", 5)) == [b"y"]


def test_a_receive_may_wait(broker: Broker) -> None:
    with broker.transaction() as tx:
        assert tx.receive("q", max_wait=0.01) == []


def test_a_delay_for_what_failed(broker: Broker, clock: ManualClock) -> None:
    send(broker, b"x")
    with broker.transaction() as tx:
        tx.abandon(tx.receive("q"), delay=timedelta(seconds=10))  # type: ignore[arg-type]
    assert bodies(broker.peek("q;retry")) == [b"x"]
    clock.advance(10)
    assert take(broker).delivery_count == 1


def test_closing_waits_for_a_transaction_with_sql_and_keeps_its_counts(
    broker: Broker, connect: Connect
) -> None:
    other = connect()
    begun, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        with other.transaction() as tx:
            tx.execute("SELECT 1")
            tx.send("q", Message(b"x"))
            begun.set()
            goes_on.wait(120)

    worker, closer = threading.Thread(target=work), threading.Thread(target=other.close)
    worker.start()
    assert begun.wait(120)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive()
    goes_on.set()
    for thread in (worker, closer):
        thread.join(120)
        assert not thread.is_alive()
    assert bodies(broker.peek("q")) == [b"x"]
    assert sum(rate.sent for rate in broker.rates("q")) == 1


class TestTextOfStatements:
    def test_a_percent_sign_without_parameters_is_a_character(self, broker: Broker) -> None:
        with broker.transaction() as work:
            assert work.execute("SELECT 5 % 3, '%', '%%'").fetchone() == (2, "%", "%%")

    def test_a_call_is_one_statement(self, broker: Broker) -> None:
        """A second one could end the transaction, or change the broker's tables, behind the first."""
        create(broker, "one")
        refused = (sqlite3.Error, sqlite3.Warning, psycopg.Error)
        with pytest.raises(refused), broker.transaction() as work:
            work.send("one", Message(b"x"))
            work.execute("SELECT 1; COMMIT")
        assert broker.peek("one") == []
