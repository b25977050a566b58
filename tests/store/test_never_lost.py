"""What is set aside is never lost, whatever it meets: duplicates, topics, queues that cannot take it."""

from __future__ import annotations

import dataclasses

import pytest

from lazaretto import (
    Broker,
    Disposition,
    InvalidMessage,
    Message,
    QueueOptions,
    Rule,
    SqlFilter,
)
from lazaretto.engine.messages.prepare import prepare
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

from .actions import bodies, create, fail, peek_one, send, set_aside

SYSTEM = "$system/deadletter"
TRANSFER = "/$Transfer/$deadletterqueue"


@dataclasses.dataclass(slots=True)
class _Misplace(Operation[None]):
    """Do what an earlier version did: put a message into a topic itself."""

    path: str

    def run(self, tx: Transaction) -> None:
        topic = tx.queues.by_path(self.path)
        assert topic is not None
        tx.insert_messages(topic, [prepare(Message(b"x"))])


class TestDuplicates:
    """Duplicate detection is for what senders send, and not for what was set aside."""

    def test_forwarded_dead_letters_of_one_id(self, broker: Broker) -> None:
        create(broker, "errors", requires_duplicate_detection=True)
        create(broker, forward_dead_lettered_messages_to="errors")
        broker.sender("q").send([Message(body, message_id="same") for body in (b"1", b"2")])
        with broker.receiver("q") as receiver:
            receiver.dead_letter(receiver.receive(2))
        assert bodies(broker.peek("errors", 10)) == [b"1", b"2"]

    def test_through_further_queues(self, broker: Broker) -> None:
        create(broker, "errors", requires_duplicate_detection=True)
        create(broker, "middle", forward_to="errors")
        create(broker, forward_dead_lettered_messages_to="middle")
        broker.sender("q").send([Message(body, message_id="same") for body in (b"1", b"2")])
        with broker.receiver("q") as receiver:
            receiver.dead_letter(receiver.receive(2))
        assert bodies(broker.peek("errors", 10)) == [b"1", b"2"]

    def test_resubmitted_into_a_queue_that_forwards(self, broker: Broker) -> None:
        create(broker, "unique", requires_duplicate_detection=True)
        create(broker)
        broker.sender("q").send(Message(b"1", message_id="same"))
        with broker.receiver("q") as receiver:
            receiver.dead_letter(receiver.receive())
        broker.update_queue("q", forward_to="unique")
        broker.sender("q").send(Message(b"2", message_id="same"))
        broker.resubmit("q", 1)
        assert bodies(broker.peek("unique", 10)) == [b"2", b"1"]

    def test_rejected_into_a_queue_that_forwards(self, broker: Broker) -> None:
        create(broker, "unique", requires_duplicate_detection=True)
        create(broker, "mine", forward_to="unique")
        create(broker, receive_retry_count=0, on_poison=Disposition.REJECT)
        for body in (b"1", b"2"):
            broker.sender("q").send(Message(body, message_id="same", dead_letter_queue="mine"))
            fail(broker)
        broker.receiver("q").receive()
        assert bodies(broker.peek("unique", 10)) == [b"1", b"2"]

    def test_what_is_sent_is_a_duplicate_as_before(self, broker: Broker) -> None:
        create(broker, "unique", requires_duplicate_detection=True)
        create(broker, forward_to="unique")
        broker.sender("q").send([Message(body, message_id="same") for body in (b"1", b"2")])
        assert bodies(broker.peek("unique", 10)) == [b"1"]


class TestTopics:
    """A topic drops what nobody wants, and keeps nothing itself."""

    def test_no_dead_letter_queue_to_send_with(self, broker: Broker) -> None:
        create(broker)
        broker.create_topic("News")
        broker.create_subscription("News", "all")
        with pytest.raises(InvalidMessage, match="dead_letter_queue to be a queue, got the topic 'News'"):
            send(broker, b"x", dead_letter_queue="news")
        with pytest.raises(InvalidMessage, match="got the subscription"):
            send(broker, b"x", dead_letter_queue="news/subscriptions/all")
        assert broker.peek("q") == []

    def test_a_topic_in_the_place_of_the_senders_queue(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, on_poison=Disposition.REJECT)
        create(broker, "mine")
        send(broker, b"x", dead_letter_queue="mine")
        broker.delete_queue("mine")
        broker.create_topic("mine")
        fail(broker)
        assert peek_one(broker, SYSTEM).body == b"x"
        assert broker.check() == []
        (event,) = broker.events(kind="rejected")
        assert (event.detail["to"], event.detail["instead_of"]) == (SYSTEM, "mine")

    def test_check_finds_what_lies_in_a_topic(self, broker: Broker) -> None:
        broker.create_topic("News")
        assert broker.check() == []
        broker._store.run(_Misplace("news"))
        (problem,) = broker.check()
        assert problem == "messages in the topic News, where nobody can receive them: 1"

    @pytest.mark.parametrize("rules", [None, [Rule("none", SqlFilter("1 = 0"))]])
    def test_a_dead_letter_that_no_subscription_wants(self, broker: Broker, rules: list[Rule] | None) -> None:
        broker.create_topic("news")
        if rules is not None:
            broker.create_subscription("news", "some", rules=rules)
        create(broker, forward_dead_lettered_messages_to="news")
        (number,) = set_aside(broker, b"x", reason="bad")
        (letter,) = broker.dead_letters(f"q{TRANSFER}")
        assert (letter.sequence_number, letter.reason) == (number, "NoMatchingSubscription")
        assert "It was a dead letter before: bad" in (letter.description or "")
        assert broker.topic("news").unmatched == 0

    def test_one_that_a_subscription_wants(self, broker: Broker) -> None:
        broker.create_topic("news")
        broker.create_subscription("news", "none", rules=[Rule("none", SqlFilter("1 = 0"))])
        broker.create_subscription("news", "some", rules=[Rule("some", SqlFilter("1 = 1"))])
        create(broker, forward_dead_lettered_messages_to="news")
        set_aside(broker, b"x")
        assert peek_one(broker, "news/subscriptions/some").body == b"x"


class TestSendersQueue:
    """What the sender's queue cannot take goes to the system's, which takes everything."""

    @pytest.fixture(autouse=True)
    def queue(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, on_poison=Disposition.REJECT, max_message_size=10_000)

    @pytest.mark.parametrize(
        ("options", "because"),
        [({"max_message_size": 1024}, "takes at most 1024 bytes"), ({"max_size": 1024}, "is full")],
    )
    def test_limits(self, broker: Broker, options: dict[str, int], because: str) -> None:
        broker.create_queue("mine", QueueOptions(**options))  # type: ignore[arg-type]
        broker.update_queue(SYSTEM, **options)  # type: ignore[arg-type]
        send(broker, b"x" * 5000, dead_letter_queue="mine")
        fail(broker)
        assert peek_one(broker, SYSTEM).body == b"x" * 5000
        (event,) = broker.events(kind="rejected")
        assert because in event.detail["because"]

    def test_switched_off(self, broker: Broker) -> None:
        create(broker, "mine")
        send(broker, b"x", dead_letter_queue="mine")
        broker.set_status("mine", "disabled")
        fail(broker)
        assert peek_one(broker, SYSTEM).body == b"x"
