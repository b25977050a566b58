"""Scheduled messages of Service Bus's clients: their time to live counts from their scheduled time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lazaretto import Broker, ManualClock, Message, QueueOptions, TopicOptions

from .actions import create, peek_one, send, set_aside, take

#: How a broker's entities are made, and from where a message then comes.
Way = tuple[dict[str, dict[str, Any]], str, str]
WAYS: dict[str, Way] = {
    "its own": ({"q": {}}, "q", "q"),
    "its queue's": ({"q": {"default_time_to_live": 10}}, "q", "q"),
    "where it is forwarded to": ({"to": {"default_time_to_live": 10}, "q": {"forward_to": "to"}}, "q", "to"),
    "a subscription's": ({}, "t", "t/subscriptions/s"),
}


def arrange(broker: Broker, way: str) -> tuple[str, str]:
    made, to, from_ = WAYS[way]
    for path, options in made.items():
        create(broker, path, **options)
    if to == "t":
        broker.create_topic("t", TopicOptions(default_time_to_live=20))
        broker.create_subscription("t", "s", QueueOptions(default_time_to_live=10))
    return to, from_


def schedule(broker: Broker, clock: ManualClock, path: str, seconds: float, life: float | None) -> None:
    create(broker, "clock")
    send(broker, b"now", path="clock")
    at = peek_one(broker, "clock").enqueued_time + timedelta(seconds=seconds)
    # What a client sends over AMQP has this, though there may be nothing in it.
    more: dict[str, Any] = {} if life is None else {"time_to_live": life}
    broker.sender(path).send(Message(b"x", scheduled_enqueue_time=at, amqp=b"", **more))


@pytest.mark.parametrize("way", WAYS)
def test_it_lives_from_its_time_on(broker: Broker, clock: ManualClock, way: str) -> None:
    to, from_ = arrange(broker, way)
    schedule(broker, clock, to, 100, 10 if way == "its own" else None)
    clock.advance(100)
    message = take(broker, from_)
    assert message.body == b"x"
    assert message.expires_at == message.enqueued_time + timedelta(seconds=10)


@pytest.mark.parametrize("way", WAYS)
def test_it_expires_behind_its_time_and_is_counted(broker: Broker, clock: ManualClock, way: str) -> None:
    to, from_ = arrange(broker, way)
    schedule(broker, clock, to, 100, 10 if way == "its own" else None)
    clock.advance(100)
    assert [one.body for one in broker.peek(from_, 5)] == [b"x"]
    clock.advance(10)
    assert broker.receiver(from_).receive() == []
    assert broker.queue(from_).expired == 1


def test_one_through_another_queue_lives_from_its_time_on(broker: Broker, clock: ManualClock) -> None:
    create(broker, "to", default_time_to_live=10)
    create(broker, "q")
    create(broker, "clock")
    send(broker, b"now", path="clock")
    at = peek_one(broker, "clock").enqueued_time + timedelta(seconds=100)
    with broker.transaction() as tx:
        tx.send("to", Message(b"x", scheduled_enqueue_time=at, amqp=b""), via="q")
    clock.advance(100)
    assert take(broker, "to").body == b"x"


def test_one_of_a_python_program_lives_from_now_on(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    send(broker, b"now")
    at = peek_one(broker).enqueued_time + timedelta(seconds=100)
    broker.sender("q").send(Message(b"x", scheduled_enqueue_time=at, time_to_live=10))
    clock.advance(100)
    assert take(broker).body == b"now"
    assert broker.receiver("q").receive() == []
    # Whatever expires is counted, also what was never active.
    assert broker.queue("q").expired == 1


def test_a_letter_that_is_sent_back_later_lives_from_then_on(broker: Broker, clock: ManualClock) -> None:
    create(broker, default_time_to_live=10)
    set_aside(broker, b"x")
    (letter,) = broker.dead_letters("q")

    def later(_: object) -> Message:
        when = letter.dead_lettered + timedelta(seconds=100)
        return Message(b"x", scheduled_enqueue_time=when, amqp=b"")

    broker.resubmit("q", [letter.sequence_number], edit=later)
    clock.advance(100)
    assert take(broker).body == b"x"
