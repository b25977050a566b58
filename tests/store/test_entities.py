"""Queues: created, listed, shown with exact counts, changed, deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lazaretto import (
    Broker,
    EntityExists,
    EntityNotFound,
    InvalidOption,
    ManualClock,
    Message,
    MessageCounts,
    MessageLockLost,
    MessageState,
    NotAllowed,
    PoisonPolicy,
    QueueOptions,
    QueueStatus,
)
from lazaretto.model.policy import Backoff, Growth

from .actions import bodies, create, fail, kinds, peek_one, send, set_aside, take
from .conftest import Connect


def change(broker: Broker, name: str, value: object) -> None:
    """Change the option of that name."""
    changes: dict[str, Any] = {name: value}
    broker.update_queue("q", **changes)


def test_created_as_described(broker: Broker, clock: ManualClock) -> None:
    options = QueueOptions(lock_duration=30, policy=PoisonPolicy.wcf())
    found = broker.create_queue("Shop/Orders", options)
    assert found == broker.queue("shop/orders")
    assert (found.path, found.options, found.status) == ("Shop/Orders", options, QueueStatus.ACTIVE)
    assert (found.counts, found.expired, found.dropped) == (MessageCounts(), 0, 0)
    assert found.created == found.updated == datetime.fromtimestamp(clock.now() / 1e6, UTC)


def test_all_options_survive_a_restart(connect: Connect) -> None:
    options = QueueOptions(
        lock_duration=1.5,
        default_time_to_live=3600,
        dead_letter_on_expiration=True,
        requires_session=True,
        requires_duplicate_detection=True,
        duplicate_detection_window=20,
        max_message_size=2048,
        policy=PoisonPolicy(
            receive_retry_count=1,
            max_retry_cycles=2,
            retry_cycle_delay=Backoff(initial=3, growth=Growth.LINEAR, maximum=9, jitter=0.5),
            on_poison="reject",
            on_invalid="drop",
            max_worker_deaths=4,
            disable_after_rollbacks=5,
        ),
        dead_letter_policy=PoisonPolicy(on_poison="fault", on_invalid="drop"),
    )
    first = connect()
    first.create_queue("q", options)
    first.close()
    assert connect().queue("q").options == options


def test_a_path_is_taken_once_whatever_its_case(broker: Broker) -> None:
    broker.create_queue("Orders")
    with pytest.raises(EntityExists, match="a queue already exists at 'ORDERS'"):
        broker.create_queue("ORDERS")


def test_a_path_is_echoed_as_created(broker: Broker) -> None:
    create(broker, "Orders")
    send(broker, b"x", path="ORDERS")
    assert bodies(broker.peek("oRDERS")) == [b"x"]
    assert broker.queue("orders").path == "Orders"


def test_queues_are_listed_by_path(broker: Broker) -> None:
    for path in ("b", "C", "a/b"):
        broker.create_queue(path)
    assert [queue.path for queue in broker.queues()] == ["$system/deadletter", "a/b", "b", "C"]


@pytest.mark.parametrize(
    "path", ["q;poison", "q/$deadletterqueue", "q;retry", "q/$Transfer/$deadletterqueue"]
)
def test_subqueues_cannot_be_created_changed_deleted_or_sent_to(broker: Broker, path: str) -> None:
    with pytest.raises(NotAllowed, match="cannot be created"):
        broker.create_queue(path)
    broker.create_queue("q")
    with pytest.raises(NotAllowed, match="cannot be changed"):
        broker.update_queue(path, lock_duration=5)
    with pytest.raises(NotAllowed, match="cannot be deleted"):
        broker.delete_queue(path)
    with pytest.raises(NotAllowed, match="send to 'q'"):
        broker.sender(path)


def test_a_queue_owns_its_subqueues_from_the_start(broker: Broker) -> None:
    create(broker)
    for path in ("q;poison", "q;retry", "q/$Transfer/$deadletterqueue"):
        assert broker.peek(path) == []
    for path in ("q;poison", "q/$Transfer/$deadletterqueue"):
        assert broker.receiver(path).receive() == []


def test_an_unknown_queue_is_named_with_the_one_that_was_meant(broker: Broker) -> None:
    create(broker, "orders")
    with pytest.raises(EntityNotFound, match=r"no queue exists at 'ordres'; did you mean 'orders'\?"):
        broker.queue("ordres")


@pytest.mark.parametrize(
    "verb", ["queue", "delete_queue", "resume_queue", "peek", "sessions", "dead_letter_groups"]
)
def test_every_verb_says_that_there_is_no_queue(broker: Broker, verb: str) -> None:
    with pytest.raises(EntityNotFound):
        getattr(broker, verb)("nowhere")


def test_exact_counts_by_state(broker: Broker, clock: ManualClock) -> None:
    create(broker)
    receiver = broker.receiver("q")
    set_aside(broker, b"dead", b"dead too")
    send(broker, *[b"%d" % n for n in range(7)])
    receiver.defer(receiver.receive(1))
    receiver.abandon(receiver.receive(2), delay=60)
    assert len(receiver.receive(3)) == 3
    with broker.sender("q") as sender:
        later = datetime.fromtimestamp(clock.now() / 1e6 + 60, UTC)
        sender.schedule([Message(b"later") for _ in range(4)], later)
    counts = broker.queue("q").counts
    assert counts == MessageCounts(active=1, locked=3, deferred=1, scheduled=4, delayed=2, dead_letter=2)
    assert counts.total == 13


class TestUpdate:
    """Options changed while a queue is in use."""

    def test_only_what_is_named_changes(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=5, max_message_size=4096)
        clock.advance(10)
        found = broker.update_queue("q", lock_duration=7)
        assert found.options == QueueOptions(lock_duration=7, max_message_size=4096)
        assert found.updated - found.created == timedelta(seconds=10)

    def test_it_holds_for_the_next_receive(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=5)
        send(broker, b"x")
        broker.update_queue("q", lock_duration=50)
        message = take(broker)
        assert message.locked_until == datetime.fromtimestamp(clock.now() / 1e6 + 50, UTC)

    def test_another_broker_sees_it(self, connect: Connect, clock: ManualClock) -> None:
        one, other = connect(), connect()
        create(one)
        send(other, b"x")
        one.update_queue("q", lock_duration=3)
        take(other)
        clock.advance(4)
        assert take(one).body == b"x"

    def test_an_unknown_option_gets_a_suggestion(self, broker: Broker) -> None:
        create(broker)
        with pytest.raises(InvalidOption, match=r"'lock_time' of queue 'q'; did you mean 'lock_duration'"):
            broker.update_queue("q", lock_time=5)  # type: ignore[call-arg]

    def test_a_value_is_checked_and_nothing_changes(self, broker: Broker) -> None:
        create(broker)
        with pytest.raises(InvalidOption, match="expected lock_duration to be a duration from 1 to 86400"):
            broker.update_queue("q", max_message_size=2048, lock_duration=-1)
        assert broker.queue("q").options == QueueOptions()

    @pytest.mark.parametrize("name", ["requires_session", "requires_duplicate_detection"])
    def test_some_are_fixed_at_creation(self, broker: Broker, name: str) -> None:
        create(broker)
        with pytest.raises(InvalidOption, match=f"{name} is fixed"):
            change(broker, name, True)
        change(broker, name, False)

    def test_what_changed_is_told(self, broker: Broker) -> None:
        create(broker)
        broker.update_queue("q", lock_duration=60, max_message_size=2048, actor="ann")
        (event,) = broker.events(kind="queue_updated")
        assert event.detail == {"changed": ["max_message_size"]}
        (entry,) = broker.audit(limit=1)
        assert (entry.actor, entry.action, entry.queue) == ("ann", "update", "q")


class TestDelete:
    """A queue that goes takes everything with it."""

    def test_the_path_is_free_again_and_empty(self, broker: Broker) -> None:
        create(broker)
        set_aside(broker, b"dead")
        send(broker, b"x", b"y")
        broker.delete_queue("q")
        with pytest.raises(EntityNotFound):
            broker.queue("q")
        create(broker)
        assert broker.queue("q").counts == MessageCounts()
        assert list(broker.dead_letters("q")) == []
        assert broker.receiver("q").receive() == []

    def test_senders_and_receivers_are_told(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        sender, receiver = broker.sender("q"), broker.receiver("q")
        (message,) = receiver.receive()
        broker.delete_queue("q")
        for call in (
            lambda: sender.send(Message(b"y")),
            receiver.receive,
            lambda: receiver.complete(message),
        ):
            with pytest.raises(EntityNotFound):
                call()

    def test_a_lock_on_the_former_queue_is_nothing_to_its_successor(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"old")
        receiver = broker.receiver("q")
        (message,) = receiver.receive()
        broker.delete_queue("q")
        create(broker)
        send(broker, b"new")
        for settle in (receiver.complete, receiver.abandon, receiver.dead_letter, receiver.renew_lock):
            with pytest.raises(MessageLockLost):
                settle(message)
        assert peek_one(broker).body == b"new"
        assert broker.queue("q").counts.total == 1

    def test_it_is_told_and_audited(self, broker: Broker) -> None:
        create(broker)
        broker.delete_queue("q", actor="ann")
        assert kinds(broker.events()) == ["queue_created", "queue_deleted"]
        assert [(entry.actor, entry.action) for entry in broker.audit(limit=1)] == [("ann", "delete")]

    def test_messages_that_wait_for_a_timer_do_no_harm(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, lock_duration=5)
        send(broker, b"x", b"y", time_to_live=5)
        fail(broker, delay=1)
        take(broker)
        broker.delete_queue("q")
        clock.advance(100)
        create(broker, "other")
        send(broker, b"z", path="other")
        assert take(broker, "other").body == b"z"


class TestSystemQueue:
    """`$system/deadletter` is always there."""

    def test_it_exists_and_cannot_be_deleted(self, broker: Broker) -> None:
        assert broker.queue("$System/DeadLetter").path == "$system/deadletter"
        with pytest.raises(NotAllowed, match="cannot be deleted"):
            broker.delete_queue("$system/deadletter")

    def test_nothing_can_be_sent_to_it(self, broker: Broker) -> None:
        with pytest.raises(NotAllowed, match="nothing can be sent to it"):
            send(broker, b"x", path="$system/deadletter")

    def test_its_options_can_be_changed(self, broker: Broker) -> None:
        assert broker.update_queue("$system/deadletter", lock_duration=5).options.lock_duration == 5


def test_peek_shows_each_state(broker: Broker) -> None:
    create(broker)
    send(broker, b"x")
    assert peek_one(broker).state is MessageState.ACTIVE
    take(broker)
    assert peek_one(broker).state is MessageState.LOCKED


class TestPeekAtASession:
    """Messages of one session, whatever else there is."""

    def test_in_every_state_from_a_number_on(self, broker: Broker) -> None:
        policy = PoisonPolicy(receive_retry_count=0, max_retry_cycles=1)
        broker.create_queue("s", QueueOptions(requires_session=True, policy=policy))
        broker.sender("s").send([Message(b"%d" % n, session_id="abc"[n % 3]) for n in range(30)])
        later = datetime.now(UTC) + timedelta(hours=1)
        broker.sender("s").send(Message(b"later", session_id="a", scheduled_enqueue_time=later))
        with broker.receiver("s", session="a") as receiver:
            first, second = receiver.receive(2)
            receiver.defer(first)
            receiver.dead_letter(second)
            (third,) = receiver.receive()
            found = broker.peek("s", 100, session_id="a")
            assert [m.sequence_number for m in found] == [1, 7, 10, 13, 16, 19, 22, 25, 28, 31]
            assert {m.session_id for m in found} == {"a"}
            states = ["deferred", "locked", *["active"] * 7, "scheduled"]
            assert [m.state.value for m in found] == states
            receiver.abandon(third, error="no")
        assert [m.sequence_number for m in broker.peek("s", 3, 8, session_id="a")] == [10, 13, 16]
        (delayed,) = broker.peek("s", 9, subqueue="retry", session_id="a")
        assert (delayed.body, delayed.error) == (b"6", "Error: no")
        assert broker.peek("s", session_id="nobody") == []

    def test_what_is_refused(self, broker: Broker) -> None:
        create(broker)
        broker.create_queue("s", QueueOptions(requires_session=True))
        for session in ("x" * 129, 5):
            with pytest.raises(InvalidOption):
                broker.peek("s", session_id=session)  # type: ignore[arg-type]
        for path, subqueue in (("q", None), ("s", "dead_letter")):
            with pytest.raises(NotAllowed, match="has no sessions"):
                broker.peek(path, subqueue=subqueue, session_id="a")
