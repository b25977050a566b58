"""What Azure's client is told of partitioned queues, sessions and sources, as Service Bus tells it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from door.wire import DELETES, Wire, serving, some, texts
from lazaretto import CorrelationFilter, EntityNotFound, Message, Rule, SqlFilter


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with serving(tmp_path) as found:
        yield found


@pytest.fixture
def s(wire: Wire) -> str:
    """Return a queue with sessions."""
    return wire.make(requires_session=True)


def test_the_empty_id_is_a_session(wire: Wire, s: str) -> None:
    wire.send(s, b"1", b"2", session_id="")
    receiver = wire.receiver(s, session_id="")
    (first,) = some(receiver)
    assert (receiver.session.session_id, first.session_id) == ("", "")
    receiver.session.set_state(b"here")
    assert receiver.session.get_state() == b"here"
    receiver.defer_message(first)
    (first,) = receiver.receive_deferred_messages(first.sequence_number or 0)
    receiver.complete_message(first)
    assert texts(receiver.peek_messages(5)) == ["2"]


def test_what_is_deferred_is_received_and_deleted(wire: Wire, s: str) -> None:
    wire.send(s, b"1", b"2", session_id="a")
    receiver = wire.receiver(s, session_id="a")
    (first,) = some(receiver)
    receiver.defer_message(first)
    receiver.close()
    receiver = wire.receiver(s, session_id="a", receive_mode=DELETES)
    assert texts(receiver.receive_deferred_messages(first.sequence_number or 0)) == ["1"]
    with pytest.raises(ServiceBusError):
        receiver.receive_deferred_messages(first.sequence_number or 0)
    assert texts(some(receiver)) == ["2"]
    assert wire.broker.queue(s).counts.total == 0


def test_numbers_have_the_partition_in_their_highest_bits(wire: Wire) -> None:
    q = wire.make(partitions=16)
    for key in range(20):
        wire.send(q, b"%d" % key, partition_key=str(key))
    receiver = wire.receiver(q)
    peeked = receiver.peek_messages(50)
    numbers = [message.sequence_number for message in peeked]
    assert len(numbers) == 20
    assert len({number >> 48 for number in numbers if number is not None}) > 1
    assert numbers == sorted(number for number in numbers if number is not None)
    last = numbers[-1]
    assert last is not None
    (found,) = receiver.peek_messages(5, sequence_number=last)
    assert found.sequence_number == last
    for message in some(receiver, 20):
        receiver.defer_message(message)
    taken = receiver.receive_deferred_messages([number for number in numbers if number is not None])
    assert sorted(texts(taken)) == sorted(texts(peeked))


def test_what_is_scheduled_is_cancelled_by_its_number(wire: Wire) -> None:
    q = wire.make(partitions=16)
    at = datetime.now(UTC) + timedelta(days=4_000)
    with wire.client.get_queue_sender(q) as sender:
        for key in range(5):
            message = ServiceBusMessage(b"x", partition_key=str(key))
            sender.cancel_scheduled_messages(sender.schedule_messages(message, at))
    assert wire.broker.queue(q).counts.total == 0


def test_a_subscription_is_a_source_as_service_bus_writes_it(wire: Wire) -> None:
    topic, graves = wire.topic("sub"), wire.make()
    path = f"{topic}/Subscriptions/sub"
    wire.broker.update_subscription(topic, "sub", forward_dead_lettered_messages_to=graves)
    wire.broker.sender(topic).send(Message(b"x"))
    receiver = wire.broker.receiver(path)
    receiver.dead_letter(receiver.receive(), reason="bad")
    assert wire.take(graves).dead_letter_source == path


def test_a_topic_tells_how_many_filters_of_which_kind_it_has(wire: Wire) -> None:
    topic = wire.topic("one", "two")
    wire.broker.add_rule(topic, "one", Rule("sql", SqlFilter("a = 1")))
    wire.broker.add_rule(topic, "two", Rule("correlation", CorrelationFilter(subject="lamp")))
    found = wire.administration.get_topic_runtime_properties(topic)
    assert (found.sql_filter_count, found.correlation_filter_count) == (3, 1)


@pytest.mark.parametrize("kilobytes", [1023, 102_401])
def test_a_largest_message_that_no_tier_takes_is_refused(wire: Wire, kilobytes: int) -> None:
    name = wire.name()
    with pytest.raises(HttpResponseError, match="MaxMessageSizeInKilobytes"):
        wire.administration.create_queue(name, max_message_size_in_kilobytes=kilobytes)
    with pytest.raises(EntityNotFound):
        wire.broker.queue(name)


def test_the_largest_message_is_set_by_clients_of_later_versions(wire: Wire) -> None:
    made = wire.administration.create_queue(wire.name(), max_message_size_in_kilobytes=1024)
    assert made.max_message_size_in_kilobytes == 1024
    assert wire.broker.queue(made.name).options.max_message_size == 1 << 20
