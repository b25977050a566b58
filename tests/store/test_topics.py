"""Topics: a message lands in every subscription whose rules match, in one commit, its body stored once."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lazaretto import (
    NEXT_SESSION,
    Broker,
    CorrelationFilter,
    EntityExists,
    EntityNotFound,
    FalseFilter,
    FilterSyntaxError,
    InvalidOption,
    InvalidPath,
    ManualClock,
    Message,
    MessageTooLarge,
    NotAllowed,
    PoisonPolicy,
    QueueOptions,
    Rule,
    SqlAction,
    SqlFilter,
    TopicOptions,
)

from .actions import stored


@pytest.fixture
def topic(broker: Broker) -> str:
    broker.create_topic("events")
    return "events"


def subscribe(broker: Broker, name: str, *rules: Rule, **options: Any) -> str:
    broker.create_subscription("events", name, QueueOptions(**options), rules or None)
    return f"events/subscriptions/{name}"


def publish(broker: Broker, *messages: Message | bytes) -> list[int]:
    return broker.sender("events").send([Message(m) if isinstance(m, bytes) else m for m in messages])


def bodies(broker: Broker, path: str) -> list[bytes]:
    return [message.body for message in broker.peek(path, 1_000)]


def stored_bodies(broker: Broker) -> int:
    return int(stored(broker, "SELECT count(*) FROM lazaretto_bodies")[0][0])


class TestFanOut:
    def test_each_subscription_gets_what_its_rules_match(self, broker: Broker, topic: str) -> None:
        everything = subscribe(broker, "all")
        large = subscribe(broker, "large", Rule("large", SqlFilter("amount > 100")))
        orders = subscribe(broker, "orders", Rule("o", CorrelationFilter(subject="order")))
        nothing = subscribe(broker, "none", Rule("n", FalseFilter()))
        numbers = publish(
            broker,
            Message(b"1", subject="order", properties={"amount": 50}),
            Message(b"2", subject="order", properties={"amount": 500}),
            Message(b"3", properties={"amount": 500}),
        )
        assert numbers == [1, 2, 3]
        assert bodies(broker, everything) == [b"1", b"2", b"3"]
        assert bodies(broker, large) == [b"2", b"3"]
        assert bodies(broker, orders) == [b"1", b"2"]
        assert bodies(broker, nothing) == []

    @pytest.mark.parametrize("size", [10, 5_000])
    def test_rules_look_into_the_body(
        self, broker: Broker, topic: str, clock: ManualClock, size: int
    ) -> None:
        rule = Rule("large", SqlFilter("body.order.amount > 100"))
        large, everything = subscribe(broker, "large", rule), subscribe(broker, "all")
        broker.create_topic("next")
        broker.create_subscription("next", "large", rules=[rule])
        subscribe(broker, "on", forward_to="next")
        small, big = (
            json.dumps({"order": {"amount": amount}, "filler": "x" * size}).encode() for amount in (50, 500)
        )
        publish(broker, b"no JSON", small, big)
        assert bodies(broker, large) == bodies(broker, "next/subscriptions/large") == [big]
        assert bodies(broker, everything) == [b"no JSON", small, big]
        later = datetime.fromtimestamp(clock.now() / 1e6, UTC) + timedelta(seconds=60)
        broker.sender(topic).schedule([Message(small), Message(big)], later)
        clock.advance(61)
        assert broker.receiver(everything).receive(10)
        assert bodies(broker, large) == bodies(broker, "next/subscriptions/large") == [big, big]

    def test_copies_have_numbers_of_their_own_and_the_topics(self, broker: Broker, topic: str) -> None:
        path = subscribe(broker, "a", Rule("r", SqlFilter("n > 1")))
        publish(broker, *[Message(b"x", message_id=f"m{n}", properties={"n": n}) for n in range(4)])
        found = broker.peek(path, 10)
        assert [(m.sequence_number, m.enqueued_sequence_number, m.message_id) for m in found] == [
            (1, 3, "m2"),
            (2, 4, "m3"),
        ]
        assert publish(broker, b"y") == [5]

    def test_copies_share_id_and_properties(self, broker: Broker, topic: str) -> None:
        paths = [subscribe(broker, name) for name in "ab"]
        publish(broker, Message(b"x", subject="s", properties={"id": uuid.UUID(int=7)}))
        (a,), (b,) = (broker.peek(path, 10) for path in paths)
        assert a.message_id == b.message_id
        assert (a.subject, a.properties) == (b.subject, b.properties) == ("s", {"id": uuid.UUID(int=7)})

    def test_what_nobody_wants_is_counted_and_gone(self, broker: Broker, topic: str) -> None:
        assert publish(broker, b"1") == [1]
        subscribe(broker, "a", Rule("r", SqlFilter("x = 1")))
        publish(broker, b"2", Message(b"3", properties={"x": 1}))
        described = broker.topic("events")
        assert (described.unmatched, described.subscriptions) == (2, 1)

    def test_rules_with_actions_make_copies_of_their_own(self, broker: Broker, topic: str) -> None:
        path = subscribe(
            broker, "a", Rule("plain"), Rule("also"),
            Rule("gold", SqlFilter("amount > 100"), SqlAction("SET tier = 'gold'; SET sys.Label = 'big'")),
        )  # fmt: skip
        publish(broker, Message(b"x", subject="s", properties={"amount": 500}))
        plain, gold = broker.peek(path, 10)
        assert (plain.subject, plain.properties) == ("s", {"amount": 500})
        assert (gold.subject, gold.properties) == ("big", {"amount": 500, "tier": "gold", "RuleName": "gold"})

    def test_it_is_received_and_dead_lettered_like_a_queue(self, broker: Broker, topic: str) -> None:
        path = subscribe(broker, "a", policy=PoisonPolicy(receive_retry_count=0))
        other = subscribe(broker, "b")
        publish(broker, b"good", b"bad")
        with broker.receiver(path) as receiver:
            good, bad = receiver.receive(2)
            receiver.complete(good)
            receiver.abandon(bad, error=ValueError("no"))
        (letter,) = broker.dead_letters(path)
        assert (letter.queue, letter.error_type) == (path, "ValueError")
        assert bodies(broker, f"{path}/$DeadLetterQueue") == [b"bad"]
        broker.resubmit(path, letter.sequence_number)
        # To the one subscription that it came from, and to no other.
        assert bodies(broker, path) == [b"bad"]
        assert bodies(broker, other) == [b"good", b"bad"]

    def test_in_a_transaction_it_is_all_or_nothing(self, broker: Broker, topic: str) -> None:
        paths = [subscribe(broker, name) for name in "ab"]
        with pytest.raises(ZeroDivisionError), broker.transaction() as tx:
            tx.send("events", Message(b"1"))
            raise ZeroDivisionError
        assert [bodies(broker, path) for path in paths] == [[], []]
        with broker.transaction() as tx:
            tx.send("events", Message(b"2"))
        assert [bodies(broker, path) for path in paths] == [[b"2"], [b"2"]]

    def test_numbers_are_never_used_again(self, connect: Any, broker: Broker, topic: str) -> None:
        assert publish(broker, b"1", b"2") == [1, 2]
        with connect() as other:
            other.create_queue("unrelated")
            assert publish(other, b"3") == [3]
        assert publish(broker, b"4") == [4]


class TestBodies:
    def test_one_for_all_copies_and_gone_with_the_last(self, broker: Broker, topic: str) -> None:
        paths = [subscribe(broker, name) for name in "abc"]
        publish(broker, b"small", b"x" * 5_000)
        assert stored_bodies(broker) == 2
        for left, path in zip((2, 2, 0), paths, strict=True):
            with broker.receiver(path) as receiver:
                receiver.complete(receiver.receive(2))
            assert stored_bodies(broker) == left

    def test_however_they_go(self, broker: Broker, topic: str) -> None:
        a, b, _c, d = (subscribe(broker, name, policy=PoisonPolicy(receive_retry_count=0)) for name in "abcd")
        publish(broker, b"x" * 5_000)
        with broker.receiver(a, mode="receive_and_delete") as receiver:
            assert receiver.receive(1)[0].body == b"x" * 5_000
        with broker.receiver(b) as receiver:
            receiver.dead_letter(receiver.receive(1)[0])
        broker.purge(b, 1)
        broker.delete_subscription("events", "c")
        assert bodies(broker, d) == [b"x" * 5_000]
        broker.delete_topic("events")
        broker.create_queue("other")
        while broker._store.run(_clean_up()):
            pass
        assert stored_bodies(broker) == 0
        assert broker.check() == []

    def test_a_single_copy_stands_with_its_message(self, broker: Broker, topic: str) -> None:
        subscribe(broker, "a")
        publish(broker, b"small")
        assert stored_bodies(broker) == 0


def _clean_up() -> Any:
    from lazaretto.engine.timers import CleanUp

    return CleanUp()


class TestFilterErrors:
    def test_the_message_is_set_aside_in_that_subscription_alone(self, broker: Broker, topic: str) -> None:
        bad = subscribe(broker, "bad", Rule("r", SqlFilter("amount > 100")))
        good = subscribe(broker, "good")
        publish(
            broker, Message(b"1", properties={"amount": "many"}), Message(b"2", properties={"amount": 500})
        )
        assert bodies(broker, good) == [b"1", b"2"]
        assert bodies(broker, bad) == [b"2"]
        (letter,) = broker.dead_letters(bad)
        assert letter.reason == "FilterException"
        assert letter.error_type == "lazaretto.errors.FilterError"
        assert "text and a number" in (letter.description or "")
        assert letter.message is not None
        assert letter.message.body == b"1"

    def test_or_it_is_left_out(self, broker: Broker, topic: str) -> None:
        rules = (Rule("r", SqlFilter("amount > 100")),)
        bad = subscribe(broker, "bad", *rules, dead_letter_on_filter_errors=False)
        publish(broker, Message(b"1", properties={"amount": "many"}))
        assert bodies(broker, bad) == []
        assert list(broker.dead_letters(bad)) == []
        (event,) = broker.events(0, kind="filter_failed")
        assert event.queue == bad

    def test_an_action_that_makes_headers_too_large(self, broker: Broker, topic: str) -> None:
        path = subscribe(broker, "a", Rule("r", SqlFilter("1=1"), SqlAction("SET b = a + a; SET c = b + b")))
        publish(broker, Message(b"1", properties={"a": "x" * 20_000}))
        (letter,) = broker.dead_letters(path)
        assert letter.reason == "HeaderSizeExceeded"

    def test_no_session_id_for_a_subscription_with_sessions(self, broker: Broker, topic: str) -> None:
        path = subscribe(broker, "a", requires_session=True)
        publish(broker, b"1", Message(b"2", session_id="s"))
        (letter,) = broker.dead_letters(path)
        assert (letter.reason, letter.message and letter.message.body) == ("Session ID is null.", b"1")
        with broker.receiver(path, session=NEXT_SESSION) as receiver:
            assert [m.body for m in receiver.receive(5)] == [b"2"]


class TestTimeAndDuplicates:
    def test_scheduled_messages_wait_in_the_topic(
        self, broker: Broker, topic: str, clock: ManualClock
    ) -> None:
        path = subscribe(broker, "a")
        other = subscribe(broker, "b", Rule("r", SqlFilter("x = 1")))
        later = datetime.fromtimestamp(clock.now() / 1e6, UTC) + timedelta(seconds=60)
        message = Message(b"1", message_id="m", properties={"x": 1}, scheduled_enqueue_time=later)
        numbers = publish(broker, message, b"now", message)
        assert bodies(broker, path) == [b"now"]
        assert broker.topic("events").scheduled == 2
        assert [m.state.value for m in broker.peek("events", 10)] == ["scheduled"] * 2
        broker.sender("events").cancel(numbers[2])
        clock.advance(61)
        with broker.receiver(path) as receiver:
            assert [m.body for m in receiver.receive(5)] == [b"now", b"1"]
        assert [(m.body, m.message_id, m.properties) for m in broker.peek(other, 5)] == [
            (b"1", "m", {"x": 1})
        ]
        assert broker.topic("events").scheduled == 0
        assert publish(broker, b"2")[0] > max(numbers)

    def test_the_shortest_time_to_live_counts(self, broker: Broker, clock: ManualClock) -> None:
        broker.create_topic("events", TopicOptions(default_time_to_live=100))
        a = subscribe(broker, "a", default_time_to_live=10, dead_letter_on_expiration=True)
        b = subscribe(broker, "b")
        publish(broker, b"1", Message(b"2", time_to_live=5))
        clock.advance(6)
        assert broker.receiver(b).receive(5)[0].body == b"1"
        clock.advance(5)
        assert broker.receiver(a).receive(5) == []
        assert [d.reason for d in broker.dead_letters(a)] == ["TTLExpiredException"] * 2
        clock.advance(100)
        assert broker.receiver(b).receive(5) == []

    def test_so_it_does_when_a_copy_is_resubmitted(self, broker: Broker, clock: ManualClock) -> None:
        broker.create_topic("events", TopicOptions(default_time_to_live=100))
        path = subscribe(broker, "a", policy=PoisonPolicy(receive_retry_count=0))
        publish(broker, b"bad", Message(b"short", time_to_live=50))
        with broker.receiver(path) as receiver:
            for message in receiver.receive(2):
                receiver.abandon(message)
        clock.advance(1000)
        broker.resubmit(path, [d.sequence_number for d in broker.dead_letters(path)])
        now = clock.now() / 1e6
        assert [(m.body, m.expires_at.timestamp() - now) for m in broker.peek(path, 5) if m.expires_at] == [
            (b"bad", 100),
            (b"short", 50),
        ]

    def test_duplicates_are_dropped_for_all(self, broker: Broker, clock: ManualClock) -> None:
        broker.create_topic("events", TopicOptions(requires_duplicate_detection=True))
        path = subscribe(broker, "a")
        assert publish(broker, Message(b"1", message_id="m"), Message(b"2", message_id="m")) == [1, 1]
        assert publish(broker, Message(b"3", message_id="m"), Message(b"4", message_id="n")) == [1, 2]
        assert bodies(broker, path) == [b"1", b"4"]
        clock.advance(601)
        publish(broker, Message(b"5", message_id="m"))
        assert bodies(broker, path) == [b"1", b"4", b"5"]


class TestEntities:
    def test_duplicates_are_those_of_an_id(self, broker: Broker) -> None:
        """As in Service Bus where an entity has no partitions: the partition key does not count."""
        broker.create_topic("events", TopicOptions(requires_duplicate_detection=True))
        path = subscribe(broker, "s")
        for body, partition in ((b"1", None), (b"2", "p"), (b"3", "p"), (b"4", "q")):
            publish(broker, Message(body, message_id="m", partition_key=partition))
        assert [(m.body, m.partition_key) for m in broker.peek(path, 10)] == [(b"1", None)]

    def test_deferred_ones_wait_in_their_subscription(self, broker: Broker) -> None:
        broker.create_topic("events")
        paths = [subscribe(broker, name) for name in ("one", "other")]
        publish(broker, b"x", b"y")
        receivers = [broker.receiver(path) for path in paths]
        (message,) = receivers[0].receive()
        receivers[0].defer(message)
        assert [m.body for m in receivers[0].receive(10)] == [b"y"]
        assert [m.body for m in receivers[1].receive(10)] == [b"x", b"y"]
        assert [m.body for m in receivers[0].receive_deferred(message.sequence_number)] == [b"x"]

    def test_they_are_made_described_changed_and_deleted(self, broker: Broker, topic: str) -> None:
        subscribe(broker, "a", Rule("big", SqlFilter("n > @least", {"least": 5}), SqlAction("REMOVE n")))
        subscribe(broker, "B")
        assert [t.path for t in broker.topics()] == ["events"]
        assert [s.name for s in broker.subscriptions("EVENTS")] == ["a", "B"]
        found = broker.subscription("events", "A")
        assert (found.topic, found.name, found.queue.path) == ("events", "a", "events/subscriptions/a")
        assert found.rules == (Rule("big", SqlFilter("n > @least", {"least": 5}), SqlAction("REMOVE n")),)
        assert broker.queue("events/subscriptions/a").counts.total == 0
        assert "events" not in [q.path for q in broker.queues()]
        assert broker.update_topic("events", max_message_size=2_000).options.max_message_size == 2_000
        with pytest.raises(MessageTooLarge):
            publish(broker, b"x" * 3_000)
        assert broker.update_subscription("events", "a", lock_duration=5).queue.options.lock_duration == 5
        broker.delete_subscription("events", "a")
        publish(broker, b"1")
        broker.delete_topic("events")
        with pytest.raises(EntityNotFound):
            broker.queue("events/subscriptions/B")
        assert [q.path for q in broker.queues()] == ["$system/deadletter"]

    def test_rules_come_and_go(self, connect: Any, broker: Broker, topic: str) -> None:
        path = subscribe(broker, "a")
        publish(broker, b"1")
        with connect() as other:
            other.remove_rule("events", "a", "$default")
            publish(broker, b"2")
            other.add_rule("events", "a", Rule("two", CorrelationFilter(properties={"n": 2})))
            publish(broker, b"3", Message(b"4", properties={"n": 2}))
        assert bodies(broker, path) == [b"1", b"4"]
        assert [rule.name for rule in broker.subscription("events", "a").rules] == ["two"]

    @pytest.mark.parametrize(
        "made",
        [
            Rule("r", CorrelationFilter(subject="s", properties={"u": uuid.UUID(int=1), "b": b"\xff"})),
            Rule("r", SqlFilter("a = @t", {"t": datetime(2026, 1, 1, tzinfo=UTC)})),
            Rule("r", SqlFilter("a = 1"), SqlAction("SET a = @n", {"n": None})),
            Rule("r", FalseFilter()),
        ],
    )  # fmt: skip
    def test_rules_survive_a_restart(self, connect: Any, broker: Broker, topic: str, made: Rule) -> None:
        subscribe(broker, "a", made)
        with connect() as other:
            assert other.subscription("events", "a").rules == (made,)

    def test_what_is_refused(self, broker: Broker, topic: str) -> None:
        path = subscribe(broker, "a")
        broker.create_queue("queue")
        for error, text, act in (
            (EntityExists, "a topic already exists", lambda: broker.create_queue("events")),
            (EntityExists, "a queue already exists", lambda: broker.create_topic("Queue")),
            (EntityExists, "already", lambda: broker.create_subscription("events", "A")),
            (EntityExists, "rule '\\$default'", lambda: broker.add_rule("events", "a", Rule("$default"))),
            (EntityNotFound, "did you mean 'events'", lambda: broker.topic("event")),
            (EntityNotFound, "it is a queue", lambda: broker.topic("queue")),
            (EntityNotFound, "did you mean", lambda: broker.subscription("events", "aa")),
            (EntityNotFound, "no rule 'x'", lambda: broker.remove_rule("events", "a", "x")),
            (EntityNotFound, "no topic", lambda: broker.create_subscription("queue", "a")),
            (InvalidPath, "is the path of a subscription", lambda: broker.create_queue("x/subscriptions/y")),
            (InvalidPath, "reserved", lambda: broker.create_queue("subscriptions/y")),
            (InvalidPath, "name of 1 to 50", lambda: broker.create_subscription("events", "a/b")),
            (InvalidPath, "name of 1 to 50", lambda: broker.create_subscription("events", "x" * 51)),
            (NotAllowed, "send to its topic", lambda: broker.sender(path).send(Message(b""))),
            (NotAllowed, "receive from one of its", lambda: broker.receiver("events").receive(1)),
            (NotAllowed, "broker.topic", lambda: broker.queue("events")),
            (NotAllowed, "delete_topic", lambda: broker.delete_queue("events")),
            (NotAllowed, "update_topic", lambda: broker.update_queue("events", lock_duration=5)),
            (InvalidOption, "unknown option 'lock_duration'",
             lambda: broker.update_topic("events", lock_duration=5)),  # type: ignore[call-arg]
            (InvalidOption, "did you mean 'max_message_size'", lambda: TopicOptions(max_mesage_size=5)),  # type: ignore[call-arg]
            (InvalidOption, "expected options", lambda: broker.create_topic("t", QueueOptions())),  # type: ignore[arg-type]
            (InvalidOption, "Rule objects", lambda: broker.create_subscription("events", "z", rules=["x"])),  # type: ignore[list-item]
            (FilterSyntaxError, "line 1", lambda: SqlFilter("a >")),
        ):  # fmt: skip
            with pytest.raises(error, match=text):
                act()


def test_a_thousand_correlation_filters_are_looked_up_not_asked(broker: Broker, topic: str) -> None:
    for n in range(300):
        subscribe(broker, f"s{n}", Rule("r", CorrelationFilter(properties={"customer": n})))
    every = subscribe(broker, "every")
    publish(broker, *[Message(b"%d" % n, properties={"customer": n}) for n in (7, 299, 300)])
    assert bodies(broker, "events/subscriptions/s7") == [b"7"]
    assert bodies(broker, "events/subscriptions/s299") == [b"299"]
    assert bodies(broker, "events/subscriptions/s8") == []
    assert bodies(broker, every) == [b"7", b"299", b"300"]
