"""Many hosts on one server, and a server that fails: nothing lost, nothing done twice, and it goes on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest
from load import QUEUE, Load
from servers import Server, new_store, start, wait_for

import lazaretto
from lazaretto import (
    Broker,
    CommitUnknown,
    InvalidOption,
    Message,
    MessageLockLost,
    QueueOptions,
    StoreBusy,
    StoreError,
    StoreForeign,
    StoreNotFound,
    StoreReadOnly,
    StoreUnavailable,
)
from lazaretto.store.postgres.commits import WRITING
from lazaretto.store.postgres.dialect import place
from lazaretto.store.postgres.store import PostgresStore
from lazaretto.store.sql.query_files import Query
from lazaretto.store.sql.statements import Statement
from lazaretto.store.sql.transaction import Transaction

from .witness import store_of

T = TypeVar("T")

CONSUMER = Path(__file__).with_name("consumer.py")
#: What a caller does about an error that says it may be tried again, or that nobody knows how it ended.
AGAIN = (StoreUnavailable, StoreBusy, StoreError)


def lines(journal: Path, kind: str) -> list[list[str]]:
    return [words[1:] for words in map(str.split, journal.read_text().splitlines()) if words[0] == kind]


class TestHosts:
    """Several processes, several threads each."""

    def test_no_message_in_two_hands(self, url: str, tmp_path: Path) -> None:
        journal = tmp_path / "journal"
        with lazaretto.connect(url) as broker:
            broker.create_queue("work")
            broker.sender("work").send([Message(b"x" * n, message_id=f"m{n}") for n in range(600)])
            words = [sys.executable, CONSUMER, url, journal, 4, 1.0]
            hosts = [subprocess.Popen(list(map(str, words))) for _ in range(4)]
            assert [host.wait(120) for host in hosts] == [0] * 4
            handed = lines(journal, "handed")
            assert Counter(name for name, _ in handed) == Counter({f"m{n}": 1 for n in range(600)})
            assert {attempt for _, attempt in handed} == {"1"}
            assert broker.queue("work").counts.total == 0

    def test_killed_hosts(self, url: str, tmp_path: Path) -> None:
        """One host after the other is killed; what it held comes back, charged, and nothing else does."""
        journal = tmp_path / "journal"
        with lazaretto.connect(url) as broker:
            broker.create_queue("work", QueueOptions(lock_duration=2))
            broker.sender("work").send([Message(b"x", message_id=f"m{n}") for n in range(400)])
            words = list(map(str, [sys.executable, CONSUMER, url, journal, 2]))
            for _ in range(4):
                host = subprocess.Popen([*words, "30"])
                size = journal.stat().st_size if journal.exists() else 0
                while not journal.exists() or journal.stat().st_size < size + 600:
                    assert host.poll() is None
                    time.sleep(0.002)
                host.kill()
                host.wait(120)
            assert subprocess.run([*words, "4"], timeout=120, check=False).returncode == 0
            completed = Counter(name for (name,) in lines(journal, "completed"))
            # Killed between the settling and its note, a message is done without a word.
            assert max(completed.values()) == 1
            assert {f"m{n}" for n in range(400)} == {name for name, _ in lines(journal, "handed")}
            assert broker.queue("work").counts.total == 0

    def test_what_is_scheduled_becomes_active_once(self, url: str) -> None:
        brokers = [lazaretto.connect(url) for _ in range(3)]
        try:
            brokers[0].create_queue("work")
            at = datetime.now(UTC) + timedelta(seconds=0.3)
            brokers[0].sender("work").schedule([Message(b"x", message_id=f"m{n}") for n in range(50)], at)
            got: list[str] = []
            while len(got) < 50:
                messages = brokers[1].receiver("work").receive(100, max_wait=120)
                got += [m.message_id for m in messages]
                assert messages
            assert sorted(got) == sorted(f"m{n}" for n in range(50))
            assert brokers[2].queue("work").counts.total == 50
        finally:
            for broker in brokers:
                broker.close()

    def test_another_process_wakes_who_waits(self, url: str) -> None:
        with lazaretto.connect(url) as first, lazaretto.connect(url) as second:
            first.create_queue("work")
            with concurrent.futures.ThreadPoolExecutor() as pool:
                waiting = pool.submit(first.receiver("work").receive, 1, 3_600.0)
                second.sender("work").send(Message(b"x"))
                assert waiting.result(120)[0].body == b"x"

    def test_several_brokers_in_one_database(self, postgres: Server) -> None:
        with contextlib.ExitStack() as opened:
            urls = [opened.enter_context(new_store(postgres.url)) for _ in range(2)]
            first, second = (opened.enter_context(lazaretto.connect(url)) for url in urls)
            for broker in (first, second):
                broker.create_queue("work")
            first.sender("work").send(Message(b"x"))
            assert second.queue("work").counts.total == 0

    def test_a_writer_that_holds_on(self, url: str) -> None:
        with lazaretto.connect(url) as first, lazaretto.connect(url, timeout=0.2) as second:
            first.create_queue("work")
            with second.transaction() as tx:
                tx.execute("CREATE TABLE ledger (id BIGINT)")
            store = store_of(second)
            with psycopg.connect(store._conninfo, autocommit=True) as holding:
                holding.execute("SELECT pg_advisory_lock(%s, %s)", (WRITING, store._number))
                with pytest.raises(StoreBusy, match="another process held the write lock"):
                    second.sender("work").send(Message(b"x"))
                with (
                    pytest.raises(StoreBusy, match="another process held the write lock"),
                    second.transaction() as tx,
                ):
                    tx.execute("INSERT INTO ledger VALUES (1)")
                    tx.send("work", Message(b"y"))
            second.sender("work").send(Message(b"x"))
            with second.transaction() as tx:
                assert tx.execute("SELECT count(*) FROM ledger").fetchone() == (0,)
            assert second.queue("work").counts.total == 1


class _BrokerLoad(Load):
    """Threads that share a broker."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker

    def send(self) -> None:
        number = 0
        with self._broker.sender(QUEUE) as sender:
            while not self.stopped:
                number += 1
                self.sending.add(f"m{number}")
                try:
                    sender.send(Message(b"x" * (number % 3000), message_id=f"m{number}"))
                    self.sent.add(f"m{number}")
                except AGAIN as error:
                    self.note(error)

    def receive(self) -> None:
        with self._broker.receiver(QUEUE) as receiver:
            while not self.stopped:
                try:
                    messages = receiver.receive(3, max_wait=0.1)
                    names = [m.message_id for m in messages]
                    self.completing.update(names)
                    receiver.complete(messages)
                    self.note_completed(names)
                except (MessageLockLost, *AGAIN) as error:
                    self.note(error)


class TestFailures:
    """The server ends connections, or itself."""

    def test_backends_that_are_ended(self, postgres: Server, url: str) -> None:
        draw = random.Random(5)
        with lazaretto.connect(url) as broker, psycopg.connect(postgres.url, autocommit=True) as operator:
            broker.create_queue("work", QueueOptions(lock_duration=2))
            with _BrokerLoad(broker) as load:
                for _ in range(50):
                    load.wait_for(draw.randrange(1, 8))
                    operator.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE application_name = 'lazaretto' AND random() < 0.7"
                    )
                load.wait_for(50)
        load.check(url)

    def test_queries_on_connections_that_are_ended(self, postgres: Server, url: str) -> None:
        with lazaretto.connect(url) as broker, psycopg.connect(postgres.url, autocommit=True) as operator:
            broker.create_queue("work")
            broker.sender("work").send(Message(b"1"))
            for query in (broker._store.mark_of_commits, lambda: broker.peek("work")):
                assert query()
                operator.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    "WHERE application_name = 'lazaretto'"
                )
                assert query()

    def test_closing_does_not_wait_for_a_server_that_is_away(self) -> None:
        server = start()
        assert server.process is not None and server.run is not None
        try:
            with new_store(server.url) as url:
                broker = lazaretto.connect(url, timeout=3_600.0)
                broker.create_queue("work")
                server.process.send_signal(signal.SIGQUIT)
                server.process.wait(120)
                with concurrent.futures.ThreadPoolExecutor() as threads:
                    waits = threads.submit(broker.peek, "work")
                    concurrent.futures.wait([waits], 0.2)
                    assert threads.submit(broker.close).result(120) is None
                    assert isinstance(waits.exception(120), lazaretto.LazarettoError)
                server.process = server.run()
                wait_for(server.url)
        finally:
            server.stop()

    def test_a_server_that_falls_over_and_comes_back(self) -> None:
        server = start()
        try:
            with new_store(server.url) as url:
                with lazaretto.connect(url, timeout=120.0) as broker:
                    broker.create_queue("work", QueueOptions(lock_duration=2))
                    with _BrokerLoad(broker) as load:
                        for _ in range(2):
                            load.wait_for(60)
                            server.crash()
                            wait_for(server.url)
                        load.wait_for(60)
                load.check(url)
        finally:
            server.stop()

    def test_a_commit_that_is_not_sure_to_be_on_disk_is_not_done_again(self, url: str) -> None:
        with lazaretto.connect(url) as one, lazaretto.connect(url) as other:
            one.create_queue("work")
            store = other._store
            assert isinstance(store, PostgresStore)
            commits = store._commits
            fails = Statement(Query("SELECT 1 / (random() * 0)::int"), place)
            commits.dialect = dataclasses.replace(
                commits.dialect, statements={**commits.dialect.statements, "flush": fails}
            )
            # The disk is waited for outside the lock where others write too.
            one.sender("work").send(Message(b"1"))
            with pytest.raises(CommitUnknown):
                other.sender("work").send(Message(b"2"))
            assert [m.body for m in one.peek("work", 9)] == [b"1", b"2"]
            one.sender("work").send(Message(b"3"))
            assert [m.body for m in other.peek("work", 9)] == [b"1", b"2", b"3"]

    def test_no_server(self) -> None:
        with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
            lazaretto.connect("postgresql://ann:secret@127.0.0.1:1/orders")
        assert caught.value.retriable
        assert "secret" not in str(caught.value)

    def test_no_connection_left(self, postgres: Server, url: str) -> None:
        """What is open goes on; what cannot be opened says so, and can later."""
        with psycopg.connect(postgres.url, autocommit=True) as operator:
            role = f"few_{random.randrange(1 << 40):x}"
            operator.execute(f"CREATE ROLE {role} LOGIN SUPERUSER".encode())
            try:
                theirs = re.sub(r"//\w+@", f"//{role}@", url)
                with lazaretto.connect(theirs, timeout=0.3) as broker:
                    broker.create_queue("work")
                    operator.execute(f"ALTER ROLE {role} NOSUPERUSER CONNECTION LIMIT 1".encode())
                    with pytest.raises(StoreUnavailable, match="too many connections"):
                        lazaretto.connect(theirs, timeout=0.3)
                    broker.sender("work").send(Message(b"x"))
                    operator.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1".encode())
                    with lazaretto.connect(url) as another:
                        assert [m.body for m in another.receiver("work").receive()] == [b"x"]
            finally:
                operator.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP ROLE {role}".encode())

    def test_a_server_that_takes_no_changes(self, postgres: Server, url: str) -> None:
        with lazaretto.connect(url) as broker, psycopg.connect(postgres.url, autocommit=True) as operator:
            broker.create_queue("work")
            operator.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            operator.execute("SELECT pg_reload_conf()")
            try:
                until = time.monotonic() + 120
                with pytest.raises(StoreReadOnly, match="rejects changes"):
                    while time.monotonic() < until:
                        broker.sender("work").send(Message(b"x"))
            finally:
                operator.execute("SET default_transaction_read_only = off")
                operator.execute("ALTER SYSTEM RESET default_transaction_read_only")
                operator.execute("SELECT pg_reload_conf()")
            while True:
                try:
                    broker.sender("work").send(Message(b"last"))
                    break
                except StoreReadOnly:
                    assert time.monotonic() < until


class TestOpening:
    """Addresses, and what is found there."""

    def test_address_and_password_from_a_service_file(
        self, postgres: Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parts = psycopg.conninfo.conninfo_to_dict(postgres.url)
        wanted = ("host", "port", "user", "dbname")
        lines = [f"{name}={parts[name]}" for name in wanted if name in parts]
        file = tmp_path / "pg_service.conf"
        file.write_text("\n".join(["[queues]", *lines, "password=secret", ""]))
        monkeypatch.setenv("PGSERVICEFILE", str(file))
        schema = re.search(r"schema=(\w+)", url)
        assert schema is not None
        with lazaretto.connect(f"postgresql:///?service=queues&schema={schema[1]}") as broker:
            broker.create_queue("work")
            assert "secret" not in repr(broker.facts())
        with lazaretto.connect(url) as broker:
            assert broker.queue("work").path == "work"

    def test_a_store_that_must_exist(self, url: str) -> None:
        with pytest.raises(StoreNotFound):
            lazaretto.connect(url, create=False)

    def test_a_schema_of_somebody_elses(self, postgres: Server) -> None:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA foreigner CREATE TABLE things (x int)")
            try:
                with pytest.raises(StoreForeign, match="belongs to another application"):
                    lazaretto.connect(f"{postgres.url}?schema=foreigner")
            finally:
                connection.execute("DROP SCHEMA foreigner CASCADE")

    @pytest.mark.parametrize("name", ["", "Upper", "a-b", 'x"; DROP', "pg_catalog", "x" * 60])
    def test_names_that_a_schema_cannot_have(self, postgres: Server, name: str) -> None:
        with pytest.raises(InvalidOption, match="expected schema to be a name"):
            lazaretto.connect(f"{postgres.url}?schema={name}")

    def test_two_at_once_make_one(self, url: str) -> None:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            brokers = list(pool.map(lambda _: lazaretto.connect(url), range(4)))
        assert len({broker.facts()["store_id"] for broker in brokers}) == 1
        for broker in brokers:
            broker.close()

    def test_texts_that_the_server_cannot_keep(self, url: str) -> None:
        with lazaretto.connect(url) as broker:
            broker.create_queue("work")
            broker.sender("work").send(Message(b"\0", message_id="a\0b", properties={"p": "\0"}))
            receiver = broker.receiver("work")
            (message,) = receiver.receive()
            assert (message.message_id, message.properties) == ("a\ufffdb", {"p": "\0"})
            receiver.dead_letter(message, reason="x\0y", error=ValueError("\0"))
            (letter,) = broker.dead_letters("work")
            assert (letter.reason, letter.error_message) == ("x\ufffdy", "\ufffd")


def test_timers_are_not_looked_for_at_each_commit_of_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many hosts that wait, each would ask the server as often as all of them commit."""
    with lazaretto.connect(url) as broker, lazaretto.connect(url) as other:
        for path in ("work", "elsewhere"):
            broker.create_queue(path)
        reads, read = 0, other._store.read

        def count(query: Callable[[Transaction], T]) -> T:
            nonlocal reads
            reads += 1
            return read(query)

        with other.receiver("work") as receiver:
            waiting = threading.Thread(target=lambda: receiver.receive(1, 60.0))
            waiting.start()
            sender = broker.sender("elsewhere")
            monkeypatch.setattr(other._store, "read", count)
            begun, sent = time.monotonic(), 0
            while time.monotonic() < begun + 1.0 or sent < 200:
                sender.send(Message(b"x"))
                sent += 1
            # Ten times a second, and now and then for the dead.
            assert reads < 40 + 20 * (time.monotonic() - begun)
            broker.sender("work").send(Message(b"y"))
            waiting.join()
