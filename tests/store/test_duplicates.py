"""Duplicate detection: an id sent again within the window is accepted and dropped."""

from __future__ import annotations

import pytest

from lazaretto import Broker, ManualClock, Message, MessageTooLarge
from lazaretto.model.clock import to_datetime

from .actions import bodies, create, send, take
from .conftest import Connect


@pytest.fixture(autouse=True)
def queue(broker: Broker) -> None:
    create(broker, requires_duplicate_detection=True, duplicate_detection_window=60)


def test_accepted_and_dropped_with_the_first_ones_number(broker: Broker) -> None:
    assert [send(broker, b"first", message_id="m"), send(broker, b"second", message_id="m")] == [1, 1]
    assert bodies(broker.peek("q", 5)) == [b"first"]


def test_within_one_call(broker: Broker) -> None:
    with broker.sender("q") as sender:
        assert sender.send([Message(b"%d" % n, message_id="ab"[n % 2]) for n in range(4)]) == [1, 2, 1, 2]
    assert bodies(broker.peek("q", 5)) == [b"0", b"1"]


def test_after_the_window(broker: Broker, clock: ManualClock) -> None:
    send(broker, b"first", message_id="m")
    clock.advance(59)
    send(broker, b"second", message_id="m")
    clock.advance(1)
    send(broker, b"third", message_id="m")
    assert bodies(broker.peek("q", 5)) == [b"first", b"third"]


def test_the_window_starts_with_the_one_that_was_kept(broker: Broker, clock: ManualClock) -> None:
    """A sender that repeats itself for ever must not keep its own window open."""
    send(broker, b"first", message_id="m")
    for _ in range(5):
        clock.advance(20)
        send(broker, b"again", message_id="m")
    assert len(broker.peek("q", 9)) == 2


def test_completing_does_not_forget_the_id(broker: Broker) -> None:
    send(broker, b"x", message_id="m")
    receiver = broker.receiver("q")
    receiver.complete(receiver.receive())
    send(broker, b"x", message_id="m")
    assert broker.queue("q").counts.total == 0


def test_another_broker_and_a_restart_know_it(broker: Broker, connect: Connect) -> None:
    send(broker, b"x", message_id="m")
    send(connect(), b"x", message_id="m")
    broker.close()
    again = connect()
    send(again, b"x", message_id="m")
    assert len(again.peek("q", 5)) == 1


def test_messages_without_an_id_are_never_duplicates(broker: Broker) -> None:
    assert send(broker, b"x", b"x", b"x") == [1, 2, 3]


def test_ids_are_compared_with_case(broker: Broker) -> None:
    send(broker, b"1", message_id="m")
    send(broker, b"2", message_id="M")
    assert bodies(broker.peek("q", 5)) == [b"1", b"2"]


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_partition_key_tells_ids_apart_in_a_queue_with_partitions(broker: Broker, partitions: int) -> None:
    create(broker, "p", requires_duplicate_detection=True, partitions=partitions)
    create(broker, "through", forward_to="p")
    for path in ("p", "through"):
        for key in (None, "k", "other"):
            send(broker, str(key).encode(), path=path, message_id="m", partition_key=key)
    expected = {b"None"} if partitions == 1 else {b"None", b"k", b"other"}
    assert sorted(bodies(broker.peek("p", 10))) == sorted(expected)


def test_a_queue_without_detection_takes_everything(broker: Broker) -> None:
    create(broker, "plain")
    send(broker, b"1", b"2", path="plain", message_id="m")
    assert len(broker.peek("plain", 5)) == 2


def test_scheduled_messages_are_included(broker: Broker, clock: ManualClock) -> None:
    at = to_datetime(clock.now() + 10_000_000)
    first = broker.sender("q").schedule(Message(b"1", message_id="m"), at)
    assert broker.sender("q").schedule(Message(b"2", message_id="m"), at) == first
    assert len(broker.peek("q", 5)) == 1


def test_a_send_that_was_refused_leaves_no_trace(broker: Broker) -> None:
    with pytest.raises(MessageTooLarge):
        broker.sender("q").send([Message(b"x", message_id="m"), Message(b"x" * 300_000, message_id="n")])
    send(broker, b"x", message_id="m")
    assert len(broker.peek("q", 5)) == 1


def test_a_transaction_that_was_rolled_back_leaves_no_trace(broker: Broker) -> None:
    with broker.transaction() as tx:
        tx.send("q", Message(b"x", message_id="m"))
        tx.rollback()
    send(broker, b"x", message_id="m")
    assert take(broker).message_id == "m"


@pytest.mark.parametrize("partition_key", [None, "p"])
def test_cancelled_it_can_be_sent_again(
    broker: Broker, clock: ManualClock, partition_key: str | None
) -> None:
    """What was cancelled before its time never came to be."""
    later = to_datetime(clock.now() + 30_000_000)
    fields = {"message_id": "m", "partition_key": partition_key}
    with broker.sender("q") as sender:
        number = sender.schedule(Message(b"wrong", **fields), later)  # type: ignore[arg-type]
        sender.cancel(number)
        again = sender.schedule(Message(b"right", **fields), later)  # type: ignore[arg-type]
        assert again != number
        assert sender.schedule(Message(b"repeated", **fields), later) == again  # type: ignore[arg-type]
    assert bodies(broker.peek("q", 5)) == [b"right"]


def test_ids_that_the_broker_gives_are_never_given_twice(broker: Broker, connect: Connect) -> None:
    """Neither by commits of the broker, nor by transactions, with SQL or without."""
    create(broker, "checked", requires_duplicate_detection=True)
    create(broker, "through", forward_to="checked")
    other = connect()
    for n in range(3):
        for each in (broker, other):
            each.sender("through").send(Message(b"own commit"))
            each.sender("checked").send(Message(b"own commit"))
            for sql in (True, False):
                with each.transaction() as tx:
                    if sql:
                        tx.execute("SELECT 1")
                    tx.send("through", [Message(b"in a transaction"), Message(b"%d" % n)])
    messages = broker.peek("checked", 100)
    assert len(messages) == len({m.message_id for m in messages}) == 3 * 2 * 6
