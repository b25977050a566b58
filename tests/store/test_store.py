"""The store itself: schema versions and migrations, adoption, several brokers, its statements."""

from __future__ import annotations

import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from servers import Server

import lazaretto
from lazaretto import (
    Backoff,
    Broker,
    BrokerClosed,
    ManualClock,
    Message,
    StoreCorrupt,
    StoreForeign,
    StoreTooNew,
)
from lazaretto.broker.broker import store_of
from lazaretto.engine.maintenance import Maintenance
from lazaretto.engine.timers import CleanUp, cleaned_at
from lazaretto.store.postgres.dialect import TAKING, place, queries_in
from lazaretto.store.postgres.store import PostgresStore
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.query_files import Migration, Query, load_queries, with_rows
from lazaretto.store.sql.transaction import Transaction
from lazaretto.store.sql.words import words
from lazaretto.store.sqlite import schema
from lazaretto.store.sqlite import schema as sqlite
from lazaretto.store.sqlite.schema import QUERIES

from .actions import bodies, create, fail, send, stored, take
from .conftest import Connect


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def _sql(file: Path, *statements: str) -> list[tuple[object, ...]]:
    """Run statements on a file as another program would; return the rows of the last one."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        found: list[tuple[object, ...]] = []
        for statement in statements:
            found = connection.execute(statement).fetchall()
        return found


class TestSchema:
    """Created, recognised, brought up to date."""

    @pytest.mark.parametrize("before", ["nothing", "an empty file", "an empty database"])
    def test_made_where_there_is_none(self, file: Path, before: str) -> None:
        if before == "an empty file":
            file.touch()
        elif before == "an empty database":
            _sql(file, "CREATE TABLE t (x)", "DROP TABLE t")
        with lazaretto.connect(file) as broker:
            create(broker)
            assert broker.facts()["schema"] == schema.newest()
        assert _sql(file, "PRAGMA journal_mode") == [("wal",)]

    def test_opened_again_it_is_the_same_store(self, file: Path) -> None:
        found = []
        for _ in range(2):
            with lazaretto.connect(file) as broker:
                found.append(broker.facts()["store_id"])
        assert found[0] == found[1]

    def test_an_older_schema_is_migrated_with_everything_in_it(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with lazaretto.connect(file) as broker:
            create(broker)
            send(broker, b"x")
        steps = schema.migrations()
        add = "ALTER TABLE lazaretto_meta ADD COLUMN note TEXT;\nCREATE TABLE lazaretto_more (x);\n"
        monkeypatch.setattr(schema, "migrations", lambda: [*steps, Migration(steps[-1].number + 1, add)])
        with lazaretto.connect(file) as broker:
            assert broker.facts()["schema"] == steps[-1].number + 1
            assert take(broker).body == b"x"
        assert _sql(file, "SELECT count(*) FROM lazaretto_more") == [(0,)]

    def test_a_migration_that_fails_changes_nothing(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with lazaretto.connect(file) as broker:
            create(broker)
            send(broker, b"x")
        steps = schema.migrations()
        bad = "CREATE TABLE lazaretto_more (x);\nINSERT INTO nowhere VALUES (1);\n"
        with monkeypatch.context() as patch:
            patch.setattr(schema, "migrations", lambda: [*steps, Migration(steps[-1].number + 1, bad)])
            with pytest.raises(lazaretto.StoreError, match="no such table: nowhere"):
                lazaretto.connect(file)
        assert _sql(file, "SELECT 1 FROM sqlite_master WHERE name = 'lazaretto_more'") == []
        with lazaretto.connect(file) as broker:
            assert take(broker).body == b"x"

    def test_a_newer_schema_is_refused_and_left_alone(self, file: Path) -> None:
        lazaretto.connect(file).close()
        _sql(
            file,
            "UPDATE lazaretto_meta SET value = '999' WHERE name = 'schema'",
            "PRAGMA journal_mode = DELETE",
        )
        before = file.read_bytes()
        with pytest.raises(StoreTooNew, match="or older, got 999"):
            lazaretto.connect(file)
        assert file.read_bytes() == before

    def test_migrations_are_numbered_without_a_gap(self) -> None:
        assert [step.number for step in schema.migrations()] == list(range(1, schema.newest() + 1))

    def test_a_file_that_is_no_database_is_left_alone(self, file: Path) -> None:
        file.write_bytes(b"not a database\n" * 100)
        before = file.read_bytes()
        with pytest.raises(StoreCorrupt, match="is not a database and was not changed"):
            lazaretto.connect(file)
        assert file.read_bytes() == before


class TestAdopt:
    """The store's tables beside another application's."""

    @pytest.fixture(autouse=True)
    def application(self, file: Path) -> None:
        _sql(file, "CREATE TABLE customers (name TEXT)", "INSERT INTO customers VALUES ('Ann')")

    def test_refused_unless_asked_for(self, file: Path) -> None:
        before = file.read_bytes()
        with pytest.raises(StoreForeign, match="belongs to another application and was not changed"):
            lazaretto.connect(file)
        assert file.read_bytes() == before

    def test_side_by_side(self, file: Path) -> None:
        with lazaretto.connect(file, adopt=True) as broker:
            create(broker)
            with broker.transaction() as tx:
                tx.execute("INSERT INTO customers VALUES ('Bob')")
                tx.send("q", Message(b"new customer"))
        assert _sql(file, "SELECT name FROM customers") == [("Ann",), ("Bob",)]

    def test_once_adopted_it_need_not_be_said_again(self, file: Path) -> None:
        lazaretto.connect(file, adopt=True).close()
        lazaretto.connect(file).close()

    def test_only_names_that_are_ours_are_used(self, file: Path) -> None:
        lazaretto.connect(file, adopt=True).close()
        names = {name for (name,) in _sql(file, "SELECT name FROM sqlite_master")}
        assert all(str(n).startswith(("lazaretto_", "sqlite_")) for n in names - {"customers"})


class TestTwoBrokers:
    """Several brokers on one file see one truth."""

    def test_each_sees_what_the_other_does(self, connect: Connect) -> None:
        one, other = connect(), connect()
        create(one)
        send(other, b"0", b"1", b"2")
        assert take(one).body == b"0"
        assert take(other).body == b"1"
        fail(one)
        assert bodies(other.receiver("q").receive(5)) == [b"2"]

    def test_cursors_and_numbers_follow(self, connect: Connect) -> None:
        one, other = connect(), connect()
        create(one)
        for n in range(20):
            broker = (one, other)[n % 2]
            assert send(broker, b"%d" % n) == n + 1
            receiver = (one, other)[n // 2 % 2].receiver("q")
            receiver.complete(receiver.receive())
        assert one.queue("q").counts == other.queue("q").counts
        assert one.queue("q").counts.total == 0

    def test_a_queue_made_again_is_another_one(self, connect: Connect) -> None:
        one, other = connect(), connect()
        create(one)
        send(other, b"old")
        one.delete_queue("q")
        create(one)
        assert send(other, b"new") == 1
        assert bodies(one.peek("q", 5)) == [b"new"]

    def test_a_queue_deleted_in_one_and_cached_in_the_other(self, connect: Connect) -> None:
        one, other = connect(), connect()
        create(one)
        send(other, b"x")
        one.delete_queue("q")
        with pytest.raises(lazaretto.EntityNotFound):
            send(other, b"y")

    def test_closing_one_leaves_the_other(self, connect: Connect) -> None:
        one, other = connect(), connect()
        create(one)
        one.close()
        assert send(other, b"x") == 1


class TestClosed:
    """A closed broker says so, whatever is asked of it."""

    def test_every_call(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        sender, receiver = broker.sender("q"), broker.receiver("q")
        held = receiver.receive()
        broker.close()
        broker.close()
        for call in (
            lambda: sender.send(Message(b"x")),
            receiver.receive,
            lambda: receiver.complete(held),
            lambda: broker.peek("q"),
            lambda: broker.create_queue("r"),
            broker.queues,
            broker.events,
            lambda: broker.transaction().execute("SELECT 1"),
        ):
            with pytest.raises(BrokerClosed):
                call()

    def test_a_receiver_that_is_closed_is_closed(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        with broker.receiver("q") as receiver:
            held = receiver.receive()
        for call in (receiver.receive, receiver.peek, lambda: receiver.complete(held)):
            with pytest.raises(BrokerClosed, match="this receiver is closed"):
                call()

    def test_a_sender_too(self, broker: Broker) -> None:
        create(broker)
        with broker.sender("q") as sender:
            pass
        with pytest.raises(BrokerClosed, match="this sender is closed"):
            sender.send(Message(b"x"))


class TestHousekeeping:
    """What is no longer kept goes, in chunks."""

    @staticmethod
    def _clean(broker: Broker) -> None:
        while broker._store.run(CleanUp()):
            pass

    def test_the_messages_of_a_deleted_queue(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x" * 3000, b"y")
        fail(broker)
        broker.delete_queue("q")
        self._clean(broker)
        for table in ("messages", "bodies", "attempts", "dead_letters", "sessions", "deleted_queues"):
            assert stored(broker, f"SELECT count(*) FROM lazaretto_{table}") == [(0,)]

    def test_one_process_does_it_for_all(self, broker: Broker, clock: ManualClock) -> None:
        store = broker._store
        one, other = Maintenance(store, clock), Maintenance(store, clock)
        for maintenance in (one, other):
            maintenance.stop()
        assert store.read(cleaned_at) is None
        one._clean_up()
        began = clock.now()
        assert store.read(cleaned_at) == began
        clock.advance(60)
        other._clean_up()
        assert store.read(cleaned_at) == began
        clock.advance(600)
        other._clean_up()
        assert store.read(cleaned_at) == clock.now()

    def test_events_and_what_became_of_dead_letters_after_thirty_days(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        create(broker, receive_retry_count=0)
        for _ in range(2):
            send(broker, b"x")
            fail(broker)
        broker.purge("q", 1)
        clock.advance(29 * 86_400)
        self._clean(broker)
        assert broker.dead_letter("q", 1).resolution == "deleted"
        clock.advance(2 * 86_400)
        self._clean(broker)
        assert broker.events() == []
        with pytest.raises(lazaretto.MessageNotFound):
            broker.dead_letter("q", 1)
        assert len(broker.dead_letter("q", 2).attempts) == 1

    def test_bodies_and_history_leave_nothing_behind(self, broker: Broker) -> None:
        create(broker, receive_retry_count=1)
        receiver = broker.receiver("q")
        for end in ("complete", "dead", "edit", "delete"):
            number = send(broker, b"x" * 3000)
            if end == "delete":
                broker.receiver("q", mode="receive_and_delete").receive()
                continue
            fail(broker)
            if end == "complete":
                receiver.complete(receiver.receive())
                continue
            fail(broker)
            if end == "edit":
                broker.resubmit("q", number, edit=lambda _: Message(b"y" * 3000))
                receiver.complete(receiver.receive())
            else:
                broker.purge("q", number)
                broker.delete_purged("q", 1)
        assert stored(broker, "SELECT count(*) FROM lazaretto_bodies") == [(0,)]
        assert stored(broker, "SELECT count(*) FROM lazaretto_messages") == [(0,)]


class TestStatements:
    """Every statement the store runs stands in one file, with what it is for."""

    PACKAGE = Path(lazaretto.__file__).parent
    FILES = (
        ("sql", "queries.sql"),
        ("sql", "columns.sql"),
        ("sql", "dialogs.sql"),
        ("sql", "access.sql"),
        ("sql", "causes.sql"),
        ("sql", "listings.sql"),
        ("sql", "overview.sql"),
        ("sql", "rates.sql"),
        ("sql", "repairs.sql"),
        ("sqlite", "queries.sql"),
        ("postgres", "queries.sql"),
    )

    def text(self, store: str, file: str) -> str:
        return (self.PACKAGE / "store" / store / file).read_text()

    def names(self) -> list[tuple[str, str]]:
        return [
            (store, name)
            for store, file in self.FILES
            for name in re.findall(r"^-- name: (\w+)$", self.text(store, file), re.MULTILINE)
        ]

    def test_every_query_is_used(self) -> None:
        code = "".join(file.read_text() for file in self.PACKAGE.rglob("*.py"))
        assert [(store, name) for store, name in self.names() if f'"{name}"' not in code] == []

    @pytest.mark.parametrize("queries", [QUERIES, queries_in("s")], ids=["sqlite", "postgres"])
    def test_every_query_that_is_used_is_there(self, queries: dict[str, Query]) -> None:
        code = "".join(file.read_text() for file in (self.PACKAGE / "store" / "sql").rglob("*.py"))
        used = set(re.findall(r'context\.(?:run|insert)\(\s*"(\w+)"', code))
        assert len(used) > 100
        assert used <= set(queries)

    def test_nothing_is_lost_by_the_loader(self) -> None:
        apart = self.names_of("columns.sql")
        for store, queries, made in (
            ("sqlite", QUERIES, set()),
            (
                "postgres",
                queries_in("s"),
                {"next_group", "select_heads", *(f"{name}_on_time" for name in TAKING)},
            ),
        ):
            known = {name for where, name in self.names() if where in (store, "sql")}
            assert set(queries) - made == known - apart
        assert set(load_queries(("lazaretto.store.sql", "columns.sql"), words=words({}))) == apart

    def names_of(self, file: str) -> set[str]:
        return set(re.findall(r"^-- name: (\w+)$", self.text("sql", file), re.MULTILINE))

    @pytest.mark.parametrize("store", ["sqlite", "postgres"])
    def test_a_text_of_one_database_says_why_it_differs(self, store: str) -> None:
        headers = re.findall(
            r"^-- (?:name|part): (\w+)\n((?:-- .*\n)+)", self.text(store, "queries.sql"), re.MULTILINE
        )
        assert len(headers) > 10
        assert [name for name, header in headers if "\n-- Differs because " not in header] == []

    def test_no_state_and_no_key_is_written_as_a_number(self) -> None:
        raw = re.compile(r"\bstate (?:=|<>|IN \() ?\d|(?:<<|>>) 4[24]\b")
        assert [
            (file, raw.findall(self.text(*file))) for file in self.FILES if raw.search(self.text(*file))
        ] == []

    def test_a_query_of_messages_says_whether_locks_on_ranges_are_written_first(self) -> None:
        silent = [
            name
            for name, query in queries_in("s").items()
            if "lazaretto_messages" in query.sql
            and "lazaretto_range_locks" not in query.sql
            and query.locks_first is None
        ]
        assert silent == []

    @pytest.mark.parametrize("queries", [QUERIES, queries_in("s")], ids=["sqlite", "postgres"])
    def test_a_query_of_messages_says_whether_locks_of_claims_are_written_first(
        self, queries: dict[str, Query]
    ) -> None:
        silent = [
            name
            for name, query in queries.items()
            if "lazaretto_messages" in query.sql
            and "lazaretto_claimed_ranges" not in query.sql
            and query.claims_first is None
        ]
        assert silent == []

    @pytest.mark.stores("sqlite")
    def test_each_can_be_prepared(self, broker: Broker, file: Path) -> None:
        with closing(sqlite3.connect(file)) as connection:
            for name, query in QUERIES.items():
                plain, names = sqlite.place(with_rows(query.sql, 2))
                try:
                    connection.execute(f"EXPLAIN {plain}", (None,) * len(names))
                except sqlite3.Error as error:
                    pytest.fail(f"{name}: {error}")

    @pytest.mark.stores("postgres")
    def test_each_can_be_prepared_by_the_server(self, broker: Broker, postgres: Server) -> None:
        store = broker._store
        assert isinstance(store, PostgresStore)
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            for name, query in queries_in(store.schema).items():
                plain, _ = place(with_rows(query.sql, 2))
                try:
                    if plain.startswith("COPY"):
                        with connection.cursor().copy(plain.encode()):
                            continue
                    connection.execute(f"PREPARE {name} AS {plain}".encode())
                except psycopg.Error as error:
                    pytest.fail(f"{name}: {error}")


@pytest.mark.stores("sqlite")
def test_facts(broker: Broker, file: Path) -> None:
    facts = broker.facts()
    assert (facts["path"], facts["journal_mode"]) == (str(file), "wal")
    assert facts["file_bytes"] > 0
    assert broker.check() == []


@pytest.mark.stores("postgres")
def test_facts_of_a_server(broker: Broker) -> None:
    facts = broker.facts()
    assert facts["schema_name"].startswith("test_")
    assert int(facts["postgresql"].split(".")[0]) >= 13
    assert facts["bytes"] > 0
    assert broker.check() == []


def test_the_random_numbers_of_a_program_are_its_own(connect: Connect) -> None:
    """A program that seeds them gets the same ones, whatever the broker and its thread do meanwhile."""
    before = random.getstate()
    broker = connect()
    delay = Backoff(initial=10, jitter=0.5)
    create(broker, receive_retry_count=0, max_retry_cycles=2, retry_cycle_delay=delay)
    send(broker, b"1")
    fail(broker)
    assert broker.queue("q").counts.delayed == 1
    assert random.getstate() == before


class _Mark(Operation[None]):
    """Mark a store as one of several that are used as one queue."""

    def run(self, tx: Transaction) -> None:
        tx.access.save_setting("spread", '{"spread":"shop","place":0,"stores":2}')


def test_a_store_that_was_one_of_several_opens_by_itself(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so, and the store works."""
    broker = connect()
    create(broker)
    send(broker, b"1")
    store_of(broker).run(_Mark())
    broker.close()
    assert not [record for record in caplog.records if "one of several" in record.getMessage()]
    again = connect()
    assert [record.levelname for record in caplog.records if '"stores":2' in record.getMessage()] == [
        "WARNING"
    ]
    assert take(again).body == b"1"
