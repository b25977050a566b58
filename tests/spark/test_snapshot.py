"""Batch reads: what a store holds as tables, without touching it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

import pytest

from lazaretto import Broker, Message, PoisonPolicy, QueueOptions

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.stores("sqlite", *(["postgres"] if "LAZARETTO_SOAK" in os.environ else [])),
]


@pytest.fixture
def load(spark: Any, url: str, broker: Broker) -> Any:
    """Have 40 messages, every tenth of which failed twice and is a dead letter, one deferred, one locked."""
    broker.update_queue("work", policy=PoisonPolicy(receive_retry_count=1))
    broker.sender("work").send(
        [Message(b"no" if n % 10 == 0 else b"\xff%d" % n, message_id=f"id-{n}") for n in range(40)]
    )

    def fail(message: Any) -> None:
        if message.body == b"no":
            raise ValueError("bad \udcff byte")

    for _ in range(2):
        with broker.receiver("work") as receiver:
            found = receiver.receive(100)
            for message in found:
                try:
                    fail(message)
                except ValueError as error:
                    receiver.abandon(message, error=error)
                else:
                    receiver.release(message)
    with broker.receiver("work") as receiver:
        one, two = receiver.receive(2)
        receiver.defer(one)
        broker._held = two  # type: ignore[attr-defined]

    def view(name: str, queue: str = "work", **options: Any) -> Any:
        reader = spark.read.format("lazaretto").option("store", url).option("queue", queue)
        return reader.option("view", name).options(**options).load()

    return view


def test_messages_by_state(load: Any, broker: Broker) -> None:
    before = broker.events(0, kind="dead_lettered"), broker.queue("work").counts
    states = dict(load("messages").groupBy("state").count().collect())
    assert states == {"active": 34, "deferred": 1, "locked": 1}
    assert load("messages").count() == 36
    assert load("messages", queue="work;poison").count() == 4
    row = load("messages").where("message_id = 'id-11'").collect()[0]
    assert (bytes(row.body), row.sequence_number, row.delivery_count) == (b"\xff11", 12, 0)
    assert (broker.events(0, kind="dead_lettered"), broker.queue("work").counts) == before


def test_messages_received_together_are_locked(load: Any, broker: Broker) -> None:
    broker.sender("out").send([Message(b"%d" % n) for n in range(5)])
    held = broker.receiver("out").receive(3)
    messages = load("messages", queue="out")
    assert dict(messages.groupBy("state").count().collect()) == {"locked": 3, "active": 2}
    assert messages.where("state = 'locked' AND deliveries = 1").count() == len(held)
    assert messages.where("state = 'active' AND deliveries = 0").count() == 2


def test_dead_letters_with_their_reason(load: Any) -> None:
    rows = load("dead_letters").orderBy("sequence_number").collect()
    assert [row.sequence_number for row in rows] == [1, 11, 21, 31]
    assert {(row.reason, row.error_type) for row in rows} == {("MaxDeliveryCountExceeded", "ValueError")}
    assert b"bad" in bytes(rows[0].error_message)
    assert rows[0].dead_lettered_time >= rows[0].enqueued_time


def test_attempts_and_events(load: Any) -> None:
    failed = load("attempts").where("outcome = 'failed'")
    assert failed.count() == 8
    assert failed.where("stack IS NOT NULL AND number = 1").count() == 4
    assert dict(load("events").groupBy("kind").count().collect()) == {
        "queue_created": 1, "queue_updated": 1, "dead_lettered": 4,
    }  # fmt: skip


def test_an_attempt_whose_lock_expired(load: Any, broker: Broker) -> None:
    broker.create_queue("brief", QueueOptions(lock_duration=1))
    broker.sender("brief").send(Message(b"slow"))
    receiver = broker.receiver("brief")
    assert receiver.receive()
    # It comes again as soon as its lock has expired.
    receiver.dead_letter(receiver.receive(1, 120))
    outcomes = [row.outcome for row in load("attempts", queue="brief").orderBy("number").collect()]
    assert outcomes == ["lock_expired", "dead_lettered"]


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("sequence_number > 30", 9),
        ("sequence_number >= 5 AND sequence_number < 8", 3),
        ("state = 'deferred'", 1),
        ("state IN ('locked', 'deferred')", 2),
        ("session_id IS NULL", 36),
        ("session_id IS NOT NULL", 0),
        ("message_id = 'id-7' OR message_id = 'id-8'", 2),
        ("NOT (state = 'active')", 2),
        ("length(body) = 2 AND sequence_number < 20", 9),
        ("enqueued_time < timestamp'2020-01-01'", 0),
        ("message_id > 'id-38' AND expires_at IS NULL", 7),
    ],
)
@pytest.mark.parametrize("shards", ["1", "3"])
def test_filters_are_exact_wherever_they_are_applied(load: Any, where: str, count: int, shards: str) -> None:
    assert load("messages", shards=shards).where(where).count() == count


def test_only_the_columns_that_are_asked_for(load: Any, spark: Any, url: str) -> None:
    reader = spark.read.format("lazaretto").option("store", url).option("queue", "work")
    rows = reader.option("view", "messages").schema("state string, sequence_number bigint").load()
    assert rows.columns == ["state", "sequence_number"]
    assert rows.count() == 36


def test_an_empty_queue(load: Any) -> None:
    assert load("messages", queue="out").collect() == []
    assert load("dead_letters", queue="out").count() == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"view": "letters"}, "expected option view to be one of"),
        ({}, "a batch read needs the option view"),
        ({"view": "messages", "queue": "nowhere"}, "no queue exists at 'nowhere'"),
        ({"view": "messages", "queue": "work;retry"}, "expected a queue or its dead-letter subqueue"),
    ],
)
def test_options_that_are_wrong(spark: Any, url: str, broker: Broker, options: Any, text: str) -> None:
    reader = spark.read.format("lazaretto").option("store", url).option("queue", "work")
    with pytest.raises(Exception, match=text):
        reader.options(**options).load().count()


def test_times_are_utc(load: Any) -> None:
    row = load("messages").limit(1).collect()[0]
    assert abs((datetime.now(UTC).replace(tzinfo=None) - row.enqueued_time).total_seconds()) < 3600


def test_a_message_that_lives_for_ever_does_not_expire(load: Any, broker: Broker) -> None:
    broker.sender("out").send(Message(b"x", time_to_live=922_337_203_685))
    (row,) = load("messages", queue="out").collect()
    assert row.expires_at is None
