"""Sessions that are one unit (on_poison_session=whole): handed out, completed and set aside as one."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, ClassVar

import msgspec
import pytest

import lazaretto
from lazaretto import (
    NEXT_SESSION,
    Backoff,
    Broker,
    DeadLetter,
    InvalidOption,
    ManualClock,
    Message,
    NotAllowed,
    PoisonMessageError,
    PoisonPolicy,
    QueueOptions,
    Receiver,
)
from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.cli import send_command
from lazaretto.engine.maintenance import look
from lazaretto.engine.outcome.send_back import goes_to_units
from lazaretto.model.entities import EntityPath
from lazaretto.model.messages import as_message

from .actions import Die, bodies, create

QUEUE = "steps"
SYSTEM = "$system/deadletter"


def make(broker: Broker, **options: Any) -> None:
    create(
        broker,
        QUEUE,
        requires_session=True,
        on_poison_session="whole",
        **{"receive_retry_count": 0, **options},
    )


def send(broker: Broker, session: str, *bodies: bytes, **fields: Any) -> list[int]:
    return broker.sender(QUEUE).send([Message(body, session_id=session, **fields) for body in bodies])


def letters(broker: Broker, path: str = QUEUE) -> list[tuple[bytes, str | None]]:
    found = broker.dead_letters(path)
    return [(letter.message.body, letter.reason) for letter in found if letter.message is not None]


def next_session(broker: Broker) -> Receiver:
    return broker.receiver(QUEUE, session=NEXT_SESSION)


def work_off(broker: Broker, bad: bytes) -> list[list[bytes]]:
    """Work off every session that can be had, as a unit; return what was completed together."""
    done: list[list[bytes]] = []
    while True:
        with next_session(broker) as receiver:
            messages = receiver.receive(100)
            if not messages:
                return done
            culprits = [m for m in messages if m.body == bad]
            if culprits:
                receiver.abandon(culprits, error="ValueError: bad")
            else:
                receiver.complete(messages)
                done.append(bodies(messages))


class TestHandOver:
    def test_all_of_it_at_once(self, broker: Broker) -> None:
        make(broker)
        send(broker, "a", b"1", b"2", b"3")
        with next_session(broker) as receiver:
            with pytest.raises(NotAllowed, match="more messages than the 2 requested"):
                receiver.receive(2)
            assert bodies(receiver.receive(3)) == [b"1", b"2", b"3"]

    def test_what_is_sent_meanwhile_is_the_next_unit(self, broker: Broker) -> None:
        make(broker)
        send(broker, "a", b"1", b"2")
        with next_session(broker) as receiver:
            unit = receiver.receive(10)
            send(broker, "a", b"3")
            assert receiver.receive(10) == []
            receiver.complete(unit)
            assert bodies(receiver.receive(10)) == [b"3"]

    def test_received_and_deleted(self, broker: Broker) -> None:
        make(broker)
        send(broker, "a", b"1", b"2")
        with broker.receiver(QUEUE, session="a", mode="receive_and_delete") as receiver:
            with pytest.raises(NotAllowed):
                receiver.receive()
            assert bodies(receiver.receive(2)) == [b"1", b"2"]

    def test_no_claims(self, broker: Broker) -> None:
        make(broker)
        with pytest.raises(NotAllowed, match="settled as a unit"):
            ClaimConsumer(broker._store, QUEUE, "c").attach()


class TestComplete:
    def test_part_of_it_is_refused(self, broker: Broker) -> None:
        make(broker)
        send(broker, "a", b"1", b"2", b"3")
        with next_session(broker) as receiver:
            unit = receiver.receive(10)
            with pytest.raises(NotAllowed, match="complete all messages received from it in one call"):
                receiver.complete(unit[:2])
            receiver.complete(unit)
        assert broker.queue(QUEUE).counts.total == 0

    def test_the_rest_of_what_failed_is_refused(self, broker: Broker) -> None:
        make(broker, receive_retry_count=5)
        send(broker, "a", b"1", b"2")
        with next_session(broker) as receiver:
            first, second = receiver.receive(10)
            receiver.abandon(first)
            with pytest.raises(NotAllowed):
                receiver.complete(second)

    def test_some_and_others_fail_in_one_transaction(self, broker: Broker) -> None:
        make(broker, receive_retry_count=5)
        send(broker, "a", b"1", b"2")
        with next_session(broker) as receiver:
            first, second = receiver.receive(10)
            tx = broker.transaction()
            tx.complete(first)
            tx.dead_letter(second)
            with pytest.raises(NotAllowed):
                tx.commit()
        assert broker.session(QUEUE, "a").messages == {"active": 2}

    def test_without_what_was_deferred_on_purpose(self, broker: Broker) -> None:
        make(broker)
        send(broker, "a", b"1", b"2")
        with next_session(broker) as receiver:
            first, second = receiver.receive(10)
            receiver.defer(second)
            receiver.complete(first)
        assert broker.session(QUEUE, "a").messages == {"deferred": 1}


class TestRetry:
    @pytest.mark.parametrize("delay", [0.5, Backoff(initial=0.5, jitter=0.5)])
    def test_it_waits_as_one(self, broker: Broker, clock: ManualClock, delay: Any) -> None:
        """Nothing of it is handed out while one of its messages waits for its retry cycle."""
        make(broker, max_retry_cycles=1, retry_cycle_delay=delay)
        send(broker, "a", b"0", b"bad", b"2")
        send(broker, "b", b"3")
        assert work_off(broker, b"bad") == [[b"3"]]
        with broker.receiver(QUEUE, session="a") as receiver:
            assert receiver.receive(10) == []
        clock.advance(1)
        with broker.receiver(QUEUE, session="a") as receiver:
            assert bodies(receiver.receive(10)) == [b"0", b"bad", b"2"]
        assert work_off(broker, b"bad") == []
        assert letters(broker) == [
            (b"0", "SessionPoisoned"),
            (b"bad", "MaxDeliveryCountExceeded"),
            (b"2", "SessionPoisoned"),
        ]

    def test_a_delay_that_the_receiver_asks_for(self, broker: Broker, clock: ManualClock) -> None:
        make(broker, receive_retry_count=5)
        send(broker, "a", b"0", b"1", b"2")
        with next_session(broker) as receiver:
            receiver.abandon(receiver.receive(10)[1], delay=10)
        with next_session(broker) as receiver:
            assert receiver.receive(10) == []
        clock.advance(11)
        with next_session(broker) as receiver:
            assert bodies(receiver.receive(10)) == [b"0", b"1", b"2"]

    @pytest.mark.parametrize("verdict", ["move", "reject", "drop", "retry"])
    def test_wcf_halts_and_the_verdict_is_for_all_of_it(
        self, broker: Broker, clock: ManualClock, verdict: str
    ) -> None:
        broker.create_queue(
            QUEUE,
            QueueOptions(requires_session=True, on_poison_session="whole", policy=PoisonPolicy.wcf()),
        )
        send(broker, "a", b"0", b"bad", b"2")
        tries = 0
        with pytest.raises(PoisonMessageError):
            while True:
                with next_session(broker) as receiver:
                    messages = receiver.receive(10)
                    if messages:
                        assert bodies(messages) == [b"0", b"bad", b"2"]
                        receiver.abandon(messages[1])
                        tries += 1
                clock.advance(0 if messages else 1801)
        assert tries == 18
        broker.resume_queue(QUEUE, verdict)
        left = [b"0", b"bad", b"2"]
        found = {
            "move": [body for body, _ in letters(broker)],
            "reject": bodies(broker.peek(SYSTEM, 10)),
            "drop": left if broker.queue(QUEUE).dropped == 3 else [],
            "retry": bodies(broker.peek(QUEUE, 10)),
        }
        assert found == {**{key: [] for key in found}, verdict: left}


class TestEnd:
    """It is set aside as one, in order, whoever says so."""

    def test_moved(self, broker: Broker) -> None:
        make(broker)
        send(broker, "a", b"a0", b"a1", b"a2")
        assert work_off(broker, b"a1") == []
        assert letters(broker) == [
            (b"a0", "SessionPoisoned"),
            (b"a1", "MaxDeliveryCountExceeded"),
            (b"a2", "SessionPoisoned"),
        ]
        number = broker.peek(f"{QUEUE};poison", 3)[1].sequence_number
        first = next(iter(broker.dead_letters(QUEUE)))
        assert f"Message {number} of its session was poison: MaxDelivery" in (first.description or "")

    def test_rejected(self, broker: Broker) -> None:
        make(broker, on_poison="reject")
        create(broker, "mine")
        send(broker, "a", b"a0", b"a1", b"a2", dead_letter_queue="mine")
        assert work_off(broker, b"a1") == []
        assert bodies(broker.peek("mine", 10)) == [b"a0", b"a1", b"a2"]

    def test_forwarded(self, broker: Broker) -> None:
        create(broker, "errors", requires_duplicate_detection=True)
        make(broker, forward_dead_lettered_messages_to="errors")
        send(broker, "a", b"a0", b"a1", b"a2", message_id="same")
        assert work_off(broker, b"a1") == []
        assert bodies(broker.peek("errors", 10)) == [b"a0", b"a1", b"a2"]

    def test_by_its_receiver(self, broker: Broker) -> None:
        make(broker)
        send(broker, "a", b"a0", b"a1", b"a2")
        with next_session(broker) as receiver:
            receiver.dead_letter(receiver.receive(10)[1], reason="mine")
        assert letters(broker) == [(b"a0", "SessionPoisoned"), (b"a1", "mine"), (b"a2", "SessionPoisoned")]

    def test_by_headers_that_grow(self, broker: Broker) -> None:
        make(broker)
        send(broker, "a", b"a0", b"a1")
        big = dict.fromkeys("abc", "x" * 32_000)
        with next_session(broker) as receiver:
            receiver.abandon(receiver.receive(10)[1], properties=big)
        assert letters(broker) == [(b"a0", "SessionPoisoned"), (b"a1", "HeaderSizeExceeded")]

    def test_held_and_deferred_messages_go_with_it(self, broker: Broker) -> None:
        make(broker)
        send(broker, "a", b"1", b"2", b"3")
        with broker.receiver(QUEUE, session="a") as receiver:
            first, second, third = receiver.receive(10)
            send(broker, "a", b"4")
            receiver.defer(third)
            receiver.abandon(first)
            with pytest.raises(lazaretto.MessageLockLost):
                receiver.complete(second)
        assert broker.queue(QUEUE).counts.dead_letter == 4

    def test_settled_together_with_the_rest_it_takes_them_along(self, broker: Broker) -> None:
        make(broker)
        send(broker, "a", b"1", b"2", b"3")
        with broker.receiver(QUEUE, session="a") as receiver:
            receiver.abandon(receiver.receive(3))
        reasons = [reason for _, reason in letters(broker)]
        assert reasons == ["MaxDeliveryCountExceeded", "SessionPoisoned", "SessionPoisoned"]

    @pytest.mark.parametrize("on_poison", ["move", "reject"])
    def test_a_lock_that_runs_out(self, broker: Broker, clock: ManualClock, on_poison: str) -> None:
        make(broker, on_poison=on_poison)
        send(broker, "a", b"1", b"2", b"3")
        receiver = next_session(broker)
        receiver.receive(10)
        clock.advance(61)
        with next_session(broker) as other:
            assert other.receive(10) == []
        assert broker.queue(QUEUE).counts.total == (3 if on_poison == "move" else 0)
        place = f"{QUEUE};poison" if on_poison == "move" else SYSTEM
        assert bodies(broker.peek(place, 10)) == [b"1", b"2", b"3"]
        assert len(broker.events(kind="dead_lettered" if on_poison == "move" else "rejected")) == 3

    def test_what_is_sent_later_is_a_new_unit(self, broker: Broker) -> None:
        make(broker)
        send(broker, "a", b"1", b"2")
        assert work_off(broker, b"1") == []
        send(broker, "a", b"3")
        assert work_off(broker, b"1") == [[b"3"]]


class TestWorkerDeaths:
    def test_it_is_blamed_and_handed_out_as_one(self, broker: Broker) -> None:
        make(broker, receive_retry_count=9, max_worker_deaths=2)
        send(broker, "a", b"1", b"2", b"3")
        for death in (1, 2):
            handover = next_session(broker).take(100, 0.0)
            assert handover is not None
            assert bodies(handover.messages) == [b"1", b"2", b"3"]
            assert handover.alone == (death > 1)
            broker._store.run(Die())
        assert letters(broker) == [
            (b"1", "WorkerCrashed"),
            (b"2", "SessionPoisoned"),
            (b"3", "SessionPoisoned"),
        ]

    def test_of_several_none_is_charged_and_each_is_tried_alone(self, broker: Broker) -> None:
        make(broker, receive_retry_count=9, max_worker_deaths=2)
        send(broker, "a", b"1", b"2")
        send(broker, "b", b"3", b"4")
        for _ in range(2):
            assert next_session(broker).take(100, 0.0) is not None
        broker._store.run(Die())
        with next_session(broker) as receiver:
            unit = receiver.take(100, 0.0)
            assert unit is not None
            assert unit.alone
            assert bodies(unit.messages) == [b"1", b"2"]
            receiver.complete(unit.messages)
        unit = next_session(broker).take(100, 0.0)
        assert unit is not None
        assert bodies(unit.messages) == [b"3", b"4"]
        broker._store.run(Die())
        assert letters(broker) == [(b"3", "WorkerCrashed"), (b"4", "SessionPoisoned")]


class TestSentBack:
    """What is received as one unit is sent back in one commit, however many messages it has."""

    MANY = 1_300

    def _letters(self, broker: Broker) -> list[int]:
        """Let sessions die: two that alternate, of which one is large, and a small one behind."""
        make(broker)
        sent = [Message(b"%d" % n, session_id="ab"[n % 2 and n < 40]) for n in range(self.MANY)]
        broker.sender(QUEUE).send([*sent, Message(b"c", session_id="c")])
        while True:
            with next_session(broker) as receiver:
                if not (unit := receiver.receive(self.MANY)):
                    break
                receiver.abandon(unit[:1], error="ValueError: bad")
        letters = [letter.sequence_number for letter in broker.dead_letters(QUEUE)]
        assert len(letters) == self.MANY + 1
        return letters

    def _commits(self, broker: Broker, path: str = QUEUE) -> list[dict[str, int]]:
        """Return how many messages of each session stand in a queue after each commit."""
        found: list[dict[str, int]] = []
        store = store_of(broker)
        original = store.run

        def run(operation: Any) -> Any:
            answer = original(operation)
            counts = Counter(m.session_id or "" for m in broker.peek(path, 10 * self.MANY))
            if not found or counts != found[-1]:
                found.append(dict(counts))
            return answer

        store.run = run  # type: ignore[method-assign]
        return found

    WHOLE: ClassVar = {"a": MANY - 20, "b": 20, "c": 1}

    def _assert_undivided(self, commits: list[dict[str, int]], last: dict[str, int]) -> None:
        assert commits[-1] == last
        for counts in commits:
            assert {counts.get(session, 0) - size for session, size in self.WHOLE.items()} <= {
                0, *(-size for size in self.WHOLE.values())
            }, counts  # fmt: skip

    @pytest.mark.parametrize("way", ["resubmit", "move", "republish"])
    def test_in_portions(self, broker: Broker, way: str) -> None:
        letters = self._letters(broker)
        unit = QueueOptions(requires_session=True, on_poison_session="whole")
        broker.create_topic("topic")
        broker.create_subscription("topic", "s", unit)
        broker.create_queue("plain")
        broker.create_queue("other", unit)
        broker.update_queue("plain", forward_to="other")
        place = {"resubmit": QUEUE, "move": "other", "republish": "topic/subscriptions/s"}[way]
        commits = self._commits(broker, place)
        match way:
            case "resubmit":
                broker.resubmit(QUEUE, letters)
            case "move":
                broker.move_dead_letters(QUEUE, letters, "plain")
            case "republish":
                broker.republish(QUEUE, letters, topic="topic")
        self._assert_undivided(commits, self.WHOLE)

    @pytest.mark.parametrize("edit", [None, "SET subject = 'again'"])
    def test_by_a_repair_and_back(self, broker: Broker, edit: str | None) -> None:
        letters = self._letters(broker)
        repair = broker.plan_repair(QUEUE, letters, edit=edit, canary=0, in_flight=None)
        assert repair.status().order == "session"
        commits = self._commits(broker)
        repair.apply()
        repair.run()
        self._assert_undivided(commits, self.WHOLE)
        repair.undo()
        repair.run()
        self._assert_undivided(commits, {})
        assert len(list(broker.dead_letters(QUEUE))) == self.MANY + 1

    #: Puts each letter into a session that is named by its number's parity, across those that it was in.
    MOVE: ClassVar = "SET sys.session_id = 'new-' + parity"

    @pytest.mark.parametrize("way", ["resubmit", "function", "repair", "canary"])
    def test_an_edit_that_changes_the_session_makes_units_of_the_new_ones(
        self, broker: Broker, way: str
    ) -> None:
        make(broker)
        broker.create_queue("before")
        broker.sender("before").send([
            Message(b"%d" % n, session_id=f"old-{n % 7}", properties={"parity": str(n % 2)})
            for n in range(self.MANY)
        ])  # fmt: skip
        with broker.receiver("before") as receiver:
            receiver.dead_letter(receiver.receive(self.MANY), reason="Bad")
        numbers = [one.sequence_number for one in broker.dead_letters("before")]
        broker.update_queue("before", forward_to=QUEUE)
        commits = self._commits(broker)

        def move(letter: DeadLetter) -> Message:
            assert letter.message is not None
            changed = as_message(letter.message)
            return msgspec.structs.replace(changed, session_id=f"new-{int(changed.body) % 2}")

        match way:
            case "resubmit":
                broker.resubmit("before", numbers, edit=self.MOVE)
            case "function":
                broker.resubmit("before", numbers, edit=move)
            case _:
                few = 0 if way == "repair" else 10
                repair = broker.plan_repair("before", numbers, edit=self.MOVE, canary=few, in_flight=None)
                assert repair.status().sessions == 2
                repair.apply()
                repair.run()
        half = self.MANY // 2
        assert commits[-1] == {"new-0": half, "new-1": half}
        assert {size for counts in commits for size in counts.values()} == {half}
        # Each in the order in which they were.
        with next_session(broker) as session:
            received = session.receive(self.MANY)
            assert [int(one.body) for one in received] == sorted(int(one.body) for one in received)

    def test_lines_of_json(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        make(broker)
        broker.create_queue("plain")
        monkeypatch.setattr(send_command, "BATCH", 10)
        lines = [
            b'{"body": %d, "session_id": "%s"}\n' % (n, name)
            for name in (b"a", b"b", b"c")
            for n in range(25)
        ]
        for path, sizes in ((QUEUE, [25, 50, 75]), ("plain", [10, 20, 30, 40, 50, 60, 70, 75])):
            commits = self._commits(broker, path)
            units = look(store_of(broker), partial(goes_to_units, path=EntityPath.parse(path)))
            send_command.LineSender(broker.sender(path), Message(b""), units=units).run(lines, lambda: None)
            assert [sum(counts.values()) for counts in commits] == sizes

    def test_a_repair_by_number_is_refused(self, broker: Broker) -> None:
        make(broker)
        with pytest.raises(InvalidOption, match="sent together"):
            broker.plan_repair(QUEUE, 1, order="number")

    def test_what_waits_is_forwarded_as_a_unit(self, broker: Broker) -> None:
        make(broker)
        broker.create_queue("before")
        broker.sender("before").send([Message(b"%d" % n, session_id="a") for n in range(250)])
        commits = self._commits(broker)
        broker.update_queue("before", forward_to=QUEUE)
        with next_session(broker) as receiver:
            assert len(receiver.receive(1_000, max_wait=60)) == 250
        assert [sum(counts.values()) for counts in commits if counts] == [250]
