"""The sink has large claims' completed messages removed while the next micro-batch is at work."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from lazaretto import Broker, Message
from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.claims import settle_claims
from lazaretto.engine.claims.settle_claims import staged_rows
from lazaretto.errors import StoreUnavailable
from lazaretto.spark.sink import SettlingSink
from lazaretto.spark.source_options import parse

from .driver import Told

CLAIM = 10


@pytest.fixture
def consumer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> ClaimConsumer:
    monkeypatch.setattr(settle_claims, "_LARGE", 3)
    broker.sender("work").send([Message(b"x")] * 2 * CLAIM)
    consumer = ClaimConsumer(store_of(broker), "work", "spark")
    consumer.attach()
    return consumer


def batch(consumer: ClaimConsumer, number: int) -> Told:
    """Take a claim and do its work; return what the tasks tell the sink."""
    assert consumer.take(number - 1, max_rows=CLAIM) == number
    ((_, shard),) = consumer.shards(number - 1, number)
    keys = consumer._store.read(lambda tx: tx.claims.shard_keys(shard, CLAIM))
    consumer.stage(f"stage-{number}", staged_rows(shard.token, keys, [], {}))
    row: dict[str, Any] = dict.fromkeys(("rows", "origins", "began", "ended"))
    row |= {"queue": "work", "claim": number, "epoch": consumer.epoch}
    return Told([{**row, "shard": shard.token, "stage": f"stage-{number}"}])


def test_while_the_next_tasks_work(
    broker: Broker, url: str, consumer: ClaimConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    removes, goes_on = threading.Event(), threading.Event()
    remove = ClaimConsumer.remove_completed

    def remove_later(self: ClaimConsumer) -> None:
        removes.set()
        assert goes_on.wait(120)
        remove(self)

    monkeypatch.setattr(ClaimConsumer, "remove_completed", remove_later)
    sink = SettlingSink({"work": (parse({"store": url, "queue": "work"}), None)})
    sink(batch(consumer, 1), 0)  # type: ignore[arg-type]
    assert removes.wait(120)
    assert [claim.state for claim in broker.claims("work")] == ["settled"]
    following = batch(consumer, 2)
    assert broker.queue("work").counts.locked == 2 * CLAIM
    goes_on.set()
    # It waits for the first, and removes the last itself: no more messages wait.
    sink(following, 1)  # type: ignore[arg-type]
    assert (broker.queue("work").counts.total, broker.check()) == (0, [])


def test_what_fails_there_is_left_to_others(
    broker: Broker, url: str, consumer: ClaimConsumer, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def fail(self: ClaimConsumer) -> None:
        raise StoreUnavailable("away")

    sink = SettlingSink({"work": (parse({"store": url, "queue": "work"}), None)})
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(ClaimConsumer, "remove_completed", fail)
        sink(batch(consumer, 1), 0)  # type: ignore[arg-type]
        sink(batch(consumer, 2), 1)  # type: ignore[arg-type]
    assert caplog.text.count("not removed yet: away") == 2
    assert [claim.state for claim in broker.claims("work")] == ["settled", "settled"]
    assert broker.queue("work").counts.locked == 2 * CLAIM
    # The next driver begins with them.
    consumer.attach()
    assert (broker.queue("work").counts.total, broker.check()) == (0, [])
