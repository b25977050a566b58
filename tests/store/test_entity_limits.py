"""What an operator sets on an entity as a whole: its status, its largest size, its end when unused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lazaretto import (
    Broker,
    DeadLetterFilter,
    EntityError,
    EntityNotFound,
    InvalidOption,
    ManualClock,
    Message,
    NotAllowed,
    PoisonMessageError,
    QueueDisabled,
    QueueOptions,
    QueueStatus,
    QuotaExceeded,
    TopicOptions,
)
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.claims.settle_claims import staged_rows

from .actions import bodies, create, fail, kinds, send, set_aside, stored, take


def refused(*calls: Callable[[], Any]) -> None:
    for call in calls:
        with pytest.raises(QueueDisabled):
            call()


class TestStatus:
    """Active, disabled, disabled for sending, disabled for receiving."""

    @pytest.mark.parametrize(
        ("status", "sends", "receives"),
        [
            ("active", True, True),
            ("disabled", False, False),
            ("send_disabled", False, True),
            ("receive_disabled", True, False),
        ],
    )
    def test_what_each_allows(self, broker: Broker, status: str, sends: bool, receives: bool) -> None:
        create(broker)
        send(broker, b"x")
        assert broker.set_status("q", status).value == status
        assert broker.queue("q").status is QueueStatus(status)
        if sends:
            send(broker, b"y")
        else:
            refused(lambda: send(broker, b"y"), lambda: broker.sender("q").send([Message(b"z")]))
        if receives:
            take(broker)
        else:
            refused(lambda: take(broker), lambda: take(broker, mode="receive_and_delete"))

    def test_what_is_held_can_be_settled(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x")
        receiver = broker.receiver("q")
        (message,) = receiver.receive()
        broker.set_status("q", "disabled")
        receiver.complete(message)
        assert broker.queue("q").counts.total == 0

    def test_dead_letters_can_be_read_and_peeked_at(self, broker: Broker) -> None:
        create(broker)
        set_aside(broker, b"x")
        broker.set_status("q", "disabled")
        assert take(broker, "q;poison").body == b"x"
        assert broker.peek("q") == []

    def test_dead_letters_are_not_sent_back_to_a_queue_that_is_off(self, broker: Broker) -> None:
        create(broker)
        (number,) = set_aside(broker, b"x")
        broker.set_status("q", "send_disabled")
        refused(lambda: broker.resubmit("q", number))

    def test_sessions(self, broker: Broker) -> None:
        create(broker, requires_session=True)
        send(broker, b"x", session_id="s")
        broker.set_status("q", "receive_disabled")
        refused(lambda: take(broker, session="s"))

    def test_waiting_receivers_hear_of_it(self, broker: Broker) -> None:
        import concurrent.futures

        create(broker)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(broker.receiver("q").receive, 1, 30.0)
            broker.set_status("q", "receive_disabled")
            with pytest.raises(QueueDisabled):
                waiting.result(120)

    def test_a_halted_queue_stays_halted(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, on_poison="fault")
        send(broker, b"x")
        fail(broker)
        assert broker.queue("q").status is QueueStatus.HALTED
        assert broker.set_status("q", "send_disabled") is QueueStatus.SEND_DISABLED
        with pytest.raises(PoisonMessageError):
            take(broker)
        assert broker.set_status("q", "active") is QueueStatus.HALTED

    def test_resuming_switches_on(self, broker: Broker) -> None:
        create(broker)
        broker.set_status("q", "receive_disabled")
        assert broker.resume_queue("q").status is QueueStatus.ACTIVE
        with pytest.raises(EntityError, match="neither halted nor disabled"):
            broker.resume_queue("q")

    def test_switching_on_forgets_the_rollbacks(self, broker: Broker) -> None:
        create(broker, disable_after_rollbacks=2)
        send(broker, b"x")
        fail(broker)
        fail(broker)
        assert broker.queue("q").status is QueueStatus.DISABLED
        broker.set_status("q", "active")
        fail(broker)
        assert broker.queue("q").status is QueueStatus.ACTIVE

    def test_topics(self, broker: Broker) -> None:
        broker.create_topic("t")
        broker.create_subscription("t", "s")
        broker.set_status("t", "disabled")
        assert broker.topic("t").status is QueueStatus.DISABLED
        refused(lambda: send(broker, b"x", path="t"))
        with pytest.raises(InvalidOption, match="a topic cannot be received from directly"):
            broker.set_status("t", "receive_disabled")

    def test_subscriptions_go_on_collecting(self, broker: Broker) -> None:
        broker.create_topic("t")
        broker.create_subscription("t", "s")
        path = "t/subscriptions/s"
        broker.set_status(path, "disabled")
        send(broker, b"x", path="t")
        refused(lambda: take(broker, path))
        broker.set_status(path, "active")
        assert take(broker, path).body == b"x"
        with pytest.raises(InvalidOption, match="a subscription cannot be sent to directly"):
            broker.set_status(path, "send_disabled")

    def test_what_has_none(self, broker: Broker) -> None:
        create(broker)
        for path in ("q;poison", "$system/deadletter"):
            with pytest.raises(NotAllowed, match="no status of its own"):
                broker.set_status(path, "disabled")
        with pytest.raises(InvalidOption, match="'halted'"):
            broker.set_status("q", "halted")

    def test_told_and_audited_once(self, broker: Broker) -> None:
        create(broker)
        for _ in range(2):
            broker.set_status("q", "disabled", actor="ann")
        (event,) = broker.events(kind="status_set")
        assert event.detail == {"status": "disabled"}
        entry, created = broker.audit(queue="q")
        assert created.action == "create"
        assert (entry.actor, entry.action) == ("ann", "status")
        assert entry.detail == {"status": "disabled", "before": "active"}


def counted(broker: Broker, queue_id: int) -> int:
    """Count the bytes of a queue's bodies and headers, one by one."""
    rows = stored(
        broker,
        "SELECT m.body, b.body, m.headers FROM lazaretto_messages m "
        f"LEFT JOIN lazaretto_bodies b ON b.body_id = m.body_id WHERE m.key >> 44 = {queue_id} "
        "AND ((m.key >> 42) & 3) <> 3",
    )
    return sum(len(body or shared or b"") + len(headers or b"") for body, shared, headers in rows)


class TestMaxSize:
    """A queue that is full takes nothing more."""

    def size(self, broker: Broker) -> int:
        size = broker.queue("q").size
        assert size is not None
        assert size == counted(broker, 2)
        return size

    def test_refused_when_full_and_nothing_of_it_kept(self, broker: Broker) -> None:
        create(broker, max_size=2048)
        send(broker, b"x" * 1000)
        with pytest.raises(QuotaExceeded, match="queue 'q' is full: it holds 1000 of 2048 bytes") as caught:
            send(broker, b"y" * 600, b"z" * 600)
        assert (caught.value.code, caught.value.retriable) == ("quota_exceeded", True)
        assert self.size(broker) == 1000
        send(broker, b"y" * 1048)
        assert self.size(broker) == 2048

    def test_room_again_when_messages_are_done(self, broker: Broker) -> None:
        create(broker, max_size=2048)
        send(broker, b"x" * 2000)
        receiver = broker.receiver("q")
        receiver.complete(receiver.receive())
        assert self.size(broker) == 0
        send(broker, b"x" * 2000)

    def test_every_way_a_message_goes_is_counted(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, max_size=1_000_000)
        sender, receiver = broker.sender("q"), broker.receiver("q")
        sender.send([Message(b"x" * n, subject="s" * (n % 7)) for n in (0, 10, 1280, 1281, 5000, 7000, 9000)])
        sender.send(Message(b"late", time_to_live=5.0))
        receiver.complete(receiver.receive(2))
        self.size(broker)
        receiver.dead_letter(receiver.receive(1), reason="bad")
        receiver.defer(receiver.receive(1))
        receiver.abandon(receiver.receive(1))
        broker.receiver("q", mode="receive_and_delete").receive(1)
        self.size(broker)
        broker.resubmit("q", 3, edit=lambda letter: Message(b"mended" * 500, properties={"n": 1}))
        self.size(broker)
        clock.advance(10)
        receiver.release(receiver.receive(1))
        receiver.dead_letter(receiver.receive(1))
        broker.purge("q", [6])
        assert 0 < self.size(broker) < 20_000

    def test_dead_letters_count(self, broker: Broker) -> None:
        create(broker, max_size=1024)
        set_aside(broker, b"x" * 1000)
        with pytest.raises(QuotaExceeded):
            send(broker, b"y" * 1000)
        broker.purge("q", [1])
        send(broker, b"y" * 1000)

    def test_a_full_queue_still_takes_back_its_own(self, broker: Broker) -> None:
        create(broker, max_size=1024)
        (number,) = set_aside(broker, b"x" * 1000)
        assert list(broker.resubmit("q", number).resubmitted) == [number]

    def test_set_later_what_is_there_counts(self, broker: Broker) -> None:
        create(broker)
        send(broker, b"x" * 1000, b"y" * 5000)
        assert broker.queue("q").size is None
        assert broker.update_queue("q", max_size=10_000).size == 6000
        assert self.size(broker) == 6000
        broker.update_queue("q", max_size=None)
        receiver = broker.receiver("q")
        receiver.complete(receiver.receive())
        assert broker.update_queue("q", max_size=10_000).size == 5000

    def test_by_claims(self, broker: Broker) -> None:
        create(broker, max_size=1_000_000)
        send(broker, *[b"x" * n for n in range(1000, 1500, 50)])
        consumer = ClaimConsumer(broker._store, "q", "c")
        consumer.attach()
        number = consumer.take(0, max_rows=10)
        assert number is not None
        ((_, shard),) = consumer.shards(0, number)
        keys = broker._store.read(lambda tx: tx.claims.shard_keys(shard, 10))
        consumer.stage("s", staged_rows(shard.token, keys, [], {"handler": 0.5}))
        consumer.settle([number], ["s"])
        assert self.size(broker) == 0

    def test_a_topic_counts_its_subscriptions(self, broker: Broker) -> None:
        broker.create_topic("t", TopicOptions(max_size=10_000))
        for name in ("a", "b", "c"):
            broker.create_subscription("t", name)
        send(broker, b"x" * 2000, path="t")
        assert broker.topic("t").size == 6000
        receiver = broker.receiver("t/subscriptions/a")
        receiver.complete(receiver.receive())
        assert broker.topic("t").size == 4000
        broker.delete_subscription("t", "b")
        assert broker.topic("t").size == 2000
        send(broker, b"x" * 2000, b"x" * 2000, path="t")
        with pytest.raises(QuotaExceeded, match="topic 't' is full: it holds 10000 of 10000 bytes"):
            send(broker, b"x", path="t")
        assert broker.update_topic("t", max_size=20_000).size == 10_000

    def test_the_option_is_the_topics(self, broker: Broker) -> None:
        broker.create_topic("t")
        for options in (QueueOptions(max_size=2048), QueueOptions(requires_duplicate_detection=True)):
            with pytest.raises(InvalidOption, match="is an option of the topic"):
                broker.create_subscription("t", "s", options)

    @pytest.mark.parametrize("value", [0, 1023, "1GB", True, 2048.0])
    def test_what_it_can_be(self, value: Any) -> None:
        with pytest.raises(InvalidOption, match="max_size"):
            QueueOptions(max_size=value)


class TestAutoDelete:
    """An entity that nobody uses goes."""

    def gone(self, broker: Broker, path: str = "q") -> bool:
        # Whatever anybody receives, what is due is done first.
        broker.receiver("other").receive()
        try:
            broker.queue(path)
        except EntityNotFound:
            return True
        return False

    @pytest.fixture(autouse=True)
    def other(self, broker: Broker) -> None:
        create(broker, "other")

    def test_after_its_time(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, auto_delete_on_idle=timedelta(minutes=5))
        clock.advance(299)
        assert not self.gone(broker)
        clock.advance(20)
        assert self.gone(broker)
        assert kinds(broker.events())[-1] == "queue_deleted"
        assert broker.audit(queue="q")[0].actor == "auto_delete_on_idle"

    @pytest.mark.parametrize("use", ["send", "receive", "update"])
    def test_used_it_stays(self, broker: Broker, clock: ManualClock, use: str) -> None:
        create(broker, auto_delete_on_idle=300)
        for round_ in range(4):
            clock.advance(200)
            if use == "send":
                send(broker, b"x")
            elif use == "receive":
                broker.receiver("q").receive()
            else:
                broker.update_queue("q", auto_delete_on_idle=300 + round_)
            assert not self.gone(broker)
        clock.advance(299)
        assert not self.gone(broker)
        clock.advance(20)
        assert self.gone(broker)

    def test_used_by_another_process(self, connect: Any, broker: Broker, clock: ManualClock) -> None:
        create(broker, auto_delete_on_idle=300)
        with connect() as second:
            for _ in range(4):
                clock.advance(200)
                send(second, b"x")
                assert not self.gone(broker)

    def test_what_was_set_aside_keeps_it(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, auto_delete_on_idle=300)
        set_aside(broker, b"x")
        clock.advance(10_000)
        assert not self.gone(broker)
        broker.purge("q", DeadLetterFilter(), everything=True)
        clock.advance(10_000)
        assert not self.gone(broker)
        broker.delete_purged("q", 1)
        clock.advance(10_000)
        assert self.gone(broker)

    def test_what_is_scheduled_or_deferred_keeps_it(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, auto_delete_on_idle=300)
        send(broker, b"x")
        receiver = broker.receiver("q")
        receiver.defer(receiver.receive())
        clock.advance(400)
        assert not self.gone(broker)

    def test_messages_that_nobody_fetches_go_with_it(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, auto_delete_on_idle=300)
        send(broker, b"x")
        clock.advance(400)
        assert self.gone(broker)

    def test_a_topic_lives_as_long_as_a_subscription_is_used(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        broker.create_topic("t", TopicOptions(auto_delete_on_idle=300))
        broker.create_subscription("t", "s")
        for _ in range(3):
            clock.advance(200)
            broker.receiver("t/subscriptions/s").receive()
        clock.advance(400)
        assert self.gone(broker, "t/subscriptions/s")
        with pytest.raises(EntityNotFound):
            broker.topic("t")

    def test_a_subscription_by_itself(self, broker: Broker, clock: ManualClock) -> None:
        broker.create_topic("t")
        broker.create_subscription("t", "s", QueueOptions(auto_delete_on_idle=300))
        send(broker, b"x", path="t")
        clock.advance(400)
        assert self.gone(broker, "t/subscriptions/s")
        assert broker.topic("t").subscriptions == 0

    def test_taken_back(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, auto_delete_on_idle=300)
        broker.update_queue("q", auto_delete_on_idle=None)
        clock.advance(10_000)
        assert not self.gone(broker)

    def test_forwarded_to_it_is_in_use(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, auto_delete_on_idle=300)
        create(broker, "a", forward_to="q")
        for _ in range(3):
            clock.advance(200)
            send(broker, b"x", path="a")
            assert not self.gone(broker)
        assert len(bodies(broker.peek("q", 10))) == 3

    @pytest.mark.parametrize("option", ["forward_to", "forward_dead_lettered_messages_to"])
    def test_what_forwards_is_never_idle(self, broker: Broker, clock: ManualClock, option: str) -> None:
        to: dict[str, Any] = {option: "to"}
        nowhere: dict[str, Any] = {option: None}
        create(broker, "to")
        create(broker, auto_delete_on_idle=300, **to)
        broker.create_topic("t", TopicOptions(auto_delete_on_idle=300))
        broker.create_subscription("t", "s", QueueOptions(auto_delete_on_idle=300, **to))
        clock.advance(10_000)
        for path in ("q", "t/subscriptions/s"):
            assert not self.gone(broker, path)
        # Its time begins when it forwards no longer, and ends when it does so again.
        broker.update_queue("q", **nowhere)
        broker.update_subscription("t", "s", **nowhere)
        clock.advance(200)
        broker.update_queue("q", **to)
        clock.advance(10_000)
        assert not self.gone(broker)
        assert self.gone(broker, "t/subscriptions/s")
        broker.update_queue("q", **nowhere)
        clock.advance(299)
        assert not self.gone(broker)
        clock.advance(20)
        assert self.gone(broker)

    def test_five_minutes_at_least(self) -> None:
        with pytest.raises(InvalidOption, match="auto_delete_on_idle"):
            QueueOptions(auto_delete_on_idle=299)
