"""A handler that stays at a message until its process is ended, and what tests ask of the message."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lazaretto import Broker, PoisonPolicy
from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer


def hold(message: Any) -> Any:
    """Say that it has begun, and stay until this process is ended; the second time, return at once."""
    folder = Path(message.body.decode())
    if (folder / "held").exists():
        return {"n": 1}
    (folder / "held").touch()
    (folder / "begun").write_text("")
    return (folder / "never").read_text()


def wait_once(folder: Path) -> None:
    """Wait until the message is at work, unless that was seen before."""
    if not (folder / "seen").exists():
        (folder / "begun").read_text()
        (folder / "seen").touch()


@pytest.fixture
def folder(broker: Broker, tmp_path: Path) -> Path:
    """What a held message and its test tell each other by. On its queue a message is tried once."""
    for name in ("begun", "never"):
        os.mkfifo(tmp_path / name)
    broker.update_queue("out", policy=PoisonPolicy(receive_retry_count=0))
    return tmp_path


def read_once(broker: Broker, queue: str, name: str) -> None:
    """Take what waits, and leave it as a driver that dies: so each message of it is noted as it begins."""
    consumer = ClaimConsumer(store_of(broker), queue, name)
    consumer.attach()
    number = consumer.take(consumer.last_claim())
    assert number is not None
    ((_, shard),) = consumer.shards(number - 1, number)
    consumer.start(shard.token, "a task")


def nothing_charged(broker: Broker, queue: str) -> None:
    """All of a queue is done, and nothing was charged."""
    assert list(broker.dead_letters(queue)) == []
    assert broker.queue(queue).counts.total == 0
    assert [event for event in broker.events() if event.kind == "killer_found" and event.queue == queue] == []
