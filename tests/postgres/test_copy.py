"""Copies between a file and a server: everything is there, nothing is held, and breaking off does no harm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from servers import Server, new_store

import lazaretto
from lazaretto import (
    Broker,
    CorrelationFilter,
    Message,
    PoisonPolicy,
    QueueOptions,
    Rule,
    StoreError,
    StoreIncomplete,
    commands,
)
from lazaretto.store.addresses import copy_store
from lazaretto.store.sql import copy_store as copying

AT = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def server(postgres: Server) -> Iterator[str]:
    with new_store(postgres.url) as found:
        yield found


@pytest.fixture
def other(postgres: Server) -> Iterator[str]:
    with new_store(postgres.url) as found:
        yield found


def fill(broker: Broker) -> None:
    """Put something of everything into a store."""
    policy = PoisonPolicy(receive_retry_count=0, max_retry_cycles=0)
    broker.create_queue("work", QueueOptions(policy=policy, requires_duplicate_detection=True))
    broker.create_queue("chats", QueueOptions(requires_session=True))
    broker.create_topic("news")
    broker.create_subscription("news", "all")
    broker.add_rule("news", "all", Rule("red", CorrelationFilter(properties={"colour": "red"})))
    sender = broker.sender("work")
    sender.send([Message(b"%d" % n, message_id=f"m{n}", properties={"n": n}) for n in range(50)])
    sender.send(Message(b"x" * 100_000, message_id="large"))
    sender.schedule([Message(b"later", message_id="later")], AT)
    broker.sender("news").send(Message(b"x" * 5_000))
    broker.sender("chats").send([Message(b"hello", session_id=name) for name in ("a", "b")])
    receiver = broker.receiver("work")
    receiver.complete(receiver.receive(5))
    for message in receiver.receive(3):
        receiver.dead_letter(message, reason="Spoiled", description="it smells")
    receiver.defer(receiver.receive()[0])
    for message in receiver.receive(2):
        receiver.abandon(message, error=ZeroDivisionError("cannot be divided"))
    with broker.receiver("chats", session="a") as session:
        session.receive()
        session.set_session_state(b"midway")
    broker.resubmit("work", next(iter(broker.dead_letters("work"))).sequence_number)
    broker.dialogs.create_service("Front", "front")
    broker.dialogs.create_service("Shop", "shop", ["DEFAULT"], retention=True)
    with broker.dialogs.transaction() as work:
        conversation = work.begin_dialog("Front", "Shop", lifetime=86_400.0)
        work.send(conversation, body=b"hello")
        work.send(conversation, body=b"still there?")
        work.set_timer(conversation, 3_600.0)
    with broker.dialogs.transaction("shop") as work:
        found = work.get_conversation_group()
        assert found is not None
        work.set_group_state(found[0], b"greeted")
        work.receive(group=found[0])
    broker.run(commands.GrantRole(person="ana", role="operator", queue="work"))
    broker.run(commands.CreateToken(person="ana", label="laptop"))
    broker.run(commands.SetFourEyes(letters=10))
    broker.run(commands.SetRedaction(field="body.card", queue="work", form="hash"))


def told(broker: Broker) -> dict[str, Any]:
    """Return all that can be seen of a store from outside."""
    found: dict[str, Any] = {}
    for queue in broker.queues():
        peeked = broker.peek(queue.path, 1_000)
        found[queue.path] = (
            queue.options,
            queue.counts,
            [(m.sequence_number, m.message_id, m.body, m.state, m.delivery_count) for m in peeked],
        )
    found["dialogs"] = [(end, broker.dialogs.timeline(end.dialog)) for end in broker.dialogs.conversations()]
    dead = list(broker.dead_letters("work"))
    found["dead"] = [
        (
            d.sequence_number,
            d.reason,
            [a.outcome for a in broker.dead_letter("work", d.sequence_number).attempts],
        )
        for d in dead
    ]
    found["access"] = (broker.people(), broker.tokens(), broker.four_eyes(), broker.redaction())
    found["events"] = [(e.position, e.kind) for e in broker.events()]
    return found


def test_there_and_back(server: str, tmp_path: Path) -> None:
    file, again = (f"sqlite:///{tmp_path / name}.db" for name in ("first", "again"))
    with lazaretto.connect(file) as broker:
        fill(broker)
        before, store_id = told(broker), broker.facts()["store_id"]
    copied = copy_store(file, server)
    assert {c.table: c.rows for c in copied}["lazaretto_messages"] >= 50
    with lazaretto.connect(server) as broker:
        assert told(broker) == before
        assert broker.facts()["store_id"] == store_id
        assert broker.check() == []
    copy_store(server, again)
    with lazaretto.connect(again) as broker:
        assert told(broker) == before
        # Numbers go on behind those that were used.
        assert broker.sender("work").send(Message(b"new", message_id="new")) > 52
        assert broker.sender("work").send(Message(b"old", message_id="large")) == 51
        broker.sender("news").send(Message(b"y" * 5_000))
        assert broker.check() == []


def test_locks_are_dropped(server: str, tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path / 'first.db'}"
    with lazaretto.connect(file) as broker:
        fill(broker)
        held = broker.receiver("work").receive(10)
        session = broker.receiver("chats", session="b")
        session.receive()
        broker._store.close()  # as a host does that is killed: it gives nothing back
    copy_store(file, server)
    with lazaretto.connect(server) as broker:
        assert broker.queue("work").counts.locked == 0
        got = broker.receiver("work").receive(10)
        assert [m.message_id for m in got] == [m.message_id for m in held]
        assert {m.deliveries for m in got} == {2}
        with broker.receiver("chats", session="b") as taken:
            assert [m.body for m in taken.receive()] == [b"hello"]


def test_a_copy_that_was_broken_off(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = f"sqlite:///{tmp_path / 'first.db'}"
    with lazaretto.connect(file) as broker:
        fill(broker)
    monkeypatch.setattr(copying, "_CHUNK", 10)

    def stop(table: str, done: int, total: int) -> None:
        if table == "lazaretto_messages" and done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_store(file, server, stop)
    with pytest.raises(StoreIncomplete, match="interrupted copy"):
        lazaretto.connect(server)
    # Meanwhile the source goes on.
    with lazaretto.connect(file) as broker:
        broker.receiver("work").complete(broker.receiver("work").receive(1))
        broker.sender("work").send(Message(b"more", message_id="more"))
        before = told(broker)
    first: dict[str, int] = {}

    def note(table: str, done: int, total: int) -> None:
        first.setdefault(table, done)

    copy_store(file, server, note)
    assert first["lazaretto_messages"] >= 20
    with lazaretto.connect(server) as broker:
        assert told(broker) == before


def test_between_two_schemas_of_a_server(server: str, other: str) -> None:
    with lazaretto.connect(server) as broker:
        fill(broker)
        before = told(broker)
    copy_store(server, other)
    with lazaretto.connect(other) as broker:
        assert told(broker) == before
        broker.sender("news").send(Message(b"y" * 5_000))
        assert broker.check() == []


def test_a_target_that_is_used(server: str, tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path / 'first.db'}"
    for url in (file, server):
        lazaretto.connect(url).close()
    with pytest.raises(StoreError, match="not empty"):
        copy_store(file, server)
    # A refused copy leaves it as it was.
    lazaretto.connect(server).close()


def test_the_command(server: str, tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path / 'first.db'}"
    with lazaretto.connect(file) as broker:
        fill(broker)

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "lazaretto", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    found = json.loads(run("store", "copy", server, "--store", file, "--json"))
    assert {row["table"] for row in found} >= {"lazaretto_messages", "lazaretto_events"}
    assert json.loads(run("store", "check", "--store", server, "--json"))["ok"] is True
    assert "the store is OK" in run("store", "check", "--store", file)
    assert run("store", "migrate", "--after", "--store", server) == "already up to date\n"
    assert "copied" in run("store", "copy", f"sqlite:///{tmp_path / 'back.db'}", "--store", server)
