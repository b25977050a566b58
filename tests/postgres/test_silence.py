"""A server that vanishes without a word: nothing waits for it for ever, and long work is not taken for it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from servers import Server, new_store

import lazaretto
from lazaretto import CommitUnknown, Message, StoreUnavailable, TransactionError
from lazaretto.broker.sender import send_operation, sendable
from lazaretto.engine.messages.prepare import prepare_all
from lazaretto.store.postgres import server_session, watch

#: What a call may take at most, once the server is silent.
LONGEST = 60.0
_FROZEN = "SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%last straw%'"


class Proxy:
    """Forwards connections to a server, until it freezes: it closes nothing, and takes what is sent."""

    def __init__(self, server: Server) -> None:
        parts = conninfo_to_dict(server.url)
        self._target = (str(parts["host"]), int(str(parts["port"])))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self.frozen = threading.Event()
        #: Once it has forwarded a statement that holds these bytes, no answer to it comes back any more.
        self.mute_behind: bytes | None = None
        #: Connections of before stay frozen, new ones are forwarded.
        self.frozen_pairs: set[socket.socket] = set()
        self._refusing = threading.Event()
        self._refused = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self, url: str) -> str:
        return url.replace(f":{self._target[1]}/", f":{self.port}/")

    def freeze_what_is_open(self) -> None:
        self.frozen_pairs = set(self._pairs)

    def refuse(self) -> None:
        """Freeze what is open, and let nobody connect any more."""
        self.frozen.set()
        self._refusing.set()
        assert self._refused.wait(LONGEST)

    def _run(self) -> None:
        while not self._stopping:
            if self._refusing.is_set() and not self._refused.is_set():
                # Here, because this thread selects on it.
                self._open.remove(self._listener)
                self._listener.close()
                self._refused.set()
            watched = (
                [s for s in self._open if s not in self.frozen_pairs] if not self.frozen.is_set() else []
            )
            ready, _, _ = select.select(watched, [], [], 0.01)
            if not watched:
                time.sleep(0.01)
            for one in ready:
                if one is self._listener:
                    client, _ = one.accept()
                    server = socket.create_connection(self._target)
                    self._pairs |= {client: server, server: client}
                    self._open += [client, server]
                elif one in self._pairs and not self.frozen.is_set():
                    self._forward(one)

    def _forward(self, one: socket.socket) -> None:
        other = self._pairs[one]
        with contextlib.suppress(OSError):
            data = one.recv(65_536)
            if data:
                other.sendall(data)
                if self.mute_behind is not None and self.mute_behind in data:
                    self.frozen_pairs = {other}
                return
        for each in (one, other):
            self._open.remove(each)
            self._pairs.pop(each)
            each.close()

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()
        for each in self._open:
            each.close()


@pytest.fixture
def proxy(postgres: Server) -> Proxy:
    return Proxy(postgres)


@pytest.fixture
def url(postgres: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(watch, "_SILENCE", 0.5)
    monkeypatch.setattr(watch, "_QUESTION", 2.0)
    with new_store(postgres.url) as url:
        yield f"{proxy.url(url)}&connect_timeout=2"
        # The server ends what is still open through it, which may hold what is dropped now.
        proxy.stop()


def timed(call: Callable[[], object], *expected: type[Exception]) -> float:
    begun = time.monotonic()
    with pytest.raises(expected):
        call()
    return time.monotonic() - begun


def test_no_call_waits_for_ever(url: str, proxy: Proxy) -> None:
    broker = lazaretto.connect(url, timeout=1)
    broker.create_queue("q")
    sender, receiver = broker.sender("q"), broker.receiver("q")
    sender.send([Message(b"1"), Message(b"2")])
    (message,) = receiver.receive()
    transaction = broker.transaction()
    transaction.execute("SELECT 1")
    proxy.frozen.set()
    assert timed(lambda: transaction.execute("SELECT 1"), StoreUnavailable) < LONGEST
    transaction.rollback()
    calls: list[Callable[[], object]] = [
        lambda: sender.send(Message(b"3")),
        lambda: receiver.complete(message),
        broker.queues,
        lambda: lazaretto.connect(url, timeout=1),
    ]
    for call in calls:
        assert timed(call, StoreUnavailable, CommitUnknown) < LONGEST
    proxy.frozen.clear()
    # Nobody knows that the first connection is gone but the server, which undoes what it had begun.
    end = time.monotonic() + 120
    while True:
        try:
            receiver.complete(message)
            sender.send(Message(b"4"))
            break
        except lazaretto.StoreError:
            assert time.monotonic() < end
    assert {m.body for m in broker.peek("q", 9)} >= {b"2", b"4"}
    broker.close()


def test_a_commit_whose_answer_never_comes(url: str, proxy: Proxy) -> None:
    broker = lazaretto.connect(url, timeout=1)
    broker.create_queue("q")
    # What a process must know of a queue it asks once, and the commit after that goes out whole.
    broker.sender("q").send(Message(b"before"))
    proxy.mute_behind = b"the last straw"
    assert timed(lambda: broker.sender("q").send(Message(b"the last straw")), CommitUnknown) < LONGEST
    proxy.mute_behind = None
    assert [m.body for m in broker.peek("q", 9)] == [b"before", b"the last straw"]
    broker.close()


def test_connections_that_are_dead_beside_new_ones_that_are_not(url: str, proxy: Proxy) -> None:
    """As where a gateway has forgotten the old ones."""
    with lazaretto.connect(url, timeout=10) as broker:
        broker.create_queue("q")
        broker.peek("q")
        proxy.freeze_what_is_open()
        begun = time.monotonic()
        for call in (lambda: broker.peek("q"), lambda: broker.sender("q").send(Message(b"x"))):
            with contextlib.suppress(StoreUnavailable):
                call()
        broker.sender("q").send(Message(b"y"))
        assert time.monotonic() - begun < LONGEST
        assert [m.body for m in broker.peek("q", 9)][-1] == b"y"


def test_who_is_cut_off_within_sql_that_does_not_pause_holds_nobody_up(
    url: str, postgres: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a host is that settles with SQL: nobody else would get the store while its connection lives."""
    monkeypatch.setattr(watch, "_SILENCE", 60.0)
    monkeypatch.setitem(server_session.SILENT_WRITERS, server_session.SILENCE, 5000)
    straight = url.replace(str(proxy.port), str(conninfo_to_dict(postgres.url)["port"]))
    with lazaretto.connect(url, timeout=60) as slow, lazaretto.connect(straight, timeout=60) as quick:
        slow.create_queue("q")
        held = slow._store.exclusive(pauses=False)
        held.execute("CREATE TABLE never (id BIGINT)", ())
        # The server has done it, and everything that goes with it; the answer does not come.
        proxy.mute_behind = b"the last straw"
        errors: list[Exception] = []

        def execute() -> None:
            try:
                held.execute("SELECT 'the last straw'", ())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=execute)
        thread.start()
        with psycopg.connect(postgres.url, autocommit=True) as looking:
            while not looking.execute(_FROZEN).fetchall():
                time.sleep(0.01)
        proxy.frozen.set()
        quick.create_topic("news")
        with psycopg.connect(postgres.url, autocommit=True) as looking:
            # What it has locked of its own is free, too.
            while looking.execute(_FROZEN).fetchall():
                time.sleep(0.01)
        proxy.mute_behind, proxy.frozen_pairs = None, set()
        proxy.frozen.clear()
        thread.join(120)
        # The answer has come by now, and that the transaction has ended is in what follows it.
        assert errors == []
        for kind in (StoreUnavailable, TransactionError):
            with pytest.raises(kind):
                held.execute("INSERT INTO never VALUES (1)", ())
        held.rollback()
        again = slow._store.exclusive(pauses=False)
        assert again.execute("SELECT to_regclass('never')", ()).fetchone() == (None,)
        again.execute("CREATE TABLE never (id BIGINT)", ())
        again.commit(send_operation(sendable("q"), None, prepare_all([Message(b"x")])))
        assert [m.body for m in quick.peek("q", 9)] == [b"x"]


def test_a_transaction_of_the_users_own_may_pause(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(server_session.SILENT_WRITERS, server_session.SILENCE, 200)
    with lazaretto.connect(url, timeout=10) as broker:
        broker.create_queue("q")
        with broker.transaction() as tx:
            tx.execute("SELECT 1")
            time.sleep(0.5)
            tx.send("q", Message(b"x"))
        assert [m.body for m in broker.peek("q", 9)] == [b"x"]


def test_long_work_is_not_taken_for_silence(url: str) -> None:
    with lazaretto.connect(url, timeout=60) as broker, lazaretto.connect(url, timeout=60) as other:
        broker.create_queue("q")
        with broker.transaction() as tx:
            tx.execute("SELECT pg_sleep(3)")
            tx.send("q", Message(b"x"))
            waiting = threading.Thread(target=lambda: other.sender("q").send(Message(b"y")))
            waiting.start()
            tx.execute("SELECT pg_sleep(2)")
            waiting.join()
        assert [m.body for m in broker.peek("q", 9)] == [b"y", b"x"]


@pytest.mark.skipif(not os.environ.get("LAZARETTO_SOAK"), reason="it waits for half a minute")
def test_a_writer_that_is_cut_off_within_a_commit_is_ended_by_who_waits(postgres: Server) -> None:
    """It holds the lock of the store, and neither the server nor it knows that nothing comes any more."""
    proxy = Proxy(postgres)
    with new_store(postgres.url) as url:
        slow = lazaretto.connect(proxy.url(url), timeout=5)
        slow.create_queue("q")
        commits = slow._store._commits  # type: ignore[attr-defined]
        finish, reached = commits.finish_with, threading.Event()

        def freeze(connection: Any, *arguments: Any, **named: Any) -> Any:
            # What was sent ahead is with the server when it has answered.
            connection.execute("SELECT 1").fetchone()
            proxy.frozen.set()
            reached.set()
            return finish(connection, *arguments, **named)

        commits.finish_with = freeze
        errors: list[Exception] = []

        def change() -> None:
            try:
                slow.create_queue("never")
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=change, daemon=True)
        thread.start()
        assert reached.wait(60)
        with lazaretto.connect(url, timeout=6) as quick:
            begun = time.monotonic()
            quick.create_queue("other")
            assert time.monotonic() - begun < LONGEST
            assert {"q", "other"} <= {queue.path for queue in quick.queues()}
        proxy.frozen.clear()
        thread.join(60)
        assert [isinstance(error, CommitUnknown | StoreUnavailable) for error in errors] == [True]
        slow.close()
        proxy.stop()
