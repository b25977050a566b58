"""Purged dead letters: set aside for a week, restored as they were, or deleted for good."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lazaretto import (
    Broker,
    DeadLetterFilter,
    EntityNotFound,
    InvalidOption,
    ManualClock,
    Message,
    QueueOptions,
    TopicOptions,
)
from lazaretto.broker.broker import store_of
from lazaretto.engine.entities.queues import require_queue
from lazaretto.engine.timers import CleanUp
from lazaretto.model.entities import EntityPath
from lazaretto.model.keys import PARTITION_SEQUENCE_BITS
from lazaretto.model.partitions import partition_of
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

from .actions import bodies, create, fail, kinds, numbers, send, set_aside, stored
from .conftest import Connect

DAY = 86_400
BIG = b"x" * 5_000


@pytest.fixture(autouse=True)
def queue(broker: Broker) -> None:
    create(broker, receive_retry_count=0)


def letters(broker: Broker) -> list[int]:
    """Four dead letters of two causes, with and without a body of its own row."""
    found = []
    for body, error in (
        (b"1", "KeyError: a"),
        (BIG, "KeyError: a"),
        (b"3", "ValueError: b"),
        (b"4", "KeyError: a"),
    ):
        send(broker, body, properties={"n": 1.5}, subject="s")
        found.append(fail(broker, error=error))
    return found


def rows(broker: Broker) -> list[tuple[Any, ...]]:
    kept = "key, state, due, expires, enqueued, message_id, deliveries, failures, generation, headers, body"
    return stored(broker, f"SELECT {kept} FROM lazaretto_messages ORDER BY key")


def causes(broker: Broker) -> dict[str | None, int]:
    return {cause.template: cause.letters for cause in broker.triage("q").causes}


class RaisePartitions(Operation[None]):
    """Raise a queue's partitions, as earlier versions did while its letters were purged."""

    def run(self, tx: Transaction) -> None:
        queue = require_queue(tx, EntityPath.parse("q"))
        options = dataclasses.replace(queue.options, partitions=4)
        tx.queues.save(dataclasses.replace(queue, options=options))


class TestPurgedLettersAreHeld:
    """Until they are deleted for good, a queue holds what it may get back."""

    def test_partitions_do_not_grow_under_them(self, broker: Broker) -> None:
        broker.purge("q", set_aside(broker, b"1"))
        with pytest.raises(InvalidOption, match="1 purged dead letters"):
            broker.update_queue("q", partitions=8)
        assert broker.delete_purged("q", count=1) == 1
        assert broker.update_queue("q", partitions=8).options.partitions == 8

    def test_an_idle_topic_is_not_deleted_with_them(self, broker: Broker, clock: ManualClock) -> None:
        path = "t/subscriptions/s"
        create(broker, "other")
        broker.create_topic("t", TopicOptions(auto_delete_on_idle=300))
        broker.create_subscription("t", "s")
        send(broker, b"1", path="t")
        with broker.receiver(path) as receiver:
            receiver.dead_letter(receiver.receive())
        (number,) = broker.purge(path, DeadLetterFilter(), everything=True)
        clock.advance(100_000)
        assert numbers(broker.receiver("other").receive()) == []
        assert broker.restore(path, number).restored == [number]
        assert broker.resubmit(path, number).skipped == []

    def test_messages_of_a_key_meet_in_the_partition_that_is_theirs_now(self, broker: Broker) -> None:
        key = next(f"k{n}" for n in range(100) if partition_of(f"k{n}", 4) == 3)
        send(broker, b"1", partition_key=key)
        number = fail(broker)
        broker.purge("q", number)
        store_of(broker).run(RaisePartitions())
        send(broker, b"2", partition_key=key)
        broker.restore("q", number)
        broker.resubmit("q", number)
        assert bodies(broker.peek("q", 10)) == [b"2", b"1"]
        assert {m.sequence_number >> PARTITION_SEQUENCE_BITS for m in broker.peek("q", 10)} == {3}


def test_restored_letters_are_what_they_were(broker: Broker) -> None:
    letters(broker)
    before, rows_before, counted = list(broker.dead_letters("q")), rows(broker), causes(broker)
    histories = [broker.dead_letter("q", letter.sequence_number).attempts for letter in before]
    assert broker.purge("q", DeadLetterFilter(error_type="KeyError")) == [1, 2, 4]
    assert numbers(broker.dead_letters("q")) == [3]
    assert broker.queue("q").counts.dead_letter == 1
    assert broker.queue("q").counts.transfer_dead_letter == 0
    assert sum(causes(broker).values()) == 1
    assert broker.purged("q") == [1, 2, 4]
    assert broker.dead_letter("q", 1).resolution == "purged"
    assert broker.receiver("q/$deadletterqueue").receive(9, max_wait=0)[0].sequence_number == 3
    report = broker.restore("q", [1, 2, 3, 99], actor="ann")
    assert report.restored == [1, 2]
    assert {s.sequence_number: s.why for s in report.skipped} == {3: "it is still there", 99: "not found"}
    assert broker.restore("q").restored == [4]
    assert broker.purged("q") == []
    after = [letter for letter in broker.dead_letters("q") if letter.sequence_number != 3]
    assert after == [letter for letter in before if letter.sequence_number != 3]
    assert [row for row in rows(broker) if row[10] != b"3"] == [row for row in rows_before if row[10] != b"3"]
    assert [broker.dead_letter("q", n).attempts for n in (1, 2, 4)] == [histories[i] for i in (0, 1, 3)]
    assert causes(broker) == counted
    assert kinds(broker.events())[-3:] == ["restored"] * 3
    assert [(e.actor, e.action) for e in broker.audit(limit=3)][1] == ("ann", "restore")


def test_they_can_be_sent_back_after_a_restore(broker: Broker) -> None:
    letters(broker)
    broker.purge("q", [2])
    broker.restore("q", 2)
    assert list(broker.resubmit("q", 2).resubmitted) == [2]
    assert broker.receiver("q").receive()[0].body == BIG


def test_they_are_deleted_after_a_week(broker: Broker, clock: ManualClock) -> None:
    letters(broker)
    broker.purge("q", [1, 2])
    clock.advance(7 * DAY - 1)
    broker._store.run(CleanUp())
    assert broker.purged("q") == [1, 2]
    clock.advance(1)
    while broker._store.run(CleanUp()):
        pass
    assert broker.purged("q") == []
    assert broker.restore("q", 1).skipped[0].why == "it is deleted"
    assert broker.dead_letter("q", 1).resolution == "deleted"
    assert len(rows(broker)) == 2
    assert stored(broker, "SELECT count(*) FROM lazaretto_bodies") == [(0,)]


def test_final_deletion_names_their_number(broker: Broker) -> None:
    letters(broker)
    broker.purge("q", [1, 2])
    for wrong in (1, 3, 0):
        with pytest.raises(InvalidOption, match="which is 2"):
            broker.delete_purged("q", wrong)
    odd: list[Any] = [-1, True, "2", None]
    for value in odd:
        with pytest.raises(InvalidOption):
            broker.delete_purged("q", value)
    assert broker.delete_purged("q", 2) == 2
    assert broker.delete_purged("q", 0) == 0
    assert (broker.purged("q"), numbers(broker.dead_letters("q"))) == ([], [3, 4])
    with pytest.raises(EntityNotFound):
        broker.purged("nothing")


def test_purged_letters_take_no_room_of_their_queue(broker: Broker) -> None:
    create(broker, "small", max_size=1_000_000)
    (number,) = set_aside(broker, b"x" * 200_000, path="small")
    size = broker.queue("small").size
    broker.purge("small", number)
    assert broker.queue("small").size == 0
    broker.restore("small", number)
    assert broker.queue("small").size == size
    broker.purge("small", number)
    broker.delete_purged("small", 1)
    assert broker.queue("small").size == 0


def test_their_numbers_are_not_given_again(connect: Connect) -> None:
    with connect() as broker:
        assert set_aside(broker, b"a", b"b") == [1, 2]
        broker.purge("q", [1, 2])
    with connect() as broker:
        assert send(broker, b"c") == 3
        assert broker.restore("q").restored == [1, 2]


def test_no_partition_gives_a_number_again_that_was_purged(connect: Connect, clock: ManualClock) -> None:
    """Also if the process that purges, and the one that sends next, know of no number."""
    with connect() as broker:
        options = QueueOptions(partitions=3, default_time_to_live=5, dead_letter_on_expiration=True)
        broker.create_queue("p", options)
        messages = [Message(b"x", partition_key=key) for key in "abcdefgh"]
        before = broker.sender("p").send(messages)
        assert len({number >> PARTITION_SEQUENCE_BITS for number in before}) > 1
        clock.advance(10)
        assert broker.queue("p").counts.dead_letter == len(before)
    with connect() as broker:
        broker.purge("p", DeadLetterFilter(), everything=True)
    with connect() as broker:
        assert not set(broker.sender("p").send(messages)) & set(before)
