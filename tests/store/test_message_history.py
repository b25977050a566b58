"""A message's history: every place it had, whatever became of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lazaretto import (
    Broker,
    Disposition,
    InvalidOption,
    ManualClock,
    Message,
    MessageHistory,
    MessageNotFound,
    PoisonPolicy,
    QueueOptions,
)

ONCE = PoisonPolicy(receive_retry_count=0)


def fail(broker: Broker, path: str = "q", error: str = "no port") -> None:
    with broker.receiver(path) as receiver:
        (message,) = receiver.receive()
        receiver.abandon(message, error=ValueError(error))


def states(history: MessageHistory) -> list[tuple[str, int, str]]:
    return [(one.queue, one.sequence_number, one.state) for one in history.generations]


@pytest.fixture(autouse=True)
def _queues(broker: Broker) -> None:
    broker.create_queue("q", QueueOptions(policy=ONCE))
    broker.create_queue("other", QueueOptions(policy=ONCE))


def test_an_active_one_and_each_other_state(broker: Broker, clock: ManualClock) -> None:
    later = broker.queue("q").created + timedelta(hours=1)
    broker.sender("q").send([Message(b"a"), Message(b"b"), Message(b"c", scheduled_enqueue_time=later)])
    with broker.receiver("q") as receiver:
        first, second = receiver.receive(2)
        receiver.defer(second)
        found = [broker.message_history("q", number) for number in (1, 2, 3)]
        receiver.release(first)
    assert [one.asked.state for one in found] == ["locked", "deferred", "scheduled"]
    assert [one.message and one.message.body for one in found] == [b"a", b"b", b"c"]
    assert found[0].asked.message_id == first.message_id
    assert broker.message_history("q", 1).asked.state == "active"


def test_what_was_sent_back_twice_is_told_from_every_number(broker: Broker, clock: ManualClock) -> None:
    broker.sender("q").send(Message(b"x", message_id="m"))
    fail(broker, error="first")
    clock.advance(60)
    broker.resubmit("q", [1])
    fail(broker, error="second")
    clock.advance(60)
    broker.move_dead_letters("q", [2], "other")
    expected = [("q", 1, "resubmitted"), ("q", 2, "moved"), ("other", 1, "active")]
    for path, number in (("q", 1), ("q", 2), ("other", 1)):
        found = broker.message_history(path, number)
        assert states(found) == expected
        assert (found.asked.queue, found.asked.sequence_number) == (path, number)
        assert found.latest.state == "active"
    assert [one.error_message for one in found.generations] == ["first", "second", None]
    assert [moment.what.partition(":")[0] for moment in found.moments()] == [
        "sent", "failed", "dead-lettered", "resubmitted",
        "sent back", "failed", "dead-lettered", "moved",
        "sent back",
    ]  # fmt: skip
    times = [moment.time for moment in found.moments()]
    assert times == sorted(times)


def test_the_end_of_a_completed_one_is_known_by_its_dead_letter(broker: Broker) -> None:
    broker.sender("q").send(Message(b"x"))
    fail(broker)
    broker.resubmit("q", [1])
    with broker.receiver("q") as receiver:
        receiver.complete(receiver.receive())
    assert states(broker.message_history("q", 1)) == [("q", 1, "resubmitted"), ("q", 2, "gone")]
    found = broker.message_history("q", 2)
    assert (states(found), found.message) == ([("q", 2, "gone")], None)


def test_dead_letters_that_wait_are_purged_or_completed(broker: Broker) -> None:
    broker.sender("q").send([Message(b"%d" % n) for n in range(3)])
    for _ in range(3):
        fail(broker)
    waiting = broker.message_history("q", 1)
    assert (waiting.asked.state, waiting.asked.reason) == ("dead_lettered", "MaxDeliveryCountExceeded")
    assert waiting.message is not None
    assert waiting.asked.subqueue == "$deadletterqueue"
    assert broker.message_history("q;poison", 1) == waiting
    broker.purge("q", [1])
    with broker.receiver("q", subqueue="dead_letter") as receiver:
        receiver.complete(receiver.receive())
    assert [broker.message_history("q", n).asked.state for n in (1, 2, 3)] == [
        "purged",
        "completed",
        "dead_lettered",
    ]
    broker.restore("q", [1])
    assert broker.message_history("q", 1).asked.state == "dead_lettered"


def test_one_that_returned_to_its_place_in_a_session(broker: Broker) -> None:
    options = QueueOptions(requires_session=True, on_poison_session="park", policy=ONCE)
    broker.create_queue("s", options)
    first, _ = broker.sender("s").send([Message(b"1", session_id="a"), Message(b"2", session_id="a")])
    with broker.receiver("s", session="a") as receiver:
        (message,) = receiver.receive()
        receiver.abandon(message, error=ValueError("no"))
    broker.resubmit("s", [first])
    assert broker.message_history("s", first).asked.state == "active"
    with broker.receiver("s", session="a") as receiver:
        receiver.complete(receiver.receive(2))
    assert states(broker.message_history("s", first)) == [("s", first, "resubmitted"), ("s", first, "gone")]


def test_a_queue_that_is_deleted_meanwhile_ends_it(broker: Broker) -> None:
    broker.sender("q").send(Message(b"x"))
    fail(broker)
    broker.move_dead_letters("q", [1], "other")
    broker.delete_queue("other")
    assert states(broker.message_history("q", 1)) == [("q", 1, "moved")]


def test_many_generations_are_bounded_and_said_to_be(broker: Broker) -> None:
    broker.sender("q").send(Message(b"x"))
    for number in range(1, 251):
        fail(broker)
        broker.resubmit("q", [number])
    found = broker.message_history("q", 125)
    assert not found.complete
    assert [one.sequence_number for one in found.generations] == list(range(25, 226))
    assert not broker.message_history("q", 1).complete
    assert not broker.message_history("q", 251).complete
    assert broker.message_history("q", 251).asked.state == "active"


def test_partitions(broker: Broker) -> None:
    broker.create_queue("parts", QueueOptions(partitions=4, policy=ONCE))
    (number,) = broker.sender("parts").send([Message(b"x", partition_key="k")])
    assert broker.message_history("parts", number).asked.state == "active"
    with broker.receiver("parts") as receiver:
        receiver.complete(receiver.receive())
    assert broker.message_history("parts", number).asked.state == "gone"
    with pytest.raises(MessageNotFound):
        broker.message_history("parts", number + 1)


@pytest.mark.parametrize("number", [0, -1, 1 << 42, "1", None])
def test_numbers_that_cannot_be(broker: Broker, number: int) -> None:
    with pytest.raises(InvalidOption):
        broker.message_history("q", number)


def test_numbers_that_were_not_given(broker: Broker) -> None:
    with pytest.raises(MessageNotFound):
        broker.message_history("q", 1)
    broker.sender("q").send(Message(b"x"))
    assert broker.message_history("q", 1).asked.state == "active"
    with pytest.raises(MessageNotFound):
        broker.message_history("q", 2)


def test_one_that_was_forwarded_as_a_dead_letter(broker: Broker) -> None:
    broker.create_queue("f", QueueOptions(policy=ONCE, forward_dead_lettered_messages_to="other"))
    broker.sender("other").send([Message(b"first"), Message(b"second")])
    broker.sender("f").send(Message(b"x"))
    fail(broker, "f")
    for path, number in (("f", 1), ("other", 3)):
        found = broker.message_history(path, number)
        assert states(found) == [("f", 1, "forwarded"), ("other", 3, "active")]
        assert [m.what.partition(":")[0] for m in found.moments()] == [
            "sent", "failed", "dead-lettered", "forwarded", "arrived",
        ]  # fmt: skip
    letter = broker.dead_letter("f", 1)
    assert (letter.resolution, letter.resubmitted_as, letter.moved_to) == ("forwarded", 3, "other")


@pytest.mark.parametrize("disposition", ["drop", "reject"])
def test_one_that_was_discarded_or_returned(broker: Broker, clock: ManualClock, disposition: str) -> None:
    policy = PoisonPolicy(receive_retry_count=0, on_poison=Disposition(disposition))
    broker.create_queue("d", QueueOptions(policy=policy))
    broker.sender("d").send([Message(b"x"), Message(b"y")])
    fail(broker, "d")
    with broker.receiver("d") as receiver:
        receiver.complete(receiver.receive())
    found = broker.message_history("d", 1).asked
    assert (found.state, found.reason) == (
        {"drop": "dropped", "reject": "rejected"}[disposition],
        "MaxDeliveryCountExceeded",
    )
    assert (found.description is None) == (disposition == "drop")
    (moment,) = broker.message_history("d", 1).moments()
    assert moment.what == f"{found.state}: MaxDeliveryCountExceeded"
    assert broker.message_history("d", 2).asked.state == "gone"
    # Another queue of the same name has other messages.
    clock.advance(1)
    broker.delete_queue("d")
    broker.create_queue("d")
    broker.sender("d").send(Message(b"z"))
    with broker.receiver("d") as receiver:
        receiver.complete(receiver.receive())
    assert broker.message_history("d", 1).asked.state == "gone"


def test_one_that_was_passed_on(broker: Broker) -> None:
    broker.create_topic("t")
    broker.create_subscription("t", "s")
    broker.create_queue("way", QueueOptions(forward_to="q"))
    (topical,) = broker.sender("t").send([Message(b"x")])
    broker.sender("q").send(Message(b"first"))
    (sent,) = broker.sender("way").send([Message(b"y")])
    gone = [broker.message_history(path, n).asked for path, n in (("t", topical), ("way", sent))]
    assert [(one.state, one.description) for one in gone] == [
        ("gone", "t passes messages on to its subscriptions"),
        ("gone", "way passes messages on to q"),
    ]
    arrived = broker.message_history("q", 2).message
    assert arrived is not None
    assert (arrived.body, arrived.enqueued_sequence_number) == (b"y", sent)
