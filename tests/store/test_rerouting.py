"""Dead letters moved to another queue, or published to a topic anew."""

from __future__ import annotations

import pytest

from lazaretto import (
    Broker,
    CorrelationFilter,
    DeadLetterFilter,
    EntityNotFound,
    ManualClock,
    Message,
    MessageState,
    NotAllowed,
    QueueDisabled,
    QueueOptions,
    Rule,
    SqlAction,
    TopicOptions,
    TrueFilter,
)

from .actions import bodies, create, fail, kinds, numbers, peek_one, send, set_aside, take

TEXT = "no such customer"
ALL = "t/subscriptions/all"


class TestMove:
    """Dead letters become new messages of another queue."""

    @pytest.fixture(autouse=True)
    def queues(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0)
        create(broker, "desk")

    def test_all_of_them_by_a_filter(self, broker: Broker) -> None:
        set_aside(broker, b"1", b"2", reason="Bad")
        set_aside(broker, b"3", reason="Worse")
        report = broker.move_dead_letters("q", DeadLetterFilter(reason="Bad"), "desk")
        assert (report.moved, report.skipped) == ({1: 1, 2: 2}, [])
        assert [(m.body, m.state) for m in broker.peek("desk", 9)] == [
            (b"1", MessageState.ACTIVE),
            (b"2", MessageState.ACTIVE),
        ]
        assert numbers(broker.dead_letters("q")) == [3]
        assert broker.check() == []

    @pytest.mark.parametrize("body", [b"small", b"x" * 5000])
    def test_id_properties_body_and_reason_go_along(self, broker: Broker, body: bytes) -> None:
        number = broker.sender("q").send(
            Message(body, message_id="m-1", subject="order", properties={"a": 1}, session_id="s")
        )
        receiver = broker.receiver("q")
        receiver.dead_letter(receiver.receive(), reason="Bad", description=TEXT)
        broker.move_dead_letters("q", number, "desk")
        message = take(broker, "desk")
        assert (message.body, message.message_id, message.subject, message.session_id) == (
            body, "m-1", "order", "s",
        )  # fmt: skip
        assert message.properties["a"] == 1
        assert (message.dead_letter_source, message.dead_letter_reason) == ("q", "Bad")
        assert message.dead_letter_error_description == TEXT
        assert (message.generation, message.attempt, message.enqueued_sequence_number) == (1, 1, number)

    def test_its_history_is_found_from_there(self, broker: Broker) -> None:
        send(broker, b"x")
        fail(broker, error="ValueError: no")
        broker.move_dead_letters("q", 1, "desk")
        assert [a.error_type for a in broker.attempts("desk", 1)] == ["ValueError"]
        before = broker.dead_letter("q", 1)
        assert (before.resolution, before.resubmitted_as, before.moved_to) == ("moved", 1, "desk")
        receiver = broker.receiver("desk")
        receiver.dead_letter(receiver.receive(), error="KeyError: again")
        letter = broker.dead_letter("desk", 1)
        assert [a.error_type for a in letter.attempts] == ["ValueError", "KeyError"]

    def test_who_did_it_and_what_happened(self, broker: Broker) -> None:
        set_aside(broker, b"1", b"2")
        before = broker.last_event()
        broker.move_dead_letters("q", [2, 1], "desk", actor="ann")
        (entry,) = broker.audit(queue="q", limit=1)
        assert (entry.actor, entry.action, entry.detail["to"]) == ("ann", "move", "desk")
        assert entry.detail["count"] == 2
        events = broker.events(before)
        assert kinds(events) == ["moved", "moved"]
        assert [(e.sequence_number, e.detail["to"], e.detail["new_sequence_number"]) for e in events] == [
            (2, "desk", 1),
            (1, "desk", 2),
        ]

    def test_none_is_dropped_as_a_duplicate(self, broker: Broker) -> None:
        create(broker, "once", requires_duplicate_detection=True)
        send(broker, b"old", path="once", message_id="same")
        for body in (b"1", b"2"):
            send(broker, body, message_id="same")
        send(broker, b"3", message_id="new")
        for _ in range(3):
            fail(broker)
        assert len(broker.move_dead_letters("q", DeadLetterFilter(), "once").moved) == 3
        assert bodies(broker.peek("once", 9)) == [b"old", b"1", b"2", b"3"]
        # What is sent under its id afterwards is one.
        send(broker, b"late", path="once", message_id="new")
        assert len(broker.peek("once", 9)) == 4

    def test_a_new_life(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, "short", default_time_to_live=30)
        send(broker, b"1", time_to_live=60)
        send(broker, b"2")
        fail(broker), fail(broker)
        clock.advance(3600)
        broker.move_dead_letters("q", [1], "desk")
        broker.move_dead_letters("q", [2], "short")
        for path, seconds in (("desk", 60), ("short", 30)):
            message = peek_one(broker, path)
            assert message.expires_at is not None
            assert (message.expires_at - message.enqueued_time).total_seconds() == seconds

    def test_what_cannot_go_stays(self, broker: Broker) -> None:
        create(broker, "tiny", max_message_size=1024)
        create(broker, "sessions", requires_session=True)
        set_aside(broker, b"x" * 2000, b"small")
        report = broker.move_dead_letters("q", [1, 2, 9], "tiny")
        assert report.moved == {2: 1}
        assert [s.sequence_number for s in report.skipped] == [1, 9]
        assert "takes at most 1024 bytes" in report.skipped[0].why
        assert report.skipped[1].why == "not found"
        (why,) = broker.move_dead_letters("q", 1, "sessions").skipped
        assert "requires sessions" in why.why
        assert broker.move_dead_letters("q", 2, "desk").skipped[0].why == "already moved"
        with broker.receiver("q;poison") as dead:
            dead.receive()
            assert "locked" in broker.move_dead_letters("q", 1, "desk").skipped[0].why
        assert numbers(broker.dead_letters("q")) == [1]

    def test_a_full_queue_takes_as_many_as_fit(self, broker: Broker) -> None:
        create(broker, "small", max_size=1200)
        set_aside(broker, *[b"x" * 400] * 5)
        report = broker.move_dead_letters("q", DeadLetterFilter(), "small")
        assert 0 < len(report.moved) < 5
        assert len(report.moved) + len(report.skipped) == 5
        assert all("is full" in s.why for s in report.skipped)
        assert len(broker.peek("small", 9)) + len(list(broker.dead_letters("q"))) == 5
        assert broker.check() == []

    def test_to_a_queue_that_forwards(self, broker: Broker) -> None:
        create(broker, "way", forward_to="desk")
        set_aside(broker, b"x")
        assert broker.move_dead_letters("q", 1, "way").moved == {1: 1}
        assert bodies(broker.peek("desk", 9)) == [b"x"]
        assert broker.dead_letter("q", 1).moved_to == "desk"
        set_aside(broker, b"y")
        broker.set_status("desk", "disabled")
        assert broker.move_dead_letters("q", 2, "way").moved == {2: None}
        assert numbers(broker.dead_letters("way/$Transfer/$deadletterqueue")) == [1]

    def test_a_parked_session_goes_on(self, broker: Broker) -> None:
        create(broker, "p", requires_session=True, on_poison_session="park", receive_retry_count=0)
        bad, _ = [send(broker, body, path="p", session_id="s") for body in (b"1", b"2")]
        with broker.receiver("p", session="s") as receiver:
            receiver.abandon(receiver.receive())
        assert [s.session_id for s in broker.held_sessions("p")] == ["s"]
        broker.move_dead_letters("p", bad, "desk")
        assert broker.held_sessions("p") == []
        with broker.receiver("p", session="s") as receiver:
            assert bodies(receiver.receive()) == [b"2"]

    def test_more_than_one_commits_worth(self, broker: Broker) -> None:
        for _ in range(2):
            set_aside(broker, *[b"x"] * 600)
        seen: list[tuple[int, int]] = []
        report = broker.move_dead_letters(
            "q", DeadLetterFilter(), "desk", on_chunk=lambda done, of: seen.append((done, of))
        )
        assert list(report.moved) == list(report.moved.values()) == list(range(1, 1201))
        assert seen == [(500, 1200), (1000, 1200), (1200, 1200)]
        assert broker.queue("desk").counts.active == 1200
        assert broker.check() == []

    @pytest.mark.parametrize(
        ("to", "error"),
        [
            ("nowhere", EntityNotFound),
            ("q", NotAllowed),
            ("t", NotAllowed),
            ("t/subscriptions/all", NotAllowed),
            ("desk;poison", NotAllowed),
            ("$system/deadletter", NotAllowed),
            ("off", QueueDisabled),
            ("service", NotAllowed),
        ],
    )
    def test_where_nothing_can_be_moved_to(self, broker: Broker, to: str, error: type[Exception]) -> None:
        broker.create_topic("t")
        broker.create_subscription("t", "all")
        create(broker, "off")
        broker.set_status("off", "send_disabled")
        create(broker, "service", dialogs=True, requires_session=True)
        set_aside(broker, b"x")
        with pytest.raises(error):
            broker.move_dead_letters("q", 1, to)
        assert numbers(broker.dead_letters("q")) == [1]


class TestRepublish:
    """Dead letters go to every subscription whose rules match, with a count first."""

    @pytest.fixture(autouse=True)
    def topic(self, broker: Broker) -> None:
        broker.create_topic("t")
        broker.create_subscription("t", "all", QueueOptions())
        broker.create_subscription("t", "red", rules=[Rule("red", CorrelationFilter(subject="red"))])
        broker.create_subscription(
            "t", "marked",
            rules=[Rule("mark", TrueFilter(), SqlAction("SET marked = 1")), Rule("plain")],
        )  # fmt: skip
        for body, subject in ((b"1", "red"), (b"2", "blue"), (b"3", "red")):
            broker.sender("t").send(Message(body, subject=subject, message_id=body.decode()))
        with broker.receiver(ALL) as receiver:
            receiver.dead_letter(receiver.receive(9), reason="Bad")
        for name in ("red", "marked"):
            with broker.receiver(f"t/subscriptions/{name}") as receiver:
                receiver.complete(receiver.receive(9))

    def test_the_count_says_what_will_be(self, broker: Broker) -> None:
        count = broker.count_republished(ALL, [1, 2, 9])
        assert count.topic == "t"
        assert count.published == {1: 4, 2: 3}
        assert count.subscriptions == {ALL: 2, "t/subscriptions/red": 1, "t/subscriptions/marked": 4}
        assert count.copies == 7
        assert [(s.sequence_number, s.why) for s in count.skipped] == [(9, "not found")]
        assert numbers(broker.dead_letters(ALL)) == [1, 2, 3]
        assert _waiting(broker) == {"all": [], "red": [], "marked": []}

        report = broker.republish(ALL, [1, 2, 9])
        assert report == count
        assert _waiting(broker) == {"all": [b"1", b"2"], "red": [b"1"], "marked": [b"1", b"1", b"2", b"2"]}
        assert numbers(broker.dead_letters(ALL)) == [3]
        assert broker.dead_letter(ALL, 1).resolution == "republished"
        assert broker.check() == []

    def test_a_large_body_is_kept_once_for_all(self, broker: Broker) -> None:
        broker.sender("t").send(Message(b"x" * 5000, subject="red"))
        with broker.receiver(ALL) as receiver:
            receiver.dead_letter(receiver.receive(9))
        broker.republish(ALL, 4)
        for path in (ALL, "t/subscriptions/red", "t/subscriptions/marked"):
            with broker.receiver(path) as receiver:
                found = receiver.receive(9)
                assert {len(m.body) for m in found} == {5000}
                receiver.complete(found)
        assert broker.check() == []

    def test_lineage_and_audit(self, broker: Broker) -> None:
        with broker.receiver("t/subscriptions/all;poison") as dead:
            dead.release(dead.receive())
        before = broker.last_event()
        broker.republish(ALL, 1, actor="ann")
        message = peek_one(broker, ALL)
        assert (message.message_id, message.generation, message.deliveries) == ("1", 1, 0)
        assert broker.attempts(ALL, message.sequence_number)[0].outcome.value == "dead_lettered"
        (event,) = broker.events(before)
        assert (event.kind, event.sequence_number, event.detail) == (
            "republished",
            1,
            {"topic": "t", "copies": 4},
        )
        entry = broker.audit(queue=ALL)[0]
        assert (entry.actor, entry.action, entry.detail["topic"]) == ("ann", "republish", "t")

    def test_what_no_subscription_wants_stays(self, broker: Broker) -> None:
        broker.create_topic("picky")
        broker.create_subscription("picky", "red", rules=[Rule("red", CorrelationFilter(subject="red"))])
        report = broker.republish(ALL, DeadLetterFilter(), topic="picky")
        assert report.published == {1: 1, 3: 1}
        assert [s.sequence_number for s in report.skipped] == [2]
        assert "No subscription of the topic 'picky' matches it" in report.skipped[0].why
        assert numbers(broker.dead_letters(ALL)) == [2]
        assert broker.topic("picky").unmatched == 0

    def test_none_is_dropped_as_a_duplicate(self, broker: Broker) -> None:
        broker.create_topic("once", TopicOptions(requires_duplicate_detection=True))
        broker.create_subscription("once", "all")
        broker.sender("once").send(Message(b"before", message_id="1"))
        assert list(broker.republish(ALL, DeadLetterFilter(), topic="once").published) == [1, 2, 3]
        assert bodies(broker.peek("once/subscriptions/all", 9)) == [b"before", b"1", b"2", b"3"]

    def test_a_queues_dead_letters_need_a_topic(self, broker: Broker) -> None:
        create(broker)
        set_aside(broker, b"x")
        with pytest.raises(NotAllowed, match="name the topic"):
            broker.count_republished("q", 1)
        assert broker.republish("q", 1, topic="t").copies == 3
        with pytest.raises(EntityNotFound, match=r"no topic exists at 'q' \(it is a queue\)"):
            broker.republish("q", 1, topic="q")

    def test_a_topic_that_is_switched_off(self, broker: Broker) -> None:
        broker.set_status("t", "disabled")
        for verb in (broker.count_republished, broker.republish):
            with pytest.raises(QueueDisabled):
                verb(ALL, 1)
        assert numbers(broker.dead_letters(ALL)) == [1, 2, 3]

    def test_a_subscription_that_needs_sessions_sets_aside_what_has_none(self, broker: Broker) -> None:
        broker.create_subscription("t", "lanes", QueueOptions(requires_session=True))
        assert broker.republish(ALL, 1).published == {1: 5}
        (letter,) = broker.dead_letters("t/subscriptions/lanes")
        assert letter.reason == "Session ID is null."


def _waiting(broker: Broker) -> dict[str, list[bytes]]:
    return {name: bodies(broker.peek(f"t/subscriptions/{name}", 99)) for name in ("all", "red", "marked")}
