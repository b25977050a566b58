"""The disposition fault: a queue is halted, and resumed with a verdict."""

from __future__ import annotations

import pytest

from lazaretto import (
    Broker,
    Disposition,
    InvalidOption,
    LazarettoError,
    ManualClock,
    PoisonMessageError,
    QueueStatus,
    SessionHeld,
)

from .actions import bodies, create, fail, peek_one, send, take
from .conftest import Connect

SYSTEM = "$system/deadletter"
FAULT = Disposition.FAULT


class TestFault:
    """The message stays; the queue stops being receivable, durably; sending goes on."""

    @pytest.fixture
    def culprit(self, broker: Broker) -> int:
        """The number of the message that halted `q`; another waits behind it."""
        create(broker, receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=0, on_poison=FAULT)
        numbers = send(broker, b"bad", b"good")
        for _ in range(4):
            fail(broker, error="KeyError: x")
        return numbers[0]

    def test_receivers_are_told_everything(self, broker: Broker, culprit: int) -> None:
        with pytest.raises(PoisonMessageError) as raised:
            broker.receiver("q").receive()
        error = raised.value
        assert (error.entity, error.sequence_number, error.delivery_count) == ("q", culprit, 4)
        assert (error.cycle, error.reason) == (1, "MaxDeliveryCountExceeded")

    def test_no_way_of_receiving_is_open(self, broker: Broker, culprit: int) -> None:
        for call in (
            lambda: broker.receiver("q", mode="receive_and_delete").receive(),
            lambda: broker.transaction().receive("q"),
            lambda: broker.consume("q", print, stop_when_idle=True),
            lambda: broker.receiver("q").receive(max_wait=5),
        ):
            with pytest.raises(PoisonMessageError):
                call()

    def test_the_description_names_the_culprit(
        self, broker: Broker, clock: ManualClock, culprit: int
    ) -> None:
        found = broker.queue("q")
        assert found.status is QueueStatus.HALTED
        assert found.halted_by is not None
        assert (found.halted_by.sequence_number, found.halted_by.reason) == (
            culprit,
            "MaxDeliveryCountExceeded",
        )
        assert found.halted_by.time.timestamp() == clock.now() / 1e6
        assert found.counts.active == 2

    def test_sending_and_peeking_go_on(self, broker: Broker, culprit: int) -> None:
        send(broker, b"more")
        assert bodies(broker.peek("q", 5)) == [b"bad", b"good", b"more"]

    def test_it_survives_a_restart(self, broker: Broker, connect: Connect, culprit: int) -> None:
        broker.close()
        with pytest.raises(PoisonMessageError):
            connect().receiver("q").receive()

    def test_another_broker_halts_too(self, broker: Broker, connect: Connect, culprit: int) -> None:
        with pytest.raises(PoisonMessageError):
            connect().receiver("q").receive()

    def test_it_is_told_once(self, broker: Broker, culprit: int) -> None:
        (event,) = broker.events(kind="queue_halted")
        assert (event.sequence_number, event.detail["delivery_count"], event.detail["cycle"]) == (
            culprit,
            4,
            1,
        )

    def test_messages_held_meanwhile_can_be_settled(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, on_poison=FAULT)
        send(broker, b"bad", b"good")
        receiver = broker.receiver("q")
        bad, good = receiver.receive(2)
        receiver.abandon(bad)
        receiver.complete(good)
        assert bodies(broker.peek("q", 5)) == [b"bad"]

    def test_it_stays_halted_when_nothing_is_left_of_the_culprit(
        self, broker: Broker, connect: Connect, clock: ManualClock
    ) -> None:
        create(broker, receive_retry_count=0, on_poison=FAULT)
        send(broker, b"bad", time_to_live=10)
        fail(broker)
        clock.advance(11)
        send(broker, b"good", b"better")
        for mode in ("peek_lock", "receive_and_delete"):
            for limit in (1, 2):
                with pytest.raises(PoisonMessageError):
                    broker.receiver("q", mode=mode).receive(limit)
        # Another process, which has nothing to remember.
        with pytest.raises(PoisonMessageError):
            connect().receiver("q").receive()
        assert bodies(broker.peek("q", 5)) == [b"good", b"better"]
        broker.resume_queue("q", "drop")
        assert take(broker).body == b"good"

    def test_the_first_culprit_stays(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, on_poison=FAULT)
        first, second = send(broker, b"x", b"y")
        receiver = broker.receiver("q")
        held = receiver.receive(2)
        receiver.abandon(held[1])
        receiver.abandon(held[0])
        halted_by = broker.queue("q").halted_by
        assert halted_by is not None
        assert halted_by.sequence_number == second != first


class TestResume:
    """A halted queue goes on after a verdict on the culprit."""

    @pytest.fixture(autouse=True)
    def halted(self, broker: Broker) -> None:
        create(broker, receive_retry_count=1, on_poison=FAULT)
        send(broker, b"bad", b"good")
        for _ in range(2):
            fail(broker, error="KeyError: x")

    def test_it_demands_a_verdict(self, broker: Broker) -> None:
        with pytest.raises(
            InvalidOption, match="expected a verdict on the message that halted 'q': retry, move"
        ):
            broker.resume_queue("q")
        with pytest.raises(InvalidOption, match=r"unknown verdict 'retyr'; did you mean 'retry'\?"):
            broker.resume_queue("q", "retyr")
        assert broker.queue("q").status is QueueStatus.HALTED

    def test_retry_starts_its_attempts_again(self, broker: Broker) -> None:
        assert broker.resume_queue("q", "retry").status is QueueStatus.ACTIVE
        assert fail(broker) == fail(broker) == 1
        found = broker.queue("q")
        assert found.status is QueueStatus.HALTED
        assert found.halted_by is not None
        assert found.halted_by.delivery_count == 4

    def test_retry_and_cured(self, broker: Broker) -> None:
        broker.resume_queue("q", "retry")
        receiver = broker.receiver("q")
        receiver.complete(receiver.receive(5))
        assert broker.queue("q").counts.total == 0

    def test_move(self, broker: Broker) -> None:
        found = broker.resume_queue("q", "move")
        assert (found.counts.dead_letter, found.halted_by) == (1, None)
        letter = broker.dead_letter("q", 1)
        assert (letter.reason, letter.error_type) == ("MaxDeliveryCountExceeded", "KeyError")
        assert take(broker).body == b"good"

    def test_drop(self, broker: Broker) -> None:
        found = broker.resume_queue("q", "drop")
        assert (found.counts.total, found.dropped) == (1, 1)
        assert take(broker).body == b"good"

    def test_reject(self, broker: Broker) -> None:
        broker.resume_queue("q", "reject")
        assert peek_one(broker, SYSTEM).body == b"bad"
        assert take(broker).body == b"good"

    def test_told_and_audited(self, broker: Broker) -> None:
        broker.resume_queue("q", "drop", actor="ann")
        (event,) = broker.events(kind="queue_resumed")
        assert (event.sequence_number, event.detail) == (1, {"verdict": "drop"})
        (entry,) = broker.audit(limit=1)
        assert (entry.actor, entry.action, entry.queue) == ("ann", "resume", "q")
        assert entry.detail == {"verdict": "drop", "sequence_number": 1}

    def test_twice(self, broker: Broker) -> None:
        broker.resume_queue("q", "drop")
        with pytest.raises(LazarettoError, match="neither halted nor disabled"):
            broker.resume_queue("q", "drop")

    def test_a_culprit_that_is_gone(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, "r", receive_retry_count=0, on_poison=FAULT)
        send(broker, b"x", path="r", time_to_live=10)
        fail(broker, "r")
        clock.advance(20)
        assert broker.receiver("$system/deadletter").receive() == []
        assert broker.queue("r").counts.total == 0
        assert broker.resume_queue("r", "move").status is QueueStatus.ACTIVE

    def test_receivers_that_wait_are_woken(self, broker: Broker) -> None:
        broker.resume_queue("q", "move")
        assert bodies(broker.receiver("q").receive(max_wait=120)) == [b"good"]


def test_the_error_behind_a_halt_is_told(broker: Broker) -> None:
    create(broker, receive_retry_count=0, on_poison="fault")
    send(broker, b"x")
    fail(broker, error="ValueError: no such customer\nin the catalogue")
    culprit = broker.queue("q").halted_by
    assert culprit is not None
    assert culprit.error == "ValueError: no such customer"
    with pytest.raises(PoisonMessageError, match=r"\(ValueError: no such customer\)\. Resume the") as caught:
        broker.receiver("q").receive()
    assert (caught.value.reason, caught.value.error) == ("MaxDeliveryCountExceeded", culprit.error)


def test_the_error_behind_a_held_session_is_told(broker: Broker) -> None:
    create(broker, requires_session=True, on_poison_session="block", receive_retry_count=0)
    send(broker, b"x", session_id="s")
    with broker.receiver("q", session="s") as receiver:
        receiver.abandon(receiver.receive(), error="ValueError: no such customer")
        with pytest.raises(SessionHeld, match="ValueError: no such customer"):
            receiver.receive()
    assert [held.error for held in broker.held_sessions("q")] == ["ValueError: no such customer"]
