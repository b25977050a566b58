"""Sending: what a message carries, one or many, scheduled and cancelled."""

from __future__ import annotations

import enum
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from lazaretto import (
    Broker,
    ManualClock,
    Message,
    MessageNotFound,
    MessageState,
    MessageTooLarge,
    QueueOptions,
)

from .actions import bodies, create, numbers, peek_one, send, take
from .conftest import Connect


def _at(clock: ManualClock, seconds: float = 0) -> datetime:
    return datetime.fromtimestamp(clock.now() / 1e6 + seconds, UTC)


class Name(enum.StrEnum):
    """Texts that are of a class of their own."""

    QUEUE = "Orders"
    ID = "an id"
    SESSION = "a session"


class Bytes(bytes):
    """Bytes that are of a class of their own."""


def test_texts_and_bytes_of_a_class_of_their_own(broker: Broker) -> None:
    broker.create_queue(Name.QUEUE, QueueOptions(requires_session=True))
    message = Message(Bytes(b"\xff\x00"), message_id=Name.ID, session_id=Name.SESSION)
    broker.sender(Name.QUEUE).send(message)
    with broker.receiver(Name.QUEUE, session=Name.SESSION) as receiver:
        receiver.set_session_state(Bytes(b"\xfe"))
        (received,) = receiver.receive()
        assert (received.body, received.message_id, received.session_id) == (
            b"\xff\x00",
            "an id",
            "a session",
        )
        assert receiver.get_session_state() == b"\xfe"
        receiver.dead_letter(received, reason=Name.ID, description=Name.SESSION)
    (letter,) = broker.dead_letters(Name.QUEUE)
    assert (letter.reason, letter.description) == ("an id", "a session")


def test_everything_a_message_carries_arrives(broker: Broker) -> None:
    create(broker)
    sent = Message(
        b"\x00\xff",
        message_id="m",
        session_id="s",
        subject="subject",
        correlation_id="correlation",
        to="to",
        reply_to="reply",
        reply_to_session_id="session",
        content_type="text/plain",
        partition_key="s",
        time_to_live=timedelta(hours=1),
        properties={"s": "x", "i": -5, "f": 1.5, "b": True, "y": b"\xff", "u": uuid.UUID(int=7), "n": None,
                    "t": datetime(2024, 5, 1, tzinfo=UTC)},
    )  # fmt: skip
    broker.sender("q").send(sent)
    message = take(broker)
    names = ("body", "message_id", "session_id", "subject", "correlation_id", "to", "reply_to",
             "reply_to_session_id", "content_type", "partition_key", "time_to_live", "properties",
             "dead_letter_queue")  # fmt: skip
    assert {n: getattr(message, n) for n in names} == {n: getattr(sent, n) for n in names}


def test_what_the_broker_adds(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    number = send(broker, b"x", time_to_live=60)
    message = take(broker)
    assert message.sequence_number == number == 1
    assert (message.enqueued_time, message.expires_at) == (_at(clock), _at(clock, 60))
    assert (message.attempt, message.delivery_count, message.cycle, message.generation) == (1, 0, 0, 0)


def test_ids_are_assigned_and_differ(connect: Connect) -> None:
    one, other = connect(), connect()
    create(one)
    send(one, b"a", b"b")
    send(other, b"c")
    found = [message.message_id for message in one.peek("q", 10)]
    assert all(found)
    assert len(set(found)) == 3


@pytest.mark.parametrize("size", [0, 1, 1279, 1280, 1281, 100_000, 262_144])
def test_bodies_of_all_sizes(broker: Broker, size: int) -> None:
    create(broker, max_message_size=300_000)
    body = bytes(n % 251 for n in range(size))
    send(broker, body)
    assert peek_one(broker).body == body
    assert take(broker).body == body


class TestMany:
    """Several messages are one commit."""

    def test_numbers_in_order(self, broker: Broker) -> None:
        create(broker)
        assert send(broker, *[b"%d" % n for n in range(250)]) == list(range(1, 251))
        assert bodies(broker.peek("q", 250)) == [b"%d" % n for n in range(250)]

    def test_any_iterable(self, broker: Broker) -> None:
        create(broker)
        with broker.sender("q") as sender:
            assert sender.send(Message(b"%d" % n) for n in range(3)) == [1, 2, 3]
            assert sender.send([]) == []
            assert sender.send(iter([Message(b"x")])) == [4]

    def test_one_that_is_wrong_keeps_all_back(self, broker: Broker) -> None:
        create(broker, max_message_size=1024)
        with pytest.raises(MessageTooLarge):
            send(broker, b"x", b"y" * 1025, b"z")
        assert broker.peek("q") == []
        assert send(broker, b"x") == 1


def test_numbers_rise_and_are_never_used_again(connect: Connect) -> None:
    first = connect()
    create(first)
    send(first, b"a", b"b")
    receiver = first.receiver("q")
    receiver.complete(receiver.receive(2))
    assert send(first, b"c") == 3
    receiver.complete(receiver.receive())
    first.close()
    assert send(connect(), b"d") == 4


def test_queues_number_for_themselves(broker: Broker) -> None:
    create(broker, "a")
    create(broker, "b")
    assert [send(broker, b"x", path=path) for path in ("a", "b", "a", "b")] == [1, 1, 2, 2]


def test_a_number_survives_dead_lettering_of_the_last_message(connect: Connect) -> None:
    first = connect()
    create(first)
    send(first, b"x")
    receiver = first.receiver("q")
    receiver.dead_letter(receiver.receive())
    first.close()
    assert send(connect(), b"y") == 2


class TestScheduled:
    """A scheduled message becomes active at its time."""

    def test_it_is_visible_and_not_receivable_before(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        broker.sender("q").schedule(Message(b"x"), _at(clock, 60))
        assert peek_one(broker).state is MessageState.SCHEDULED
        clock.advance(59.9)
        assert broker.receiver("q").receive() == []

    def test_it_gets_a_new_number_and_the_queues_end(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        at = _at(clock, 60)
        number = broker.sender("q").schedule(Message(b"x"), at)
        send(broker, b"before")
        clock.advance(61)
        first, second = broker.receiver("q").receive(2)
        assert bodies([first, second]) == [b"before", b"x"]
        assert second.sequence_number > first.sequence_number > number
        assert second.enqueued_sequence_number == number
        assert second.scheduled_enqueue_time == at
        assert second.enqueued_time >= at

    def test_time_to_live_runs_while_it_waits(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        broker.sender("q").schedule(Message(b"x", time_to_live=10), _at(clock, 60))
        broker.sender("q").schedule(Message(b"y", time_to_live=61), _at(clock, 60))
        clock.advance(60)
        assert bodies(broker.receiver("q").receive(5)) == [b"y"]
        assert broker.queue("q").expired == 1

    def test_a_time_that_has_passed_is_now(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        broker.sender("q").schedule([Message(b"x"), Message(b"y")], _at(clock, -5))
        assert len(broker.receiver("q").receive(5)) == 2

    def test_cancelled_it_is_gone(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        with broker.sender("q") as sender:
            first, second = sender.schedule([Message(b"x"), Message(b"y")], _at(clock, 60))
            sender.cancel(first)
        clock.advance(60)
        assert bodies(broker.receiver("q").receive(5)) == [b"y"]
        assert second != first

    def test_cancelling_is_for_all_or_none(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        sender = broker.sender("q")
        scheduled = sender.schedule(Message(b"x"), _at(clock, 60))
        active = sender.send(Message(b"y"))
        for wrong in (active, 77):
            with pytest.raises(MessageNotFound, match=f"no scheduled message {wrong} in 'q'"):
                sender.cancel([scheduled, wrong])
        assert len(broker.peek("q", 5)) == 2

    def test_one_that_is_active_cannot_be_cancelled(self, broker: Broker, clock: ManualClock) -> None:
        create(broker)
        sender = broker.sender("q")
        number = sender.schedule(Message(b"x"), _at(clock, 60))
        clock.advance(60)
        take(broker)
        with pytest.raises(MessageNotFound, match="it may be active now"):
            sender.cancel(number)


def test_two_brokers_number_one_queue(connect: Connect) -> None:
    one, other = connect(), connect()
    create(one)
    found = [send(broker, b"x") for broker in (one, other, one, other, other, one)]
    assert found == [1, 2, 3, 4, 5, 6]
    assert numbers(other.peek("q", 10)) == found


def test_times_far_away_are_times(broker: Broker, connect: Connect) -> None:
    """The longest durations and the latest moments are kept, not refused by the store."""
    create(broker, "far", default_time_to_live=900_000_000_000)
    far = datetime(9999, 12, 31, tzinfo=UTC)
    broker.sender("far").schedule(Message(b"x", time_to_live=timedelta.max), far)
    found = connect().peek("far")[0]
    assert found.scheduled_enqueue_time == far


def test_a_message_that_was_received_can_be_sent_on(broker: Broker, clock: ManualClock) -> None:
    """As a copy of all that a sender can set, as in Service Bus."""
    create(broker)
    create(broker, "s", requires_session=True, forward_dead_lettered_messages_to="q")
    create(broker, "n")
    send(
        broker,
        b"x",
        path="s",
        message_id="m",
        session_id="a",
        subject="b",
        properties={"n": 1},
        time_to_live=9,
    )
    receiver = broker.receiver("s", session="a")
    receiver.dead_letter(receiver.receive(), reason="bad")
    dead = take(broker)
    assert dead.properties["DeadLetterReason"] == "bad"
    broker.sender("n").send(dead)
    assert len(broker.sender("n").send([dead, *broker.peek("q"), Message(b"y")])) == 3
    with broker.transaction() as work:
        work.send("n", dead)
    broker.sender("n").schedule(dead, at=datetime(2100, 1, 1, tzinfo=UTC))
    *copies, last = [m for m in broker.peek("n", 10) if m.body == b"x"]
    assert len(copies) == 4
    for copy in (*copies, last):
        assert (copy.message_id, copy.session_id, copy.subject) == ("m", "a", "b")
        assert (copy.properties, copy.time_to_live) == ({"n": 1}, timedelta(seconds=9))
        assert copy.dead_letter_reason is None
    assert last.scheduled_enqueue_time == datetime(2100, 1, 1, tzinfo=UTC)
