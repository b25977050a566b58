"""Spreads whose servers fail, and whose processes are killed."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Server, new_store, start, wait_for

import lazaretto
from lazaretto import CommitUnknown, Message, PartlySent, QueueOptions, StoreUnavailable
from lazaretto.spread import SpreadBroker, connect, members
from lazaretto.store.postgres.dialect import place
from lazaretto.store.sql.query_files import Query
from lazaretto.store.sql.statements import Statement

CHILD = Path(__file__).with_name("child.py")


@pytest.fixture
def failing(postgres: Server) -> Iterator[tuple[Server, list[str]]]:
    """Yield a server to end, and the addresses of two stores, of which the first is on it."""
    server = start()
    try:
        with new_store(postgres.url) as other:
            yield server, [f"{server.url}?schema=one", other]
    finally:
        server.stop()


def stop(server: Server) -> None:
    assert server.process is not None
    server.process.send_signal(signal.SIGQUIT)
    server.process.wait(30)


def resume(server: Server) -> None:
    assert server.run is not None
    server.process = server.run()
    wait_for(server.url)


def keys(spread: SpreadBroker, store: int) -> list[str]:
    """Return some keys of a store."""
    own = spread.broker_at(store)
    return [key for key in map(str, range(40)) if spread.broker_of(key) is own][:5]


def test_a_server_that_is_gone(failing: tuple[Server, list[str]]) -> None:
    server, urls = failing
    with connect(urls, home=0, timeout=1.0) as spread:
        spread.each(lambda broker: broker.create_queue("orders", QueueOptions(lock_duration=60)))
        there, here = keys(spread, 0), keys(spread, 1)
        sender, receiver = spread.sender("orders"), spread.receiver("orders")
        sender.send([Message(b"before", partition_key=key) for key in there])
        stop(server)
        # What has a key waits for its store; what has none goes elsewhere.
        with pytest.raises(StoreUnavailable):
            sender.send(Message(b"x", partition_key=there[0]))
        assert sender.send(Message(b"free")).store == 1
        with pytest.raises(PartlySent) as caught:
            sender.send([Message(b"some", partition_key=key) for key in (there[0], here[0])])
        placed = caught.value.placed
        assert [None if place is None else place.store for place in placed] == [None, 1]
        assert isinstance(caught.value.__cause__, StoreUnavailable)
        got = []
        while found := receiver.receive(10, max_wait=0.5):
            receiver.complete(found)
            got += [message.body for message in found]
        assert sorted(got) == [b"free", b"some"]
        resume(server)
        got = []
        while len(got) < len(there):
            found = receiver.receive(10, max_wait=30)
            assert found, "the store came back, and its messages did not"
            receiver.complete(found)
            got += [message.body for message in found]
        assert got == [b"before"] * len(there)
        assert spread.counts("orders").total == 0


def test_a_spread_is_opened_without_a_server_that_is_gone(failing: tuple[Server, list[str]]) -> None:
    server, urls = failing
    stop(server)
    with pytest.raises(StoreUnavailable):
        connect(urls, timeout=1.0)
    resume(server)
    with connect(urls) as spread:
        spread.each(lambda broker: broker.create_queue("orders"))
    stop(server)
    with connect(urls, home=0, timeout=1.0) as spread:
        assert spread.sender("orders").send(Message(b"x")).store == 1
        assert [message.body for message in spread.receiver("orders").receive(1)] == [b"x"]
        with pytest.raises(StoreUnavailable):
            spread.counts("orders")
        resume(server)
        assert spread.counts("orders").total == 1


def test_a_send_that_may_have_been_committed(failing: tuple[Server, list[str]]) -> None:
    server, urls = failing
    with connect(urls, home=0, timeout=1.0) as spread, lazaretto.connect(urls[1]) as other:
        spread.each(lambda broker: broker.create_queue("orders"))
        there, here = keys(spread, 0), keys(spread, 1)
        sender = spread.sender("orders")
        sender.send([Message(b"x", partition_key=key) for key in (there[0], here[0])])
        stop(server)
        commits = spread.broker_at(1)._store._commits  # type: ignore[attr-defined]
        fails = Statement(Query("SELECT 1 / (random() * 0)::int"), place)
        commits.dialect = dataclasses.replace(
            commits.dialect, statements={**commits.dialect.statements, "flush": fails}
        )
        # The disk is waited for outside the lock where others write too.
        other.sender("orders").send(Message(b"x"))
        with pytest.raises(CommitUnknown):
            sender.send([Message(b"x", partition_key=key) for key in (there[0], here[0])])


def test_servers_that_fail_in_turn(failing: tuple[Server, list[str]]) -> None:
    """One is back before it is tried again, and the other one is gone."""
    server, urls = failing
    second = start()
    try:
        with connect([urls[0], second.url], home=0, timeout=1.0) as spread:
            spread.each(lambda broker: broker.create_queue("orders"))
            sender, receiver = spread.sender("orders"), spread.receiver("orders")
            stop(server)
            assert sender.send(Message(b"one")).store == 1
            resume(server)
            stop(second)
            assert sender.send(Message(b"two")).store == 0
            assert [message.body for message in receiver.receive(1)] == [b"two"]
    finally:
        second.stop()


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[SpreadBroker]:
    """Yield a spread at home in a store whose server takes connections and never answers."""
    urls = [str(tmp_path / name) for name in ("one.db", "two.db")]
    with connect(urls) as spread:
        spread.each(lambda broker: broker.create_queue("orders"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls[0] = f"postgresql://lazaretto@127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=2"
        with connect(urls, home=0) as spread:
            yield spread


def test_threads_share_an_attempt_to_connect(hanging: SpreadBroker) -> None:
    there = next(key for key in map(str, range(40)) if hanging._members.place_of(key) == 0)
    message, start = Message(b"x", partition_key=there), threading.Barrier(4)

    def send() -> None:
        start.wait()
        with pytest.raises(StoreUnavailable):
            hanging.sender("orders").send(message)

    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for sending in [pool.submit(send) for _ in range(4)]:
            sending.result()
    assert time.monotonic() - begun < 5


def test_one_thread_finds_out_whether_a_server_is_back(
    hanging: SpreadBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_REST", 0.0)
    receiver = hanging.receiver("orders")
    assert receiver.receive() == []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        trying = pool.submit(receiver.receive)
        while not hanging._members.stores[0].rests:
            assert not trying.done()
        begun = time.monotonic()
        assert receiver.receive() == []
        assert time.monotonic() - begun < 1
        assert trying.result() == []


def test_no_server_at_all(failing: tuple[Server, list[str]]) -> None:
    server, urls = failing
    with connect(urls[:1], timeout=1.0) as spread:
        spread.each(lambda broker: broker.create_queue("orders"))
        receiver = spread.receiver("orders")
        stop(server)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                receiver.receive(1, max_wait=5)
        with pytest.raises(StoreUnavailable):
            spread.sender("orders").send(Message(b"x"))
        with pytest.raises(StoreUnavailable):
            spread.accept_next_session("orders", max_wait=5)


def test_killed_processes(urls: list[str]) -> None:
    """What was sent is handed out, and what was completed never again, whoever is killed meanwhile."""
    with connect(urls) as spread:
        spread.each(lambda broker: broker.create_queue("orders", QueueOptions(lock_duration=1)))
        children = [
            subprocess.Popen([sys.executable, CHILD, str(home), *urls], stdout=subprocess.PIPE, text=True)
            for home in (0, 1, 2, 0)
        ]
        said: list[str] = []
        enough = threading.Event()

        def listen(child: subprocess.Popen[str]) -> None:
            assert child.stdout is not None
            for line in child.stdout:
                said.append(line.rstrip("\n"))
                if len(said) >= 400:
                    enough.set()

        listeners = [threading.Thread(target=listen, args=(child,)) for child in children]
        for listener in listeners:
            listener.start()
        assert enough.wait(120)
        for child in children:
            child.kill()
        for child, listener in zip(children, listeners, strict=True):
            child.wait()
            listener.join()
            assert child.stdout is not None
            child.stdout.close()
        told = [line.split() for line in said]
        sent = {name for verb, name, *rest in told if verb == "sent"}
        done = Counter(name for verb, name, *rest in told if verb == "done")
        assert len(done) > 50
        left: Counter[str] = Counter()
        receiver = spread.receiver("orders")
        while found := receiver.receive(50, max_wait=3):
            receiver.complete(found)
            left.update(message.message_id for message in found)
        assert set(done.values()) <= {1}
        assert set(left.values()) <= {1}
        assert not done.keys() & left.keys()
        assert sent <= done.keys() | left.keys() | _in_doubt(told)
        assert spread.counts("orders").total == 0


def _in_doubt(told: list[list[str]]) -> set[str]:
    """Return what a child was completing when it was killed: that may have been done, untold."""
    latest = {words[2]: words[1] for words in told if words[0] == "doing"}
    finished = {words[1] for words in told if words[0] == "done"}
    return set(latest.values()) - finished
