"""Facts about Azure Service Bus, as its clients' tests against the real service show them, one by one.

Delivery count, locks and settlement; dead letters; forwarding; time to live; deferral, scheduling and
peeking; sessions. Each test has its fact in its name.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lazaretto import (
    NEXT_SESSION,
    Broker,
    EntityNotFound,
    InvalidMessage,
    InvalidOption,
    ManualClock,
    Message,
    MessageLockLost,
    MessageNotFound,
    MessageState,
    NotAllowed,
    PoisonPolicy,
    QueueOptions,
    QuotaExceeded,
    Rule,
    SessionCannotBeLocked,
    SessionLockLost,
    SqlFilter,
    TopicOptions,
)

from .actions import bodies, create, fail, numbers, peek_one, send, set_aside, states, take

DEAD = "q/$deadletterqueue"


@pytest.fixture
def q(broker: Broker) -> Broker:
    """A broker with a queue as Service Bus makes it: ten deliveries, locks of a minute."""
    broker.create_queue("q", QueueOptions(policy=PoisonPolicy.service_bus()))
    return broker


@pytest.fixture
def sessions(broker: Broker) -> Broker:
    broker.create_queue("q", QueueOptions(requires_session=True))
    return broker


def count(broker: Broker, path: str = "q") -> int:
    return peek_one(broker, path).delivery_count


class TestDeliveryCount:
    """What adds one to it, and what does not."""

    def test_the_first_delivery_shows_0(self, q: Broker) -> None:
        send(q, b"x")
        assert take(q).delivery_count == 0

    def test_a_first_delivery_by_receive_and_delete_shows_0(self, q: Broker) -> None:
        send(q, b"x")
        assert take(q, mode="receive_and_delete").delivery_count == 0

    def test_abandon_adds_1_and_it_is_available_at_once_in_its_place(self, q: Broker) -> None:
        send(q, b"1", b"2")
        assert fail(q) == 1
        again = take(q)
        assert (again.sequence_number, again.delivery_count) == (1, 1)

    def test_a_lock_that_expires_adds_1(self, q: Broker, clock: ManualClock) -> None:
        send(q, b"x")
        take(q)
        clock.advance(60)
        assert take(q).delivery_count == 1

    def test_a_session_lock_that_expires_adds_1(self, sessions: Broker, clock: ManualClock) -> None:
        send(sessions, b"x", session_id="s")
        take(sessions, session="s")
        clock.advance(60)
        assert take(sessions, session="s").delivery_count == 1

    def test_a_session_that_is_closed_changes_nothing_and_gives_back_at_once(self, sessions: Broker) -> None:
        send(sessions, b"x", session_id="s")
        with sessions.receiver("q", session="s") as receiver:
            receiver.receive()
        assert take(sessions, session="s").delivery_count == 0

    def test_a_receiver_that_is_closed_leaves_the_lock_running(self, q: Broker, clock: ManualClock) -> None:
        send(q, b"x")
        with q.receiver("q") as receiver:
            receiver.receive()
        assert (count(q), q.receiver("q").receive()) == (0, [])
        clock.advance(60)
        assert take(q).delivery_count == 1

    def test_defer_adds_1(self, q: Broker) -> None:
        number = send(q, b"x")
        receiver = q.receiver("q")
        receiver.defer(receiver.receive())
        (deferred,) = receiver.receive_deferred(number)
        assert deferred.delivery_count == 1

    def test_a_deferred_one_abandoned_adds_1_and_stays_deferred(self, q: Broker) -> None:
        number = send(q, b"x")
        receiver = q.receiver("q")
        receiver.defer(receiver.receive())
        receiver.abandon(receiver.receive_deferred(number))
        assert states(q) == [(b"x", MessageState.DEFERRED)]
        assert count(q) == 2

    def test_a_deferred_one_deferred_again_adds_1(self, q: Broker) -> None:
        number = send(q, b"x")
        receiver = q.receiver("q")
        receiver.defer(receiver.receive())
        receiver.defer(receiver.receive_deferred(number))
        assert count(q) == 2

    def test_release_changes_nothing(self, q: Broker) -> None:
        send(q, b"x")
        receiver = q.receiver("q")
        receiver.release(receiver.receive())
        assert take(q).delivery_count == 0

    def test_dead_lettering_changes_nothing(self, q: Broker) -> None:
        set_aside(q, b"x")
        assert count(q, DEAD) == 0

    def test_deferred_once_and_dead_lettered_it_shows_1(self, q: Broker) -> None:
        number = send(q, b"x")
        receiver = q.receiver("q")
        receiver.defer(receiver.receive())
        receiver.dead_letter(receiver.receive_deferred(number))
        assert count(q, DEAD) == 1

    def test_abandon_among_the_dead_letters_changes_nothing(self, q: Broker) -> None:
        set_aside(q, b"x")
        for _ in range(12):
            fail(q, DEAD)
        assert take(q, DEAD).delivery_count == 0

    def test_a_lock_that_expires_among_the_dead_letters_changes_nothing(
        self, q: Broker, clock: ManualClock
    ) -> None:
        set_aside(q, b"x")
        take(q, DEAD)
        clock.advance(60)
        assert take(q, DEAD).delivery_count == 0

    def test_peek_changes_nothing(self, q: Broker) -> None:
        send(q, b"x")
        for _ in range(3):
            q.peek("q")
        assert take(q).delivery_count == 0

    def test_a_maximum_of_10_means_10_deliveries_that_show_0_to_9(self, q: Broker) -> None:
        send(q, b"x")
        seen = []
        receiver = q.receiver("q")
        while messages := receiver.receive():
            seen.append(messages[0].delivery_count)
            receiver.abandon(messages)
        assert seen == list(range(10))
        assert q.peek("q") == []
        assert q.queue("q").counts.dead_letter == 1

    def test_expired_locks_reach_the_maximum_too(self, q: Broker, clock: ManualClock) -> None:
        send(q, b"x")
        for _ in range(10):
            take(q)
            clock.advance(60)
        assert q.receiver("q").receive() == []
        assert q.queue("q").counts.dead_letter == 1

    def test_the_maximum_is_at_least_1_and_may_be_without_end(self) -> None:
        assert PoisonPolicy.service_bus(1).total_attempts == 1
        assert PoisonPolicy.service_bus(2_147_483_647).total_attempts == 2_147_483_647
        with pytest.raises(InvalidOption):
            PoisonPolicy.service_bus(0)


class TestLocks:
    """Locks and settling."""

    def test_a_lock_lasts_a_minute_by_default(self, q: Broker) -> None:
        send(q, b"x")
        message = take(q)
        assert message.locked_until == message.enqueued_time + timedelta(seconds=60)

    @pytest.mark.parametrize("verb", ["complete", "abandon", "defer", "dead_letter"])
    def test_settling_after_the_lock_expired_is_refused(
        self, q: Broker, clock: ManualClock, verb: str
    ) -> None:
        send(q, b"x")
        message = take(q)
        clock.advance(60)
        with pytest.raises(MessageLockLost):
            getattr(q.receiver("q"), verb)(message)

    def test_settling_after_the_session_lock_expired_is_refused(
        self, sessions: Broker, clock: ManualClock
    ) -> None:
        send(sessions, b"x", session_id="s")
        receiver = sessions.receiver("q", session="s")
        messages = receiver.receive()
        clock.advance(60)
        with pytest.raises(SessionLockLost):
            receiver.complete(messages)

    def test_renewed_it_lasts_from_now_on(self, q: Broker, clock: ManualClock) -> None:
        send(q, b"x")
        message = take(q)
        clock.advance(50)
        assert q.receiver("q").renew_lock(message) == message.enqueued_time + timedelta(seconds=110)

    @pytest.mark.parametrize("verb", ["complete", "abandon", "defer", "dead_letter", "renew_lock"])
    def test_a_lock_belongs_to_the_entity_and_not_to_the_receiver(self, q: Broker, verb: str) -> None:
        send(q, b"x")
        with q.receiver("q") as receiver:
            (message,) = receiver.receive()
        getattr(q.receiver("q"), verb)(message)

    def test_received_and_deleted_it_is_gone(self, q: Broker) -> None:
        send(q, b"x")
        message = take(q, mode="receive_and_delete")
        assert q.queue("q").counts.total == 0
        with pytest.raises(NotAllowed):
            q.receiver("q").complete(message)

    def test_fetched_and_not_worked_on_they_count_up_to_the_dead_letters(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        create(broker, receive_retry_count=1)
        send(broker, b"1", b"2", b"3")
        for _ in range(2):
            broker.receiver("q").receive(3)
            clock.advance(60)
        assert broker.receiver("q").receive(3) == []
        assert broker.queue("q").counts.dead_letter == 3


class TestDeadLetterQueue:
    """What it is, and what it does not do."""

    @pytest.mark.parametrize("path", ["q/$deadletterqueue", "q/$DeadLetterQueue", "Q/$DEADLETTERQUEUE"])
    def test_its_address_compares_without_case(self, q: Broker, path: str) -> None:
        set_aside(q, b"x")
        assert take(q, path).body == b"x"

    def test_it_is_not_made_or_deleted_by_itself(self, q: Broker) -> None:
        for call in (q.create_queue, q.delete_queue):
            with pytest.raises(NotAllowed):
                call(DEAD)

    def test_nothing_is_sent_to_it(self, q: Broker) -> None:
        with pytest.raises(NotAllowed):
            send(q, b"x", path=DEAD)

    def test_topics_have_none(self, broker: Broker) -> None:
        broker.create_topic("t")
        with pytest.raises(NotAllowed):
            take(broker, "t/$deadletterqueue")

    def test_nothing_expires_there(self, q: Broker, clock: ManualClock) -> None:
        send(q, b"x", time_to_live=5.0)
        receiver = q.receiver("q")
        receiver.dead_letter(receiver.receive())
        clock.advance(10_000_000)
        assert take(q, DEAD).body == b"x"

    def test_dead_lettering_there_fails_and_the_message_stays(self, q: Broker) -> None:
        set_aside(q, b"x")
        message = take(q, DEAD)
        with pytest.raises(NotAllowed):
            q.receiver(DEAD).dead_letter(message)
        assert states(q, DEAD) == [(b"x", MessageState.LOCKED)]
        assert count(q, DEAD) == 0

    def test_deferring_there_works(self, q: Broker) -> None:
        (number,) = set_aside(q, b"x")
        receiver = q.receiver(DEAD)
        receiver.defer(receiver.receive())
        assert receiver.receive() == []
        assert bodies(receiver.receive_deferred(number)) == [b"x"]

    def test_everything_else_works_there(self, q: Broker) -> None:
        set_aside(q, b"1", b"2", b"3")
        assert bodies(q.peek(DEAD, 10)) == [b"1", b"2", b"3"]
        receiver = q.receiver(DEAD)
        (message,) = receiver.receive()
        receiver.renew_lock(message)
        receiver.complete(message)
        assert take(q, DEAD, mode="receive_and_delete").body == b"2"
        with q.transaction() as tx:
            assert bodies(tx.receive(DEAD)) == [b"3"]
        assert q.queue("q").counts.total == 0

    def test_that_of_a_session_queue_is_read_without_sessions(self, sessions: Broker) -> None:
        send(sessions, b"x", session_id="s")
        receiver = sessions.receiver("q", session="s")
        receiver.dead_letter(receiver.receive())
        with pytest.raises(NotAllowed):
            sessions.receiver(DEAD, session="s")
        assert take(sessions, DEAD).session_id == "s"

    def test_full_of_dead_letters_nothing_more_is_taken(self, broker: Broker) -> None:
        create(broker, max_size=1024)
        set_aside(broker, b"x" * 1024)
        with pytest.raises(QuotaExceeded):
            send(broker, b"y")

    def test_a_dead_letter_keeps_all_it_had(self, q: Broker) -> None:
        fields: dict[str, Any] = {"message_id": "m", "correlation_id": "c", "properties": {"n": 1}}
        send(q, b"x", **fields)
        before = take(q)
        q.receiver("q").dead_letter(before)
        after = take(q, DEAD)
        for name in (
            "body",
            "message_id",
            "correlation_id",
            "properties",
            "sequence_number",
            "enqueued_time",
        ):
            assert getattr(after, name) == getattr(before, name), name

    def test_a_session_goes_on_behind_a_dead_letter(self, sessions: Broker) -> None:
        send(sessions, b"1", b"2", b"3", session_id="s")
        receiver = sessions.receiver("q", session="s")
        receiver.dead_letter(receiver.receive())
        assert bodies(receiver.receive(10)) == [b"2", b"3"]


class TestReasons:
    """Reason and description, word for word."""

    def why(self, broker: Broker, path: str = "q") -> tuple[str | None, str | None]:
        (letter,) = broker.dead_letters(path)
        return letter.reason, letter.description

    def test_too_many_deliveries(self, q: Broker) -> None:
        send(q, b"x")
        for _ in range(10):
            fail(q)
        text = "Message could not be consumed after 10 delivery attempts."
        assert self.why(q) == ("MaxDeliveryCountExceeded", text)

    def test_expired(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, dead_letter_on_expiration=True)
        send(broker, b"x", time_to_live=15.0)
        clock.advance(15)
        assert broker.receiver("q").receive() == []
        assert self.why(broker) == ("TTLExpiredException", "The message expired and was dead lettered.")

    def test_headers_that_grew_too_large(self, q: Broker) -> None:
        q.sender("q").send(Message(b"x", properties={f"p{n}": "x" * 16_000 for n in range(4)}))
        receiver = q.receiver("q")
        receiver.abandon(receiver.receive(), properties={"more": "y" * 4_000})
        text = "The size quota for this stream has been exceeded."
        assert self.why(q) == ("HeaderSizeExceeded", text)

    def test_no_session_id_where_one_is_needed(self, sessions: Broker) -> None:
        create(sessions, "source", forward_to="q")
        send(sessions, b"x", path="source")
        text = "Session enabled entity doesn't allow a message whose session identifier is null."
        assert self.why(sessions) == ("Session ID is null.", text)

    def test_a_filter_that_fails(self, broker: Broker) -> None:
        broker.create_topic("t")
        broker.create_subscription("t", "s", rules=[Rule("r", SqlFilter("n > 'x'"))])
        broker.sender("t").send(Message(b"x", properties={"n": 1}))
        assert self.why(broker, "t/subscriptions/s")[0] == "FilterException"

    def test_without_a_reason_there_is_none(self, q: Broker) -> None:
        set_aside(q, b"x")
        message = take(q, DEAD)
        assert (message.dead_letter_reason, message.dead_letter_error_description) == (None, None)

    def test_each_has_at_most_4096_characters(self, q: Broker) -> None:
        set_aside(q, b"x", reason="r" * 9_000, description="d" * 9_000)
        assert [len(text or "") for text in self.why(q)] == [4096, 4096]

    @pytest.mark.parametrize("in_session", [False, True])
    @pytest.mark.parametrize("verb", ["abandon", "defer", "dead_letter"])
    def test_settling_may_change_properties(self, broker: Broker, verb: str, in_session: bool) -> None:
        create(broker, requires_session=in_session)
        send(broker, b"x", properties={"kept": 1, "changed": 1}, session_id="s" if in_session else None)
        receiver = broker.receiver("q", session="s" if in_session else None)
        getattr(receiver, verb)(receiver.receive(), properties={"changed": 2, "new": 3})
        found = peek_one(broker, DEAD if verb == "dead_letter" else "q")
        assert found.properties == {"kept": 1, "changed": 2, "new": 3}

    def test_the_source_is_told_only_of_forwarded_ones(self, broker: Broker) -> None:
        create(broker, "graves")
        create(broker)
        set_aside(broker, b"x")
        assert take(broker, DEAD).dead_letter_source is None
        broker.update_queue("q", forward_dead_lettered_messages_to="graves")
        set_aside(broker, b"y", reason="bad")
        message = take(broker, "graves")
        assert (message.dead_letter_source, message.dead_letter_reason) == ("q", "bad")
        assert message.properties["DeadLetterReason"] == "bad"


class TestForwarding:
    """Auto-forward and the transfer dead-letter queue."""

    @pytest.mark.parametrize("name", ["forward_to", "forward_dead_lettered_messages_to"])
    def test_the_target_must_exist(self, broker: Broker, name: str) -> None:
        with pytest.raises(EntityNotFound):
            create(broker, **{name: "nowhere"})

    def test_combinations_that_are_taken(self, broker: Broker) -> None:
        create(broker, "to")
        create(broker, requires_session=True, forward_to="to", auto_delete_on_idle=600)
        broker.update_queue("q", forward_dead_lettered_messages_to="q")
        broker.create_topic("t")
        itself = QueueOptions(forward_to="t", forward_dead_lettered_messages_to="t")
        broker.create_subscription("t", "s", itself)

    def test_what_forwards_is_not_received_from(self, broker: Broker) -> None:
        create(broker, "target")
        create(broker, forward_to="target", forward_dead_lettered_messages_to="target")
        for path in ("q", DEAD):
            with pytest.raises(NotAllowed):
                take(broker, path)

    def test_the_fifth_hop_ends_in_the_dead_letters_where_it_stopped(self, broker: Broker) -> None:
        paths = "abcdef"
        for place in range(5, -1, -1):
            create(broker, paths[place], forward_to=None if place == 5 else paths[place + 1])
        send(broker, b"x", path="a")
        (letter,) = broker.dead_letters("e")
        assert letter.reason == "MaxTransferHopCountExceeded"
        assert broker.queue("e").counts.transfer_dead_letter == 0

    def test_the_transfer_queue_can_be_opened_when_it_is_empty(self, q: Broker) -> None:
        assert q.receiver("q/$Transfer/$DeadLetterQueue").receive() == []

    def test_a_forwarded_message_keeps_its_first_number(self, broker: Broker) -> None:
        create(broker, "target")
        create(broker, forward_to="target")
        send(broker, b"own", path="target")
        number = send(broker, b"x")
        found = broker.peek("target", 10)[1]
        assert (found.sequence_number, found.enqueued_sequence_number) == (2, number)

    def test_what_forwards_is_never_idle(self, q: Broker, clock: ManualClock) -> None:
        create(q, "a", forward_to="q", auto_delete_on_idle=300)
        clock.advance(10_000)
        assert q.queue("a").options.forward_to == "q"


class TestTimeToLive:
    """The end of a message."""

    def test_the_shortest_of_message_topic_and_subscription_counts(self, broker: Broker) -> None:
        broker.create_topic("t", TopicOptions(default_time_to_live=50))
        broker.create_subscription("t", "s", QueueOptions(default_time_to_live=40))
        for own, left in ((60.0, 40), (30.0, 30), (None, 40)):
            send(broker, b"x", path="t", time_to_live=own)
            message = take(broker, "t/subscriptions/s")
            assert message.expires_at == message.enqueued_time + timedelta(seconds=left)

    def test_expired_it_is_dropped_by_default(self, q: Broker, clock: ManualClock) -> None:
        send(q, b"x", time_to_live=15.0)
        clock.advance(15)
        assert q.receiver("q").receive() == []
        assert (q.queue("q").counts.total, q.queue("q").expired) == (0, 1)

    def test_while_it_is_locked_it_does_not_expire(self, q: Broker, clock: ManualClock) -> None:
        send(q, b"x", time_to_live=15.0)
        message = take(q)
        clock.advance(30)
        q.receiver("q").complete(message)
        assert q.queue("q").expired == 0

    def test_abandoned_too_late_it_expires_at_once(self, q: Broker, clock: ManualClock) -> None:
        send(q, b"x", time_to_live=15.0)
        message = take(q)
        clock.advance(30)
        q.receiver("q").abandon(message)
        assert q.receiver("q").receive() == []
        assert q.queue("q").expired == 1

    def test_deferred_it_does_not_expire(self, q: Broker, clock: ManualClock) -> None:
        number = send(q, b"x", time_to_live=15.0)
        receiver = q.receiver("q")
        receiver.defer(receiver.receive())
        clock.advance(10_000)
        assert bodies(receiver.receive_deferred(number)) == [b"x"]


class TestNumbersAndTime:
    """Sequence numbers, scheduling, deferral, peeking, duplicates."""

    def test_numbers_start_at_1_without_gaps(self, q: Broker) -> None:
        assert send(q, b"1", b"2", b"3") == [1, 2, 3]

    def test_a_scheduled_one_is_given_a_new_number_when_it_becomes_active(
        self, q: Broker, clock: ManualClock
    ) -> None:
        send(q, b"first")
        at = peek_one(q).enqueued_time + timedelta(seconds=30)
        number = q.sender("q").schedule(Message(b"x"), at)
        send(q, b"between")
        clock.advance(30)
        late = q.receiver("q").receive(10)[-1]
        assert (number, late.sequence_number, late.enqueued_sequence_number) == (2, 4, 2)
        assert late.enqueued_time >= at == late.scheduled_enqueue_time

    def test_it_is_seen_by_peeking_at_a_queue_or_a_topic_not_at_a_subscription(self, q: Broker) -> None:
        q.create_topic("t")
        q.create_subscription("t", "s")
        send(q, b"now")
        at = peek_one(q).enqueued_time + timedelta(seconds=30)
        for path in ("q", "t"):
            q.sender(path).schedule(Message(b"x"), at)
        assert states(q)[-1] == (b"x", MessageState.SCHEDULED)
        assert states(q, "t") == [(b"x", MessageState.SCHEDULED)]
        assert states(q, "t/subscriptions/s") == []

    def test_scheduled_ones_take_part_in_duplicate_detection(self, broker: Broker) -> None:
        create(broker, requires_duplicate_detection=True)
        send(broker, b"now")
        at = peek_one(broker).enqueued_time + timedelta(seconds=30)
        sender = broker.sender("q")
        first = sender.schedule(Message(b"x", message_id="m"), at)
        assert sender.send(Message(b"y", message_id="m")) == first
        assert broker.queue("q").counts.total == 2

    def test_an_unknown_number_cannot_be_cancelled(self, q: Broker) -> None:
        with pytest.raises(MessageNotFound):
            q.sender("q").cancel(7)

    def test_deferred_ones_are_received_all_or_none(self, q: Broker) -> None:
        send(q, b"1", b"2")
        receiver = q.receiver("q")
        receiver.defer(receiver.receive(2))
        with pytest.raises(MessageNotFound):
            receiver.receive_deferred([1, 2, 3])
        assert len(receiver.receive_deferred([1, 2])) == 2

    def test_peek_shows_every_state_in_order_from_a_number_on(self, q: Broker) -> None:
        send(q, b"deferred", b"locked", b"active")
        receiver = q.receiver("q")
        receiver.defer(receiver.receive())
        receiver.receive()
        assert [m.state.value for m in q.peek("q", 10)] == ["deferred", "locked", "active"]
        assert numbers(q.peek("q", 10, 2)) == [2, 3]

    def test_a_duplicate_is_accepted_and_dropped_even_when_the_first_is_completed(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        create(broker, requires_duplicate_detection=True, duplicate_detection_window=20)
        for _ in range(2):
            assert send(broker, b"x", message_id="m") == 1
        take(broker, mode="receive_and_delete")
        send(broker, b"x", message_id="m")
        assert broker.queue("q").counts.total == 0
        clock.advance(20)
        assert send(broker, b"x", message_id="m") == 2

    def test_unlike_there_a_dead_letter_sent_back_is_no_duplicate(self, broker: Broker) -> None:
        create(broker, requires_duplicate_detection=True)
        send(broker, b"x", message_id="m")
        receiver = broker.receiver("q")
        receiver.dead_letter(receiver.receive())
        broker.resubmit("q", 1)
        assert take(broker).message_id == "m"


class TestSessions:
    """Sessions."""

    def test_whether_they_are_required_is_fixed(self, q: Broker) -> None:
        with pytest.raises(InvalidOption):
            q.update_queue("q", requires_session=True)  # type: ignore[call-arg]

    def test_a_send_without_one_is_refused(self, sessions: Broker) -> None:
        with pytest.raises(InvalidMessage):
            send(sessions, b"x")

    def test_an_id_has_at_most_128_characters(self, sessions: Broker) -> None:
        send(sessions, b"x", session_id="s" * 128)
        with pytest.raises(InvalidMessage):
            send(sessions, b"x", session_id="s" * 129)

    def test_nobody_else_gets_a_locked_one(self, sessions: Broker) -> None:
        sessions.receiver("q", session="s")
        with pytest.raises(SessionCannotBeLocked):
            sessions.receiver("q", session="s")

    def test_a_named_one_without_messages_is_accepted_at_once(self, sessions: Broker) -> None:
        assert sessions.receiver("q", session="nobody's").session_id == "nobody's"

    def test_the_next_one_waits_and_then_there_is_none(self, sessions: Broker) -> None:
        assert sessions.receiver("q", session=NEXT_SESSION).receive(max_wait=0.01) == []

    def test_an_abandoned_message_is_the_next_one_again(self, sessions: Broker) -> None:
        send(sessions, b"1", b"2", session_id="s")
        receiver = sessions.receiver("q", session="s")
        receiver.abandon(receiver.receive())
        assert bodies(receiver.receive(2)) == [b"1", b"2"]

    def test_state_is_none_until_set_and_outlives_messages(self, sessions: Broker) -> None:
        send(sessions, b"1", session_id="s")
        with sessions.receiver("q", session="s") as receiver:
            assert receiver.get_session_state() is None
            receiver.set_session_state(b"here")
            receiver.complete(receiver.receive())
        with sessions.receiver("q", session="s") as receiver:
            assert receiver.get_session_state() == b"here"
            receiver.set_session_state(None)
            assert receiver.get_session_state() is None

    def test_state_makes_a_session_listed(self, sessions: Broker) -> None:
        with sessions.receiver("q", session="s") as receiver:
            receiver.set_session_state(b"here")
        assert sessions.sessions("q") == ["s"]

    def test_only_the_sessions_lock_is_renewed(self, sessions: Broker, clock: ManualClock) -> None:
        send(sessions, b"x", session_id="s")
        receiver = sessions.receiver("q", session="s")
        (message,) = receiver.receive()
        with pytest.raises(NotAllowed):
            receiver.renew_lock(message)
        clock.advance(50)
        receiver.renew_session_lock()
        clock.advance(50)
        receiver.complete(message)
