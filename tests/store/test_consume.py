"""`consume`: session after session, and dead letters that fail again."""

from __future__ import annotations

import threading

import pytest

from lazaretto import (
    NEXT_SESSION,
    Broker,
    Message,
    PoisonPolicy,
    PoisonSession,
    QueueOptions,
    ReceivedMessage,
)


@pytest.fixture
def steps(broker: Broker) -> str:
    options = QueueOptions(
        requires_session=True,
        on_poison_session=PoisonSession.BLOCK,
        policy=PoisonPolicy(receive_retry_count=0),
    )
    broker.create_queue("steps", options)
    return "steps"


def fill(broker: Broker, steps: str) -> None:
    for n in range(3):
        broker.sender(steps).send([Message(b"%d" % n, session_id=name) for name in "abc"])


@pytest.mark.parametrize("batch_size", [1, 100])
def test_one_session_after_the_other(broker: Broker, steps: str, batch_size: int) -> None:
    fill(broker, steps)
    seen: list[tuple[str | None, bytes]] = []
    report = broker.consume(
        steps,
        lambda m: seen.append((m.session_id, m.body)),
        session=NEXT_SESSION,
        stop_when_idle=True,
        batch_size=batch_size,
    )
    assert seen == [(name, b"%d" % n) for name in "abc" for n in range(3)]
    assert report.completed == 9


def test_a_session_that_is_held_back_is_left(broker: Broker, steps: str) -> None:
    fill(broker, steps)
    seen: list[tuple[str | None, bytes]] = []

    def refuse(message: ReceivedMessage) -> None:
        seen.append((message.session_id, message.body))
        if message.session_id == "a":
            raise ValueError("poison")

    report = broker.consume(steps, refuse, session=NEXT_SESSION, stop_when_idle=True, batch_size=1)
    assert (report.completed, report.failed) == (6, 1)
    assert len(seen) == 7


def test_a_session_that_comes_later_is_taken_too(broker: Broker, steps: str) -> None:
    """The receiver gives its session up when nothing more comes in it."""
    stop = threading.Event()
    broker.sender(steps).send(Message(b"", session_id="a"))

    def go_on(message: ReceivedMessage) -> None:
        if message.session_id == "a":
            broker.sender(steps).send(Message(b"", session_id="b"))
        else:
            stop.set()

    assert broker.consume(steps, go_on, session=NEXT_SESSION, stop=stop).completed == 2


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_dead_letters_that_fail_are_tried_once(broker: Broker, batch_size: int) -> None:
    broker.create_queue("q")
    broker.sender("q").send([Message(b"%d" % n) for n in range(5)])
    with broker.receiver("q") as receiver:
        receiver.dead_letter(receiver.receive(5))
    seen: list[bytes] = []

    def fix(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body in (b"0", b"3"):
            raise ValueError("still bad")

    def again() -> None:
        report = broker.consume("q", fix, subqueue="dead_letter", stop_when_idle=True, batch_size=batch_size)
        assert report.failed == 2

    again()
    assert seen == [b"0", b"1", b"2", b"3", b"4"]
    # At once, not after a pause.
    again()
    assert seen[5:] == [b"0", b"3"]
    attempts = broker.attempts("q", 1)
    assert [a.error_type for a in attempts if a.outcome.value == "failed"] == ["ValueError"] * 2


class TestSessionsThatAreOneUnit:
    @pytest.fixture(autouse=True)
    def unit(self, broker: Broker) -> None:
        options = QueueOptions(
            requires_session=True,
            on_poison_session=PoisonSession.WHOLE,
            policy=PoisonPolicy(receive_retry_count=0),
        )
        broker.create_queue("unit", options)
        broker.sender("unit").send([Message(b"%d" % n, session_id="a") for n in range(3)])

    def test_a_failure_is_charged_and_nothing_is_completed(self, broker: Broker) -> None:
        seen: list[bytes] = []

        def refuse(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if message.body == b"1":
                raise ValueError("poison")

        report = broker.consume("unit", refuse, session=NEXT_SESSION, stop_when_idle=True)
        assert (report.completed, report.failed) == (0, 1)
        assert seen == [b"0", b"1"]
        reasons = [letter.reason for letter in broker.dead_letters("unit")]
        assert reasons == ["SessionPoisoned", "MaxDeliveryCountExceeded", "SessionPoisoned"]

    def test_one_that_is_interrupted_completes_nothing_and_says_so(self, broker: Broker) -> None:
        def interrupt(message: ReceivedMessage) -> None:
            if message.body == b"1":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            broker.consume("unit", interrupt, session=NEXT_SESSION, stop_when_idle=True)
        assert broker.queue("unit").counts.active == 3
        report = broker.consume("unit", lambda m: None, session=NEXT_SESSION, stop_when_idle=True)
        assert (report.completed, broker.queue("unit").counts.total) == (3, 0)
