"""What becomes of a session with a poison message: skip, block, park. For whole see test_whole_sessions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lazaretto
from lazaretto import (
    NEXT_SESSION,
    Broker,
    DeadLetterFilter,
    EntityError,
    InvalidOption,
    ManualClock,
    Message,
    MessageNotFound,
    PoisonPolicy,
    PoisonSession,
    QueueOptions,
    ReceivedMessage,
    Receiver,
    SessionHeld,
)

QUEUE = "steps"
ONE_TRY = PoisonPolicy(receive_retry_count=0)


def make(broker: Broker, mode: str, **options: Any) -> None:
    given_ = {"policy": ONE_TRY, **options}
    broker.create_queue(QUEUE, QueueOptions(requires_session=True, on_poison_session=mode, **given_))  # type: ignore[arg-type]


def send(broker: Broker, session: str, *bodies: bytes, **fields: Any) -> list[int]:
    messages = [Message(body, session_id=session, **fields) for body in bodies]
    return broker.sender(QUEUE).send(messages)


def work_off(broker: Broker, *bad: bytes) -> list[bytes]:
    """Work off every session that can be had; what is bad fails. Return what was completed, in order."""
    done: list[bytes] = []
    while True:
        with broker.receiver(QUEUE, session=NEXT_SESSION) as receiver:
            if not _work_one(receiver, done, bad):
                return done


def _work_one(receiver: Receiver, done: list[bytes], bad: tuple[bytes, ...]) -> bool:
    """Work off the session that is received; return whether there was one."""
    found = False
    try:
        while batch := receiver.receive(1):
            found = True
            (message,) = batch
            if message.body in bad:
                receiver.abandon(message, error="ValueError: bad")
            else:
                receiver.complete(message)
                done.append(message.body)
    except SessionHeld:
        pass
    return found


def test_skip_goes_on_behind_the_poison_message(broker: Broker) -> None:
    make(broker, "skip")
    send(broker, "a", b"1", b"2", b"3")
    assert work_off(broker, b"2") == [b"1", b"3"]
    assert broker.queue(QUEUE).held_sessions == 0
    assert broker.queue(QUEUE).counts.dead_letter == 1


class TestBlock:
    def _blocked(self, broker: Broker) -> int:
        make(broker, "block")
        numbers = send(broker, "a", b"1", b"2", b"3")
        send(broker, "b", b"4")
        assert work_off(broker, b"2") == [b"1", b"4"]
        return numbers[1]

    def test_the_session_waits_and_the_others_go_on(self, broker: Broker) -> None:
        culprit = self._blocked(broker)
        counts = broker.queue(QUEUE).counts
        assert (counts.active, counts.dead_letter) == (2, 0)
        (held,) = broker.held_sessions(QUEUE)
        assert (held.session_id, held.mode, held.sequence_number) == ("a", PoisonSession.BLOCK, culprit)
        assert broker.session(QUEUE, "a").held == held
        with pytest.raises(SessionHeld) as caught:
            broker.receiver(QUEUE, session="a")
        assert (caught.value.sequence_number, caught.value.mode) == (culprit, "block")
        send(broker, "a", b"5")
        assert work_off(broker) == []
        (event,) = broker.events(kind="session_held")
        assert event.detail == {"session": "a", "mode": "block", "reason": "MaxDeliveryCountExceeded"}

    @pytest.mark.parametrize(
        ("verdict", "done", "dead"),
        [("retry", [b"2", b"3"], 0), ("move", [b"3"], 1), ("drop", [b"3"], 0), ("reject", [b"3"], 0)],
    )
    def test_the_verdict_lets_it_go_on(
        self, broker: Broker, verdict: str, done: list[bytes], dead: int
    ) -> None:
        self._blocked(broker)
        broker.resume_session(QUEUE, "a", verdict, actor="me")
        assert broker.held_sessions(QUEUE) == []
        assert work_off(broker) == done
        assert broker.queue(QUEUE).counts.dead_letter == dead
        assert broker.audit()[0].detail == {"session": "a", "verdict": verdict}
        assert len(broker.events(kind="session_released")) == 1

    def test_a_retried_message_gets_all_its_attempts_again(self, broker: Broker) -> None:
        self._blocked(broker)
        broker.update_queue(QUEUE, policy=PoisonPolicy(receive_retry_count=1))
        broker.resume_session(QUEUE, "a", "retry")
        with broker.receiver(QUEUE, session="a") as receiver:
            for _ in range(2):
                receiver.abandon(receiver.receive())
            with pytest.raises(SessionHeld):
                receiver.receive()

    @pytest.mark.parametrize("verdict", ["skip", "explode", "", None, 7, ["retry"], "\ud800", "x" * 10_000])
    def test_a_verdict_that_is_none_changes_nothing(self, broker: Broker, verdict: Any) -> None:
        self._blocked(broker)
        with pytest.raises(InvalidOption, match="retry, move, drop, reject"):
            broker.resume_session(QUEUE, "a", verdict)
        assert broker.queue(QUEUE).held_sessions == 1

    def test_the_receiver_that_held_it_gets_nothing_further(self, broker: Broker) -> None:
        make(broker, "block")
        send(broker, "a", b"1", b"2")
        with broker.receiver(QUEUE, session="a") as receiver:
            receiver.abandon(receiver.receive())
            with pytest.raises(SessionHeld):
                receiver.receive()

    def test_a_message_whose_life_is_over_holds_nothing(self, broker: Broker, clock: ManualClock) -> None:
        make(broker, "block")
        send(broker, "a", b"1", time_to_live=60)
        send(broker, "a", b"2")
        assert work_off(broker, b"1") == []
        clock.advance(61)
        with broker.receiver(QUEUE, session=NEXT_SESSION) as receiver:
            receiver.receive()
        assert work_off(broker) == [b"2"]

    def test_a_lock_that_runs_out_for_the_last_time_blocks_too(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        make(broker, "block")
        send(broker, "a", b"1", b"2")
        broker.receiver(QUEUE, session="a").receive()
        clock.advance(61)
        assert work_off(broker) == []
        assert broker.queue(QUEUE).held_sessions == 1

    def test_it_outlives_the_broker_and_the_receiver(self, connect: Any) -> None:
        self._blocked(connect())
        assert [h.session_id for h in connect().held_sessions(QUEUE)] == ["a"]


class TestPark:
    def _parked(self, broker: Broker) -> int:
        make(broker, "park")
        numbers = send(broker, "a", b"1", b"2", b"3")
        send(broker, "b", b"4")
        assert work_off(broker, b"2") == [b"1", b"4"]
        assert [d.sequence_number for d in broker.dead_letters(QUEUE)] == [numbers[1]]
        return numbers[1]

    def test_later_messages_wait_whenever_they_were_sent(self, broker: Broker) -> None:
        self._parked(broker)
        send(broker, "a", b"5")
        assert work_off(broker) == []
        assert broker.session(QUEUE, "a").messages == {"active": 2}

    def test_a_repaired_message_returns_to_its_place(self, broker: Broker) -> None:
        culprit = self._parked(broker)
        send(broker, "a", b"5")
        report = broker.resubmit(
            QUEUE, culprit, edit=lambda dead: Message(b"2 repaired", session_id="a", message_id="new")
        )
        assert report.resubmitted == {culprit: culprit}
        assert work_off(broker) == [b"2 repaired", b"3", b"5"]
        assert broker.queue(QUEUE).counts.total == 0

    def test_as_it_is_it_returns_to_its_place_with_its_history(self, broker: Broker) -> None:
        culprit = self._parked(broker)
        broker.resume_session(QUEUE, "a", "retry")
        with broker.receiver(QUEUE, session="a") as receiver:
            (again,) = receiver.receive()
            assert (again.sequence_number, again.generation, again.delivery_count) == (culprit, 1, 0)
            assert len(broker.attempts(QUEUE, culprit)) == 1
            receiver.abandon(again)
        # Poison again: it is set aside again, and the session waits again.
        assert [d.generation for d in broker.dead_letters(QUEUE)] == [1]
        assert broker.queue(QUEUE).held_sessions == 1
        assert len(broker.dead_letter(QUEUE, culprit).attempts) == 2

    @pytest.mark.parametrize("way", ["purge", "skip", "complete", "filter"])
    def test_given_up_the_session_goes_on_behind_it(self, broker: Broker, way: str) -> None:
        culprit = self._parked(broker)
        match way:
            case "purge":
                broker.purge(QUEUE, culprit)
            case "filter":
                broker.purge(QUEUE, DeadLetterFilter(), everything=True)
            case "skip":
                broker.resume_session(QUEUE, "a", "skip")
            case "complete":
                with broker.receiver(QUEUE, subqueue="dead_letter") as receiver:
                    receiver.complete(receiver.receive())
        assert broker.held_sessions(QUEUE) == []
        assert work_off(broker) == [b"3"]

    def test_repaired_into_another_session_it_goes_to_the_end_there(self, broker: Broker) -> None:
        culprit = self._parked(broker)
        broker.resubmit(QUEUE, culprit, edit=lambda dead: Message(b"moved", session_id="c"))
        assert sorted(work_off(broker)) == [b"3", b"moved"]
        assert broker.queue(QUEUE).held_sessions == 0

    def test_nothing_waits_for_what_was_dropped(self, broker: Broker) -> None:
        make(broker, "park", policy=PoisonPolicy(receive_retry_count=0, on_poison="drop"))
        send(broker, "a", b"1", b"2")
        assert work_off(broker, b"1") == [b"2"]

    def test_many_parked_sessions_go_on_with_one_resubmission(self, broker: Broker) -> None:
        make(broker, "park")
        for session in "abcdef":
            send(broker, session, b"bad", session.encode())
        assert work_off(broker, b"bad") == []
        assert broker.queue(QUEUE).held_sessions == 6
        broker.resubmit(QUEUE, DeadLetterFilter())
        assert work_off(broker) == [body for s in b"abcdef" for body in (b"bad", bytes([s]))]

    def _two_parked(self, broker: Broker) -> list[int]:
        """Park a session by its first message, and by the third while the first is back in its place."""
        make(broker, "park")
        sent = send(broker, "a", b"1", b"2", b"3", b"4")
        with broker.receiver(QUEUE, session="a") as receiver:
            third = receiver.receive(3)[2]
            receiver.defer(third)
        assert work_off(broker, b"1") == []
        repair = broker.plan_repair(QUEUE, sent[0], canary=0)
        repair.apply()
        repair.run()
        with broker.receiver(QUEUE, session="a") as receiver:
            (third,) = receiver.receive_deferred([sent[2]])
            receiver.abandon(third)
        repair.undo()
        assert repair.run().counts.undone == 1
        return sent

    @pytest.mark.parametrize("first", [0, 2])
    def test_it_goes_on_when_all_that_hold_it_are_decided_on(self, broker: Broker, first: int) -> None:
        sent = self._two_parked(broker)
        last = 2 - first
        assert [d.sequence_number for d in broker.dead_letters(QUEUE)] == [sent[0], sent[2]]
        assert [h.sequence_number for h in broker.held_sessions(QUEUE)] == [sent[0]]
        assert broker.resubmit(QUEUE, sent[first]).resubmitted == {sent[first]: sent[first]}
        assert work_off(broker) == []
        assert [h.sequence_number for h in broker.held_sessions(QUEUE)] == [sent[last]]
        assert broker.resubmit(QUEUE, sent[last]).resubmitted == {sent[last]: sent[last]}
        assert work_off(broker) == [b"1", b"2", b"3", b"4"]

    @pytest.mark.parametrize("way", ["purge", "skip"])
    def test_one_that_is_given_up_lets_the_other_hold_it(self, broker: Broker, way: str) -> None:
        sent = self._two_parked(broker)
        if way == "purge":
            broker.purge(QUEUE, sent[0])
        else:
            broker.resume_session(QUEUE, "a", "skip")
        assert [h.sequence_number for h in broker.held_sessions(QUEUE)] == [sent[2]]
        broker.resubmit(QUEUE, sent[2])
        assert work_off(broker) == [b"2", b"3", b"4"]


def test_a_queue_without_sessions_takes_no_mode(broker: Broker) -> None:
    with pytest.raises(InvalidOption, match="needs a queue with requires_session"):
        QueueOptions(on_poison_session="park")
    with pytest.raises(InvalidOption, match="skip, block, park, whole"):
        QueueOptions(requires_session=True, on_poison_session="wait")  # type: ignore[arg-type]


def test_resuming_what_is_not_held_says_so(broker: Broker) -> None:
    make(broker, "block")
    send(broker, "a", b"1")
    with pytest.raises(EntityError, match="is not held"):
        broker.resume_session(QUEUE, "a", "retry")
    with pytest.raises(MessageNotFound):
        broker.session(QUEUE, "z")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_parked_sessions_complete_in_order_whatever_happens(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    """Failures, repairs, edits, purges and sends in any order: nothing overtakes within a session."""
    folder = tmp_path_factory.mktemp("park")
    with lazaretto.connect(folder / "p.db", clock=ManualClock()) as broker:
        make(broker, "park")
        sent = {"a": 0, "b": 0}
        done: dict[str, list[int]] = {"a": [], "b": []}

        def step(receiver: Receiver, message: ReceivedMessage, fails: bool) -> None:
            if fails:
                receiver.abandon(message)
            else:
                receiver.complete(message)
                done[message.session_id or ""].append(int(message.body))

        for _ in range(data.draw(st.integers(1, 25))):
            action = data.draw(st.sampled_from(["send", "work", "work", "repair", "edit", "purge"]))
            session = data.draw(st.sampled_from("ab"))
            dead = [d.sequence_number for d in broker.dead_letters(QUEUE)]
            if action == "send":
                send(broker, session, b"%d" % sent[session])
                sent[session] += 1
            elif action == "work":
                try:
                    with broker.receiver(QUEUE, session=session) as receiver:
                        for message in receiver.receive(data.draw(st.integers(1, 2))):
                            step(receiver, message, data.draw(st.booleans()))
                            if broker.queue(QUEUE).held_sessions:
                                break
                except SessionHeld:
                    assert session in {h.session_id for h in broker.held_sessions(QUEUE)}
            elif dead:
                chosen = data.draw(st.sampled_from(dead))
                if action == "purge":
                    broker.purge(QUEUE, chosen)
                else:
                    same = lambda d: Message(d.message.body, session_id=d.message.session_id)  # noqa: E731
                    broker.resubmit(QUEUE, chosen, edit=same if action == "edit" else None)
        for numbers in done.values():
            assert numbers == sorted(numbers)
        assert broker.queue(QUEUE).held_sessions == broker.queue(QUEUE).counts.dead_letter
