"""The facts about Azure Service Bus that hold in Python hold through Azure's own client, over the wire.

Each test has the name of its fact in tests/store/test_service_bus_facts.py. ELSEWHERE tells which facts have
none here, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from azure.servicebus.management import QueueProperties
from store import test_service_bus_facts as in_python

from door.wire import DEAD, DELETES, Wire, none, serving, some, texts
from lazaretto import Rule, SqlFilter

DEFERRED, SCHEDULED = ServiceBusMessageState.DEFERRED, ServiceBusMessageState.SCHEDULED
SECONDS = timedelta(seconds=1)

#: Why the wire has no test of a fact.
ELSEWHERE = {
    "TestDeliveryCount.test_release_changes_nothing": "the client has no such verb; test_door has it by hand",
    "TestLocks.test_a_lock_belongs_to_the_entity_and_not_to_the_receiver": (
        "the client settles where it received; test_doors settles through another door"
    ),
    "TestReasons.test_headers_that_grew_too_large": "the client for Python sends no properties to change",
    "TestReasons.test_settling_may_change_properties": "it sends none; that for JavaScript does in its tests",
}


@pytest.fixture(autouse=True)
def sockets_of_clients() -> None:
    """Close none: the door's are in this process, too."""


@pytest.fixture(scope="module")
def served_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    with serving(tmp_path_factory.mktemp("facts")) as wire:
        yield wire


@pytest.fixture
def wire(served_once: Wire) -> Iterator[Wire]:
    yield served_once
    served_once.close()


@pytest.fixture
def q(wire: Wire) -> str:
    return wire.make()


@pytest.fixture
def s(wire: Wire) -> str:
    """A queue of sessions."""
    return wire.make(requires_session=True)


def _facts(module: Any) -> set[str]:
    return {
        f"{kind.__name__}.{name}"
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__name__.startswith("Test")
        for name in vars(kind)
        if name.startswith("test_")
    }


def test_every_fact_is_here_or_elsewhere() -> None:
    here = {
        f"{kind.__name__}.{name}"
        for kind in globals().values()
        if isinstance(kind, type) and kind.__name__.startswith("Test")
        for name in vars(kind)
        if name.startswith("test_")
    }
    assert here | ELSEWHERE.keys() == _facts(in_python)
    assert not here & ELSEWHERE.keys()


class TestDeliveryCount:
    def test_the_first_delivery_shows_0(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x")
        assert wire.take(q).delivery_count == 0

    def test_a_first_delivery_by_receive_and_delete_shows_0(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x")
        assert wire.take(q, receive_mode=DELETES).delivery_count == 0

    def test_abandon_adds_1_and_it_is_available_at_once_in_its_place(self, wire: Wire, q: str) -> None:
        wire.send(q, b"1", b"2")
        wire.fail(q)
        again = wire.take(q)
        assert (again.sequence_number, again.delivery_count) == (1, 1)

    def test_a_lock_that_expires_adds_1(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x")
        wire.take(q)
        wire.clock.advance(60)
        assert wire.take(q).delivery_count == 1

    def test_a_session_lock_that_expires_adds_1(self, wire: Wire, s: str) -> None:
        wire.send(s, b"x", session_id="s")
        wire.take(s, session_id="s")
        wire.clock.advance(60)
        assert wire.take(s, session_id="s").delivery_count == 1

    def test_a_session_that_is_closed_changes_nothing_and_gives_back_at_once(
        self, wire: Wire, s: str
    ) -> None:
        wire.send(s, b"x", session_id="s")
        receiver = wire.receiver(s, session_id="s")
        some(receiver)
        receiver.close()
        assert wire.take(s, session_id="s").delivery_count == 0

    def test_a_receiver_that_is_closed_leaves_the_lock_running(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x")
        receiver = wire.receiver(q)
        some(receiver)
        receiver.close()
        assert wire.count(q) == 0
        assert none(wire.receiver(q))
        wire.clock.advance(60)
        assert wire.take(q).delivery_count == 1

    def _deferred(self, wire: Wire, q: str) -> tuple[Any, Any]:
        """Defer a message, and receive it again."""
        wire.send(q, b"x")
        receiver = wire.receiver(q)
        receiver.defer_message(some(receiver)[0])
        return receiver, receiver.receive_deferred_messages(1)[0]

    def test_defer_adds_1(self, wire: Wire, q: str) -> None:
        _, deferred = self._deferred(wire, q)
        assert deferred.delivery_count == 1

    def test_a_deferred_one_abandoned_adds_1_and_stays_deferred(self, wire: Wire, q: str) -> None:
        receiver, deferred = self._deferred(wire, q)
        receiver.abandon_message(deferred)
        (found,) = wire.peek(q)
        assert (found.state, found.delivery_count) == (DEFERRED, 2)

    def test_a_deferred_one_deferred_again_adds_1(self, wire: Wire, q: str) -> None:
        receiver, deferred = self._deferred(wire, q)
        receiver.defer_message(deferred)
        assert wire.count(q) == 2

    def test_dead_lettering_changes_nothing(self, wire: Wire, q: str) -> None:
        wire.set_aside(q, b"x")
        assert wire.count(q, sub_queue=DEAD) == 0

    def test_deferred_once_and_dead_lettered_it_shows_1(self, wire: Wire, q: str) -> None:
        receiver, deferred = self._deferred(wire, q)
        receiver.dead_letter_message(deferred)
        assert wire.count(q, sub_queue=DEAD) == 1

    def test_abandon_among_the_dead_letters_changes_nothing(self, wire: Wire, q: str) -> None:
        wire.set_aside(q, b"x")
        receiver = wire.receiver(q, sub_queue=DEAD)
        for _ in range(12):
            receiver.abandon_message(some(receiver)[0])
        assert some(receiver)[0].delivery_count == 0

    def test_a_lock_that_expires_among_the_dead_letters_changes_nothing(self, wire: Wire, q: str) -> None:
        wire.set_aside(q, b"x")
        wire.take(q, sub_queue=DEAD)
        wire.clock.advance(60)
        assert wire.take(q, sub_queue=DEAD).delivery_count == 0

    def test_peek_changes_nothing(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x")
        for _ in range(3):
            wire.peek(q)
        assert wire.take(q).delivery_count == 0

    def test_a_maximum_of_10_means_10_deliveries_that_show_0_to_9(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x")
        receiver, seen = wire.receiver(q), []
        for _ in range(10):
            (message,) = some(receiver)
            seen.append(message.delivery_count)
            receiver.abandon_message(message)
        assert seen == list(range(10))
        assert wire.peek(q) == []
        assert len(wire.peek(q, sub_queue=DEAD)) == 1

    def test_expired_locks_reach_the_maximum_too(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x")
        for _ in range(10):
            wire.take(q)
            wire.clock.advance(60)
        assert none(wire.receiver(q))
        assert len(wire.peek(q, sub_queue=DEAD)) == 1

    def test_the_maximum_is_at_least_1_and_may_be_without_end(self, wire: Wire) -> None:
        for most in (1, 2_147_483_647):
            made = wire.administration.create_queue(wire.name(), max_delivery_count=most)
            assert made.max_delivery_count == most
        with pytest.raises(HttpResponseError):
            wire.administration.create_queue(wire.name(), max_delivery_count=0)


class TestLocks:
    def test_a_lock_lasts_a_minute_by_default(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x")
        message = wire.take(q)
        assert message.locked_until_utc is not None
        assert message.enqueued_time_utc is not None
        assert abs(message.locked_until_utc - message.enqueued_time_utc - 60 * SECONDS) < SECONDS / 100

    @pytest.mark.parametrize("verb", ["complete", "abandon", "defer", "dead_letter"])
    def test_settling_after_the_lock_expired_is_refused(self, wire: Wire, q: str, verb: str) -> None:
        wire.send(q, b"x")
        receiver = wire.receiver(q)
        (message,) = some(receiver)
        wire.clock.advance(60)
        with pytest.raises(MessageLockLostError):
            getattr(receiver, f"{verb}_message")(message)

    def test_settling_after_the_session_lock_expired_is_refused(self, wire: Wire, s: str) -> None:
        wire.send(s, b"x", session_id="s")
        receiver = wire.receiver(s, session_id="s")
        (message,) = some(receiver)
        wire.clock.advance(60)
        with pytest.raises(SessionLockLostError):
            receiver.complete_message(message)

    def test_renewed_it_lasts_from_now_on(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x")
        receiver = wire.receiver(q)
        (message,) = some(receiver)
        before = message.locked_until_utc
        wire.clock.advance(50)
        renewed = receiver.renew_message_lock(message)
        assert before is not None
        assert abs(renewed - before - 50 * SECONDS) < SECONDS / 100

    def test_received_and_deleted_it_is_gone(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x")
        receiver = wire.receiver(q, receive_mode=DELETES)
        (message,) = some(receiver)
        assert wire.peek(q) == []
        with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
            receiver.complete_message(message)

    def test_fetched_and_not_worked_on_they_count_up_to_the_dead_letters(self, wire: Wire) -> None:
        q = wire.make(deliveries=2)
        wire.send(q, b"1", b"2", b"3")
        for _ in range(2):
            some(wire.receiver(q), 3)
            wire.clock.advance(60)
        assert none(wire.receiver(q))
        assert len(wire.peek(q, sub_queue=DEAD)) == 3


class TestDeadLetterQueue:
    @pytest.mark.parametrize("subqueue", ["$deadletterqueue", "$DeadLetterQueue", "$DEADLETTERQUEUE"])
    def test_its_address_compares_without_case(self, wire: Wire, q: str, subqueue: str) -> None:
        wire.set_aside(q, b"x")
        assert str(wire.take(f"{q.upper()}/{subqueue}")) == "x"

    def test_it_is_not_made_or_deleted_by_itself(self, wire: Wire, q: str) -> None:
        for call in (wire.administration.create_queue, wire.administration.delete_queue):
            with pytest.raises(HttpResponseError):
                call(f"{q}/$deadletterqueue")

    def test_nothing_is_sent_to_it(self, wire: Wire, q: str) -> None:
        with pytest.raises(ServiceBusError):
            wire.send(f"{q}/$deadletterqueue", b"x")

    def test_topics_have_none(self, wire: Wire) -> None:
        with pytest.raises(ServiceBusError):
            wire.take(wire.topic(), sub_queue=DEAD)

    def test_nothing_expires_there(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x", time_to_live=5 * SECONDS)
        receiver = wire.receiver(q)
        receiver.dead_letter_message(some(receiver)[0])
        wire.clock.advance(100_000)
        assert str(wire.take(q, sub_queue=DEAD)) == "x"

    def test_dead_lettering_there_fails_and_the_message_stays(self, wire: Wire, q: str) -> None:
        wire.set_aside(q, b"x")
        receiver = wire.receiver(q, sub_queue=DEAD)
        (message,) = some(receiver)
        with pytest.raises(ServiceBusError):
            receiver.dead_letter_message(message)
        assert wire.count(q, sub_queue=DEAD) == 0

    def test_deferring_there_works(self, wire: Wire, q: str) -> None:
        wire.set_aside(q, b"x")
        receiver = wire.receiver(q, sub_queue=DEAD)
        receiver.defer_message(some(receiver)[0])
        assert none(receiver)
        assert texts(receiver.receive_deferred_messages(1)) == ["x"]

    def test_everything_else_works_there(self, wire: Wire, q: str) -> None:
        wire.set_aside(q, b"1", b"2")
        assert texts(wire.peek(q, sub_queue=DEAD)) == ["1", "2"]
        receiver = wire.receiver(q, sub_queue=DEAD)
        (message,) = some(receiver)
        receiver.renew_message_lock(message)
        receiver.complete_message(message)
        assert str(wire.take(q, sub_queue=DEAD, receive_mode=DELETES)) == "2"
        assert wire.peek(q, sub_queue=DEAD) == []

    def test_that_of_a_session_queue_is_read_without_sessions(self, wire: Wire, s: str) -> None:
        wire.send(s, b"x", session_id="s")
        receiver = wire.receiver(s, session_id="s")
        receiver.dead_letter_message(some(receiver)[0])
        with pytest.raises(ServiceBusError):
            wire.receiver(f"{s}/$deadletterqueue", session_id="s")
        assert wire.take(s, sub_queue=DEAD).session_id == "s"

    def test_full_of_dead_letters_nothing_more_is_taken(self, wire: Wire) -> None:
        q = wire.make(max_size=1024)
        wire.set_aside(q, b"x" * 1024)
        with pytest.raises(ServiceBusQuotaExceededError):
            wire.send(q, b"y")

    def test_a_dead_letter_keeps_all_it_had(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x", message_id="m", correlation_id="c", application_properties={"n": 1})
        receiver = wire.receiver(q)
        (before,) = some(receiver)
        receiver.dead_letter_message(before)
        after = wire.take(q, sub_queue=DEAD)
        assert str(after) == str(before)
        names = ("message_id", "correlation_id", "application_properties", "sequence_number")
        for name in (*names, "enqueued_time_utc"):
            assert getattr(after, name) == getattr(before, name), name

    def test_a_session_goes_on_behind_a_dead_letter(self, wire: Wire, s: str) -> None:
        wire.send(s, b"1", b"2", b"3", session_id="s")
        receiver = wire.receiver(s, session_id="s")
        receiver.dead_letter_message(some(receiver)[0])
        assert texts(some(receiver, 2)) == ["2", "3"]


class TestReasons:
    def why(self, wire: Wire, path: str) -> tuple[str | None, str | None]:
        (letter,) = wire.peek(path, sub_queue=DEAD)
        return letter.dead_letter_reason, letter.dead_letter_error_description

    def test_too_many_deliveries(self, wire: Wire) -> None:
        q = wire.make(deliveries=2)
        wire.send(q, b"x")
        for _ in range(2):
            wire.fail(q)
        text = "Message could not be consumed after 2 delivery attempts."
        assert self.why(wire, q) == ("MaxDeliveryCountExceeded", text)

    def test_expired(self, wire: Wire) -> None:
        q = wire.make(dead_letter_on_expiration=True)
        wire.send(q, b"x", time_to_live=15 * SECONDS)
        wire.clock.advance(15)
        assert none(wire.receiver(q))
        assert self.why(wire, q) == ("TTLExpiredException", "The message expired and was dead lettered.")

    def test_no_session_id_where_one_is_needed(self, wire: Wire, s: str) -> None:
        wire.send(wire.make(forward_to=s), b"x")
        text = "Session enabled entity doesn't allow a message whose session identifier is null."
        assert self.why(wire, s) == ("Session ID is null.", text)

    def test_a_filter_that_fails(self, wire: Wire) -> None:
        topic = wire.topic()
        wire.broker.create_subscription(topic, "s", rules=[Rule("r", SqlFilter("n > 'x'"))])
        wire.send(topic, b"x", application_properties={"n": 1})
        assert self.why(wire, f"{topic}/subscriptions/s")[0] == "FilterException"

    def test_without_a_reason_there_is_none(self, wire: Wire, q: str) -> None:
        wire.set_aside(q, b"x")
        assert self.why(wire, q) == (None, None)

    def test_each_has_at_most_4096_characters(self, wire: Wire, q: str) -> None:
        wire.set_aside(q, b"x", reason="r" * 9_000, error_description="d" * 9_000)
        assert [len(text or "") for text in self.why(wire, q)] == [4096, 4096]

    def test_the_source_is_told_only_of_forwarded_ones(self, wire: Wire, q: str) -> None:
        graves = wire.make()
        wire.set_aside(q, b"x")
        assert wire.take(q, sub_queue=DEAD).dead_letter_source is None
        wire.broker.update_queue(q, forward_dead_lettered_messages_to=graves)
        wire.set_aside(q, b"y", reason="bad")
        message = wire.take(graves)
        assert (message.dead_letter_source, message.dead_letter_reason) == (q, "bad")
        assert message.application_properties == {b"DeadLetterReason": b"bad"}


class TestForwarding:
    @pytest.mark.parametrize("name", ["forward_to", "forward_dead_lettered_messages_to"])
    def test_the_target_must_exist(self, wire: Wire, name: str) -> None:
        with pytest.raises(HttpResponseError):
            wire.administration.create_queue(wire.name(), **{name: "nowhere"})  # type: ignore[arg-type]

    def test_combinations_that_are_taken(self, wire: Wire, q: str) -> None:
        name = wire.name()
        admin = wire.administration
        made = admin.create_queue(name, requires_session=True, forward_to=q, auto_delete_on_idle="PT10M")
        made.forward_dead_lettered_messages_to = name
        admin.update_queue(made)
        admin.create_topic(topic := wire.name())
        admin.create_subscription(topic, "s", forward_to=topic, forward_dead_lettered_messages_to=topic)

    def test_what_forwards_is_not_received_from(self, wire: Wire, q: str) -> None:
        forwards = wire.make(forward_to=q, forward_dead_lettered_messages_to=q)
        for path in (forwards, f"{forwards}/$deadletterqueue"):
            with pytest.raises(ServiceBusError):
                wire.take(path)

    def test_the_fifth_hop_ends_in_the_dead_letters_where_it_stopped(self, wire: Wire) -> None:
        paths = [wire.make()]
        for _ in range(5):
            paths.append(wire.make(forward_to=paths[-1]))
        wire.send(paths[5], b"x")
        (letter,) = wire.broker.dead_letters(paths[1])
        assert letter.reason == "MaxTransferHopCountExceeded"
        assert wire.administration.get_queue_runtime_properties(paths[1]).dead_letter_message_count == 1

    def test_the_transfer_queue_can_be_opened_when_it_is_empty(self, wire: Wire, q: str) -> None:
        assert none(wire.receiver(q, sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER))

    def test_a_forwarded_message_keeps_its_first_number(self, wire: Wire, q: str) -> None:
        forwards = wire.make(forward_to=q)
        wire.send(q, b"own")
        wire.send(forwards, b"x")
        found = wire.peek(q)[1]
        assert (found.sequence_number, found.enqueued_sequence_number) == (2, 1)

    def test_what_forwards_is_never_idle(self, wire: Wire, q: str) -> None:
        idle: dict[str, Any] = {"auto_delete_on_idle": timedelta(minutes=5)}
        made = wire.administration.create_queue(wire.name(), forward_to=q, **idle)
        assert made.auto_delete_on_idle == timedelta(minutes=5)
        topic = wire.topic()
        subscription = wire.administration.create_subscription(topic, "s", forward_to=q, **idle)
        # Longer than any: what Service Bus reads it back as.
        longest: Any = subscription.auto_delete_on_idle
        assert longest.days == 10_675_199
        wire.clock.advance(10_000)
        assert wire.administration.get_queue(made.name).forward_to == made.forward_to


class TestTimeToLive:
    def test_the_shortest_of_message_topic_and_subscription_counts(self, wire: Wire) -> None:
        topic = wire.topic("s", default_time_to_live=40)
        wire.broker.update_topic(topic, default_time_to_live=50)
        for own, left in ((60, 40), (30, 30), (None, 40)):
            wire.send(topic, b"x", **({} if own is None else {"time_to_live": own * SECONDS}))
            receiver = wire.receiver(f"{topic}/subscriptions/s", receive_mode=DELETES)
            (message,) = some(receiver)
            receiver.close()
            # The client is not told of what it did not ask for.
            assert message.time_to_live == (None if own is None else left * SECONDS)

    def test_expired_it_is_dropped_by_default(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x", time_to_live=15 * SECONDS)
        wire.clock.advance(15)
        assert none(wire.receiver(q))
        assert wire.peek(q) == wire.peek(q, sub_queue=DEAD) == []

    def test_while_it_is_locked_it_does_not_expire(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x", time_to_live=15 * SECONDS)
        receiver = wire.receiver(q)
        (message,) = some(receiver)
        wire.clock.advance(30)
        receiver.complete_message(message)
        assert wire.broker.queue(q).expired == 0

    def test_abandoned_too_late_it_expires_at_once(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x", time_to_live=15 * SECONDS)
        receiver = wire.receiver(q)
        (message,) = some(receiver)
        wire.clock.advance(30)
        receiver.abandon_message(message)
        assert none(receiver)
        assert wire.broker.queue(q).expired == 1

    def test_deferred_it_does_not_expire(self, wire: Wire, q: str) -> None:
        wire.send(q, b"x", time_to_live=15 * SECONDS)
        receiver = wire.receiver(q)
        receiver.defer_message(some(receiver)[0])
        wire.clock.advance(10_000)
        assert texts(receiver.receive_deferred_messages(1)) == ["x"]


class TestNumbersAndTime:
    def test_numbers_start_at_1_without_gaps(self, wire: Wire, q: str) -> None:
        wire.send(q, b"1", b"2", b"3")
        assert [one.sequence_number for one in wire.peek(q)] == [1, 2, 3]

    def _schedule(self, wire: Wire, path: str, *, beside: str, **fields: Any) -> tuple[int, Any]:
        """Schedule a message for half a minute after the last one of a queue was sent."""
        sent = wire.peek(beside)[-1].enqueued_time_utc
        assert sent is not None
        at = sent + 30 * SECONDS
        with wire.client.get_queue_sender(path) as sender:
            (number,) = sender.schedule_messages(ServiceBusMessage(b"x", **fields), at)
        return number, at

    def test_a_scheduled_one_is_given_a_new_number_when_it_becomes_active(self, wire: Wire, q: str) -> None:
        wire.send(q, b"first")
        number, at = self._schedule(wire, q, beside=q)
        wire.send(q, b"between")
        wire.clock.advance(30)
        late = some(wire.receiver(q), 3)[-1]
        assert (number, late.sequence_number, late.enqueued_sequence_number) == (2, 4, 2)
        assert late.enqueued_time_utc is not None
        assert late.enqueued_time_utc >= at == late.scheduled_enqueue_time_utc

    def test_it_is_seen_by_peeking_at_a_queue_or_a_topic_not_at_a_subscription(
        self, wire: Wire, q: str
    ) -> None:
        topic = wire.topic("s")
        wire.send(q, b"now")
        for path in (q, topic):
            self._schedule(wire, path, beside=q)
        assert wire.peek(q)[-1].state == SCHEDULED
        assert wire.peek(f"{topic}/subscriptions/s") == []
        # The client opens a receiver to peek, and topics have none.
        assert [one.state.value for one in wire.broker.peek(topic)] == ["scheduled"]

    def test_scheduled_ones_take_part_in_duplicate_detection(self, wire: Wire) -> None:
        q = wire.make(requires_duplicate_detection=True)
        wire.send(q, b"now")
        first, _ = self._schedule(wire, q, beside=q, message_id="m")
        wire.send(q, b"y", message_id="m")
        assert [one.sequence_number for one in wire.peek(q)] == [1, first]

    def test_an_unknown_number_cannot_be_cancelled(self, wire: Wire, q: str) -> None:
        with wire.client.get_queue_sender(q) as sender, pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(7)

    def test_deferred_ones_are_received_all_or_none(self, wire: Wire, q: str) -> None:
        wire.send(q, b"1", b"2")
        receiver = wire.receiver(q)
        for message in some(receiver, 2):
            receiver.defer_message(message)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages([1, 2, 3])
        assert len(receiver.receive_deferred_messages([1, 2])) == 2

    def test_peek_shows_every_state_in_order_from_a_number_on(self, wire: Wire, q: str) -> None:
        wire.send(q, b"deferred", b"locked", b"active")
        receiver = wire.receiver(q)
        receiver.defer_message(some(receiver)[0])
        some(receiver)
        found = wire.peek(q)
        assert texts(found) == ["deferred", "locked", "active"]
        assert found[0].state == DEFERRED
        assert [one.sequence_number for one in receiver.peek_messages(10, sequence_number=2)] == [2, 3]

    def test_a_duplicate_is_accepted_and_dropped_even_when_the_first_is_completed(self, wire: Wire) -> None:
        q = wire.make(requires_duplicate_detection=True, duplicate_detection_window=20)
        for _ in range(2):
            wire.send(q, b"x", message_id="m")
        wire.take(q, receive_mode=DELETES)
        wire.send(q, b"x", message_id="m")
        assert wire.peek(q) == []
        wire.clock.advance(20)
        wire.send(q, b"x", message_id="m")
        assert [one.sequence_number for one in wire.peek(q)] == [2]

    def test_unlike_there_a_dead_letter_sent_back_is_no_duplicate(self, wire: Wire) -> None:
        q = wire.make(requires_duplicate_detection=True)
        wire.send(q, b"x", message_id="m")
        receiver = wire.receiver(q)
        receiver.dead_letter_message(some(receiver)[0])
        wire.broker.resubmit(q, 1)
        assert some(receiver)[0].message_id == "m"


class TestSessions:
    def test_whether_they_are_required_is_fixed(self, wire: Wire, q: str) -> None:
        found: QueueProperties = wire.administration.get_queue(q)
        found.requires_session = True
        with pytest.raises(HttpResponseError):
            wire.administration.update_queue(found)

    def test_a_send_without_one_is_refused(self, wire: Wire, s: str) -> None:
        with pytest.raises(ServiceBusError):
            wire.send(s, b"x")
        assert wire.broker.queue(s).counts.total == 0

    def test_an_id_has_at_most_128_characters(self, wire: Wire, s: str) -> None:
        wire.send(s, b"x", session_id="s" * 128)
        with pytest.raises(ValueError, match="128"):
            wire.send(s, b"x", session_id="s" * 129)

    def test_nobody_else_gets_a_locked_one(self, wire: Wire, s: str) -> None:
        wire.receiver(s, session_id="s")
        with pytest.raises(SessionCannotBeLockedError):
            wire.receiver(s, session_id="s")

    def test_a_named_one_without_messages_is_accepted_at_once(self, wire: Wire, s: str) -> None:
        assert wire.receiver(s, session_id="nobody's").session.session_id == "nobody's"

    def test_the_next_one_waits_and_then_there_is_none(self, wire: Wire, s: str) -> None:
        with pytest.raises(OperationTimeoutError):
            wire.receiver(s, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)

    def test_an_abandoned_message_is_the_next_one_again(self, wire: Wire, s: str) -> None:
        wire.send(s, b"1", b"2", session_id="s")
        receiver = wire.receiver(s, session_id="s")
        receiver.abandon_message(some(receiver)[0])
        assert texts(some(receiver, 2)) == ["1", "2"]

    def test_state_is_none_until_set_and_outlives_messages(self, wire: Wire, s: str) -> None:
        wire.send(s, b"1", session_id="s")
        receiver = wire.receiver(s, session_id="s")
        assert not receiver.session.get_state()
        receiver.session.set_state(b"here")
        receiver.complete_message(some(receiver)[0])
        receiver.close()
        receiver = wire.receiver(s, session_id="s")
        assert receiver.session.get_state() == b"here"
        receiver.session.set_state(None)
        assert not receiver.session.get_state()

    def test_state_makes_a_session_listed(self, wire: Wire, s: str) -> None:
        wire.receiver(s, session_id="s").session.set_state(b"here")
        assert list(wire.client.list_queue_sessions(s)) == ["s"]

    def test_only_the_sessions_lock_is_renewed(self, wire: Wire, s: str) -> None:
        wire.send(s, b"x", session_id="s")
        receiver = wire.receiver(s, session_id="s")
        (message,) = some(receiver)
        with pytest.raises(TypeError):
            receiver.renew_message_lock(message)
        wire.clock.advance(50)
        receiver.session.renew_lock()
        wire.clock.advance(50)
        receiver.complete_message(message)
