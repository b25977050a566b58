"""Repairs: frozen sets of dead letters, sent back step by step, watched, and taken back."""

from __future__ import annotations

from typing import Any

import pytest

from lazaretto import (
    Broker,
    DeadLetterFilter,
    InvalidOption,
    LazarettoError,
    ManualClock,
    Message,
    NotAllowed,
    Repair,
    RepairCounts,
    RepairError,
    RepairNotFound,
    RepairPhase,
    StoreError,
)
from lazaretto.broker.broker import store_of
from lazaretto.commands import ExcludeLetters
from lazaretto.engine.repairs.advance import LEASE, Advance, TakeRepair

from . import talk
from .actions import bodies, create, fail, in_sql, kinds, numbers, send, set_aside, stored, take
from .conftest import Connect

ALL = DeadLetterFilter()


@pytest.fixture(autouse=True)
def queue(broker: Broker) -> None:
    create(broker, receive_retry_count=0)


def each(digits: bytes) -> list[bytes]:
    """Return a body for each digit."""
    return [b"%c" % digit for digit in digits]


def left_of(broker: Broker) -> list[int]:
    """Return the numbers of the dead letters that are there."""
    return numbers(broker.dead_letters("q"))


def plan(broker: Broker, which: Any = ALL, path: str = "q", **options: Any) -> Repair:
    options = {"canary": 0, "in_flight": None, **options}
    return broker.plan_repair(path, which, everything=True, **options)


def work(repair: Repair) -> RepairPhase:
    """Let a runner go on as long as something moves, and return the phase then."""
    before: object = None
    asked = 0

    def still() -> bool:
        nonlocal before, asked
        status = repair.status()
        asked = asked + 1 if (status.counts, status.phase) == before else 0
        before = status.counts, status.phase
        return asked > 2

    return repair.run(until=still).phase


def picture(broker: Broker) -> list[Any]:
    """Everything that a letter is made of, in the store."""
    messages = stored(
        broker,
        "SELECT key, state, due, expires, enqueued, message_id, session_id, deliveries, failures, "
        "worker_deaths, lock_expiries, delivery_count, cycle_attempts, cycle, moves, generation, deferred, "
        "enqueued_sequence_number, resubmitted_from, headers, suspect, coalesce(m.body, "
        "(SELECT b.body FROM lazaretto_bodies b WHERE b.body_id = m.body_id)) "
        "FROM lazaretto_messages m ORDER BY key",
    )
    letters = stored(broker, "SELECT * FROM lazaretto_dead_letters ORDER BY key")
    causes = stored(
        broker, "SELECT place, fingerprint, waiting, total FROM lazaretto_fingerprints ORDER BY 1, 2"
    )
    sessions = stored(broker, "SELECT * FROM lazaretto_sessions ORDER BY 1, 2")
    assert broker.check() == []
    return [messages, letters, causes, sessions]


def complete_all(broker: Broker, path: str = "q") -> list[bytes]:
    receiver = broker.receiver(path)
    done: list[bytes] = []
    while messages := receiver.receive(100):
        done += bodies(messages)
        receiver.complete(messages)
    return done


class TestPlan:
    """A set is frozen, and nothing is sent."""

    def test_what_is_known_of_it(self, broker: Broker, clock: ManualClock) -> None:
        set_aside(broker, b"1", b"2", reason="a")
        set_aside(broker, b"3", reason="b")
        status = broker.plan_repair("q", DeadLetterFilter(reason="a"), name="fix", actor="me").status()
        assert (status.name, status.queue, status.phase, status.letters) == (
            "fix",
            "q",
            RepairPhase.PLANNED,
            2,
        )
        assert (status.first, status.last, status.which, status.actor) == (1, 2, {"reason": "a"}, "me")
        assert (status.counts, status.canary, status.sessions) == (RepairCounts(left=2), 2, None)
        assert list(status.fingerprints.values()) == [2]
        assert status.next_verbs == ("canary", "apply", "cancel")
        assert numbers(broker.dead_letters("q")) == [1, 2, 3]
        assert broker.audit()[0].action == "repair: plan"

    def test_an_empty_filter_is_refused(self, broker: Broker) -> None:
        with pytest.raises(InvalidOption, match="everything=True"):
            broker.plan_repair("q", ALL)

    def test_names(self, broker: Broker) -> None:
        assert plan(broker).name == "repair-1"
        assert plan(broker, name="x").name == "x"
        with pytest.raises(RepairError, match="expected a name that is not in use, got 'x'"):
            plan(broker, name="x")
        with pytest.raises(RepairNotFound, match="no repair 'y'"):
            broker.repair("y")
        assert [status.name for status in broker.repairs()] == ["x", "repair-1"]
        assert [status.name for status in broker.repairs("q", limit=1)] == ["x"]

    def test_the_hash_tells_what_will_be_done(self, broker: Broker) -> None:
        set_aside(broker, b"1", b"2")
        create(broker, "other")
        digests = [
            plan(broker, which, **options).status().digest
            for which, options in (
                (ALL, {}),
                (ALL, {}),
                ([1], {}),
                (ALL, {"to": "other"}),
                (ALL, {"canary": 1}),
            )
        ]
        assert digests[0] == digests[1]
        assert len(set(digests)) == 4

    def test_a_destination_that_cannot_be(self, broker: Broker) -> None:
        with pytest.raises(NotAllowed, match="use resubmit"):
            plan(broker, to="q")

    def test_the_first_few(self, broker: Broker) -> None:
        set_aside(broker, *each(b"12345"))
        repair = plan(broker, limit=3)
        assert (repair.status().letters, repair.status().last) == (3, 3)

    def test_nothing_to_do(self, broker: Broker) -> None:
        repair = plan(broker, canary=10)
        repair.apply()
        assert work(repair) is RepairPhase.DONE


class TestApply:
    """Each letter of the frozen set once, and nothing else."""

    def test_all(self, broker: Broker) -> None:
        sent = set_aside(broker, *[b"%d" % n for n in range(25)])
        repair = plan(broker)
        later = set_aside(broker, b"later")
        repair.apply()
        assert work(repair) is RepairPhase.DONE
        assert repair.status().counts == RepairCounts(left=0, waiting=25)
        assert numbers(broker.dead_letters("q")) == later
        assert [letter.sequence_number for letter in repair.letters()] == sent
        assert complete_all(broker) == [b"%d" % n for n in range(25)]
        assert repair.status().counts == RepairCounts(left=0, processed=25)

    def test_a_message_is_of_a_new_generation(self, broker: Broker) -> None:
        set_aside(broker, b"x" * 5000)
        repair = plan(broker)
        repair.apply()
        work(repair)
        message = take(broker)
        assert (message.body, message.generation, message.attempt) == (b"x" * 5000, 1, 2)
        assert broker.dead_letter("q", 1).resubmitted_as == message.sequence_number

    def test_what_somebody_else_did_is_skipped(self, broker: Broker) -> None:
        set_aside(broker, *each(b"12345"))
        repair = plan(broker)
        broker.purge("q", [1])
        broker.resubmit("q", [2])
        take(broker, "q;poison")
        repair.apply()
        work(repair)
        assert repair.status().counts == RepairCounts(left=0, waiting=2, skipped=3)
        assert [(letter.sequence_number, letter.why) for letter in repair.letters(skipped=True)] == [
            (1, "already purged"),
            (2, "already resubmitted"),
            (3, "locked by a receiver of the dead-letter subqueue"),
        ]

    def test_one_that_died_again_meanwhile(self, broker: Broker, clock: ManualClock) -> None:
        set_aside(broker, b"1")
        repair = plan(broker)
        clock.advance(1)
        broker.resubmit("q", [1])
        fail(broker)
        repair.apply()
        work(repair)
        assert repair.status().counts == RepairCounts(left=0, skipped=1)
        assert len(list(broker.dead_letters("q"))) == 1

    def test_overlapping_sets(self, broker: Broker) -> None:
        set_aside(broker, *each(b"1234"))
        first, second = plan(broker, [1, 2, 3]), plan(broker, [2, 3, 4])
        for repair in (first, second):
            repair.apply()
            work(repair)
        assert first.status().counts == RepairCounts(left=0, waiting=3)
        assert second.status().counts == RepairCounts(left=0, waiting=1, skipped=2)
        assert complete_all(broker) == [b"1", b"2", b"3", b"4"]

    def test_to_another_queue(self, broker: Broker) -> None:
        create(broker, "other")
        set_aside(broker, b"1", b"2" * 4000, reason="why")
        before = picture(broker)
        repair = plan(broker, to="other")
        repair.apply()
        work(repair)
        assert [(letter.outcome, letter.queue) for letter in repair.letters()] == [("waiting", "other")] * 2
        assert bodies(broker.peek("other", 10)) == [b"1", b"2" * 4000]
        repair.undo()
        assert work(repair) is RepairPhase.UNDONE
        assert picture(broker) == before

    def test_a_full_destination_stops_it(self, broker: Broker) -> None:
        create(broker, "small", max_size=2000)
        set_aside(broker, *[b"%d" % n * 500 for n in range(1, 6)])
        repair = plan(broker, to="small")
        repair.apply()
        assert work(repair) is RepairPhase.STOPPED
        status = repair.status()
        assert status.why is not None
        assert "is full" in status.why
        assert 0 < status.counts.sent < 5
        while status.counts.left:
            complete_all(broker, "small")
            repair.resume()
            work(repair)
            status = repair.status()
        complete_all(broker, "small")
        assert repair.status().counts == RepairCounts(left=0, processed=5)

    def test_a_queue_that_forwards(self, broker: Broker) -> None:
        create(broker, "next")
        set_aside(broker, b"1", b"2")
        before = picture(broker)
        broker.update_queue("q", forward_to="next")
        repair = plan(broker)
        repair.apply()
        work(repair)
        assert bodies(broker.peek("next", 10)) == [b"1", b"2"]
        assert repair.status().counts == RepairCounts(left=0, waiting=2)
        repair.undo()
        work(repair)
        assert picture(broker) == before

    def test_transfer_dead_letters(self, broker: Broker) -> None:
        create(broker, "gone")
        with broker.sender("gone", via="q") as sender:
            broker.delete_queue("gone")
            sender.send([Message(b"1"), Message(b"2")])
        path = "q/$Transfer/$deadletterqueue"
        before = picture(broker)
        repair = plan(broker, path=path)
        assert repair.status().letters == 2
        repair.apply()
        work(repair)
        assert bodies(broker.peek("q", 10)) == [b"1", b"2"]
        repair.undo()
        work(repair)
        assert picture(broker) == before

    def test_a_subscription(self, broker: Broker) -> None:
        broker.create_topic("t")
        for name in ("a", "b"):
            broker.create_subscription("t", name)
        broker.sender("t").send([Message(b"1"), Message(b"2" * 3000)])
        path = "t/subscriptions/a"
        receiver = broker.receiver(path)
        receiver.dead_letter(receiver.receive(2))
        before = picture(broker)
        repair = plan(broker, path=path)
        repair.apply()
        work(repair)
        assert bodies(broker.peek(path, 10)) == [b"1", b"2" * 3000]
        assert len(broker.peek("t/subscriptions/b", 10)) == 2
        repair.undo()
        work(repair)
        assert picture(broker) == before

    def test_phases_are_told(self, broker: Broker) -> None:
        set_aside(broker, b"1")
        repair = plan(broker, name="fix")
        repair.apply(actor="me")
        work(repair)
        assert kinds(broker.events(kind="repair_changed")) == ["repair_changed"] * 2
        done, applied, planned = broker.audit(limit=3)
        assert (planned.action, applied.action, done.action) == (
            "repair: plan", "repair: apply", "repair: nothing left to send",
        )  # fmt: skip
        assert (applied.actor, applied.detail["numbers"], applied.detail["sent"]) == ("me", "1-1", 0)
        assert (done.detail["phase"], done.detail["sent"]) == ("done", 1)

    @pytest.mark.parametrize("verb", ["pause", "resume", "undo"])
    def test_what_cannot_be_done_now(self, broker: Broker, verb: str) -> None:
        with pytest.raises(RepairError, match="what can be done now: canary, apply, cancel"):
            getattr(plan(broker), verb)()


class TestPace:
    """A window that grows while letters are processed, a rate, a stop rule."""

    def test_no_more_than_the_window_is_in_flight(self, broker: Broker) -> None:
        set_aside(broker, *[b"%d" % n for n in range(30)])
        repair = plan(broker, in_flight=10)
        repair.apply()
        seen = []
        while work(repair) is RepairPhase.APPLYING:
            seen.append(repair.status().counts.waiting)
            complete_all(broker)
        assert seen == [1, 2, 5, 10, 10]
        complete_all(broker)
        assert repair.status().counts == RepairCounts(left=0, processed=30)

    def test_a_repair_that_does_not_help_stops(self, broker: Broker) -> None:
        set_aside(broker, *[b"%d" % n for n in range(30)])
        repair = plan(broker, in_flight=10)
        repair.apply()
        work(repair)
        fail(broker)
        assert work(repair) is RepairPhase.STOPPED
        status = repair.status()
        assert status.counts == RepairCounts(left=29, failed=1)
        assert status.why is not None
        assert status.why.startswith("1 of the last 1 letters failed again: at least 21 % of all will")
        repair.resume()
        assert work(repair) is RepairPhase.APPLYING
        assert repair.status().counts == RepairCounts(left=28, waiting=1, failed=1)

    def test_a_canary_that_fails(self, broker: Broker) -> None:
        set_aside(broker, *[b"%d" % n for n in range(30)])
        repair = plan(broker, canary=4)
        repair.canary()
        assert work(repair) is RepairPhase.CANARY
        assert repair.status().counts == RepairCounts(left=26, waiting=4)
        fail(broker)
        assert work(repair) is RepairPhase.FAILED
        with pytest.raises(RepairError):
            repair.apply()
        repair.undo()
        work(repair)
        assert repair.status().counts == RepairCounts(left=26, failed=1, undone=3)

    def test_a_canary_goes_on_without_what_failed(self, broker: Broker) -> None:
        set_aside(broker, *[b"%d" % n for n in range(8)])
        repair = plan(broker, canary=2)
        repair.canary()
        work(repair)
        fail(broker)
        assert work(repair) is RepairPhase.FAILED
        (failed,) = [letter.sequence_number for letter in repair.letters(failed=True)]
        broker.run(ExcludeLetters(name=repair.name, sequence_numbers=(failed,)), actor="ana")
        assert work(repair) is RepairPhase.CANARY
        assert len(complete_all(broker)) == 1
        assert work(repair) is RepairPhase.PASSED
        repair.apply()
        assert work(repair) is RepairPhase.DONE
        assert len(complete_all(broker)) == 6
        assert repair.status().counts == RepairCounts(left=0, processed=7, skipped=1)
        (skipped,) = repair.letters(skipped=True)
        assert (skipped.sequence_number, skipped.why) == (failed, "taken out by ana")
        assert len(left_of(broker)) == 1

    def test_letters_are_taken_out_before_they_are_sent(self, broker: Broker) -> None:
        set_aside(broker, *[b"%d" % n for n in range(6)])
        first, *_, last = left_of(broker)
        repair = plan(broker)
        broker.run(ExcludeLetters(name=repair.name, sequence_numbers=(first, last)), actor="ana")
        assert repair.preview().skipped == {"taken out by ana": 2}
        for wrong in (first, last + 1):
            with pytest.raises(RepairError, match=r"taken out already|is not in the repair"):
                broker.run(ExcludeLetters(name=repair.name, sequence_numbers=(wrong,)))
        repair.apply()
        assert work(repair) is RepairPhase.DONE
        assert repair.status().counts == RepairCounts(left=0, waiting=4, skipped=2)
        assert left_of(broker) == [first, last]
        with pytest.raises(RepairError, match="which is done"):
            broker.run(ExcludeLetters(name=repair.name, sequence_numbers=(first,)))
        repair.undo()
        assert work(repair) is RepairPhase.UNDONE
        assert len(left_of(broker)) == 6

    def test_a_canary_that_passes(self, broker: Broker) -> None:
        set_aside(broker, *[b"%d" % n for n in range(9)], reason="a")
        set_aside(broker, b"9", reason="b")
        repair = plan(broker, canary=4)
        repair.canary()
        work(repair)
        # One of each kind at least.
        assert b"9" in complete_all(broker)
        assert work(repair) is RepairPhase.PASSED
        repair.apply()
        assert work(repair) is RepairPhase.DONE
        assert len(complete_all(broker)) == 6

    def test_a_canary_that_nobody_processes(self, broker: Broker, clock: ManualClock) -> None:
        set_aside(broker, b"1", b"2")
        repair = plan(broker, canary=1, canary_wait=5)
        repair.canary()
        work(repair)
        clock.advance(6)
        assert work(repair) is RepairPhase.INCONCLUSIVE
        repair.canary()
        complete_all(broker)
        assert work(repair) is RepairPhase.PASSED

    def test_pause_resume_and_cancel(self, broker: Broker) -> None:
        set_aside(broker, *each(b"123"))
        repair = plan(broker, in_flight=1)
        repair.apply()
        work(repair)
        repair.pause()
        complete_all(broker)
        assert work(repair) is RepairPhase.PAUSED
        assert repair.status().counts == RepairCounts(left=2, processed=1)
        repair.resume()
        assert work(repair) is RepairPhase.APPLYING
        assert repair.status().counts == RepairCounts(left=0, waiting=2, processed=1) or (
            repair.status().counts.waiting == 1
        )
        repair.cancel()
        assert work(repair) is RepairPhase.CANCELLED

    def test_the_pace_can_be_changed(self, broker: Broker) -> None:
        set_aside(broker, *each(b"123456"))
        repair = plan(broker, in_flight=1)
        repair.apply()
        work(repair)
        repair.set_pace(in_flight=None, rate=None)
        assert work(repair) is RepairPhase.DONE
        with pytest.raises(InvalidOption, match="letters a second"):
            repair.set_pace(in_flight=1, rate=0)

    @pytest.mark.parametrize("what", ["disabled", "halted", "breaker", "deleted"])
    def test_what_stops_it(self, broker: Broker, what: str) -> None:
        set_aside(broker, *each(b"123"))
        repair = plan(broker, in_flight=1)
        repair.apply()
        work(repair)
        match what:
            case "disabled":
                broker.set_status("q", "disabled")
            case "halted":
                broker.update_queue("q", policy=lazaretto_fault())
                fail(broker)
            case "breaker":
                broker.set_breaker("q", "open")
            case "deleted":
                broker.delete_queue("q")
        assert work(repair) is RepairPhase.STOPPED
        why = repair.status().why
        assert why is not None
        assert {"disabled": "is disabled", "halted": "is halted by a poison message",
                "breaker": "the breaker of 'q' is open", "deleted": "was deleted"}[what] in why  # fmt: skip
        if what == "deleted":
            repair.undo()
            assert work(repair) is RepairPhase.UNDONE


def lazaretto_fault() -> Any:
    from lazaretto import Disposition, PoisonPolicy

    return PoisonPolicy(receive_retry_count=0, on_poison=Disposition.FAULT)


class TestUndo:
    """Byte for byte, what nobody was handed."""

    def test_all(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, "timed", default_time_to_live=1000.0)
        for path in ("q", "timed"):
            set_aside(broker, b"1", b"2" * 3000, path=path)
            broker.sender(path).send(Message(b"3", properties={"a": 1}, time_to_live=60, message_id="m"))
            fail(broker, path) if path == "q" else set_aside_next(broker, path)
            # One was handed out there, and given back.
            receiver = broker.receiver(f"{path};poison")
            receiver.abandon(receiver.receive(1))
        before = picture(broker)
        clock.advance(10)
        repairs = [plan(broker, path=path) for path in ("q", "timed")]
        for repair in repairs:
            repair.apply()
            work(repair)
        assert picture(broker) != before
        for repair in reversed(repairs):
            repair.undo()
            assert work(repair) is RepairPhase.UNDONE
        assert picture(broker) == before
        # The numbers that were taken back are not given again.
        assert send(broker, b"new") > 6

    def test_what_was_handed_out_stays(self, broker: Broker) -> None:
        set_aside(broker, *each(b"1234"))
        repair = plan(broker)
        repair.apply()
        work(repair)
        receiver = broker.receiver("q")
        first, second = receiver.receive(2)
        receiver.complete(first)
        receiver.release(second)
        repair.undo()
        work(repair)
        assert repair.status().counts == RepairCounts(left=0, waiting=1, processed=1, undone=2)
        assert [letter.outcome for letter in repair.letters()] == ["processed", "waiting", "undone", "undone"]
        assert numbers(broker.dead_letters("q")) == [3, 4]

    def test_another_repair_takes_what_was_taken_back(self, broker: Broker) -> None:
        set_aside(broker, *each(b"123"))
        first = plan(broker)
        first.apply()
        work(first)
        first.undo()
        work(first)
        second = plan(broker)
        second.apply()
        work(second)
        assert second.status().counts == RepairCounts(left=0, waiting=3)
        assert first.status().counts == RepairCounts(left=0, undone=3)

    def test_from_the_middle(self, broker: Broker) -> None:
        set_aside(broker, *[b"%d" % n for n in range(9)])
        before = picture(broker)
        repair = plan(broker, in_flight=3)
        repair.set_pace(in_flight=5, rate=None)
        repair.apply()
        work(repair)
        repair.undo()
        work(repair)
        assert repair.status().counts == RepairCounts(left=8, undone=1)
        assert picture(broker) == before


def set_aside_next(broker: Broker, path: str) -> None:
    receiver = broker.receiver(path)
    receiver.dead_letter(receiver.receive(1), reason="Manual")


class TestEdit:
    """Letters that are changed on their way."""

    @pytest.fixture
    def letters(self, broker: Broker) -> list[int]:
        return set_aside(
            broker, b'{"n": 1.10, "region": null}', b'{"n": 2, "region": "eu"}', b"no JSON", b'{"n": 4}'
        )

    def test_what_it_changes(self, broker: Broker, letters: list[int]) -> None:
        before = picture(broker)
        repair = plan(broker, edit='{"region": "eu"}')
        found = repair.preview()
        assert (found.looked_at, found.changed, found.unchanged, found.to) == (4, 2, 1, "q")
        assert [(why[:21], count) for why, count in found.skipped.items()] == [("the edit refuses it: ", 1)]
        assert [example.sequence_number for example in found.examples] == [1, 4]
        assert "region" in "".join(found.examples[0].difference)
        assert picture(broker) == before
        repair.apply()
        work(repair)
        assert repair.status().counts == RepairCounts(left=0, waiting=3, skipped=1)
        sent = broker.peek("q", 10)
        assert sorted(bodies(sent)) == [
            b'{"n": 1.10, "region": "eu"}', b'{"n": 2, "region": "eu"}', b'{"n": 4, "region": "eu"}',
        ]  # fmt: skip
        assert [m.edit_of is not None for m in sorted(sent, key=lambda m: m.body)] == [True, False, True]
        repair.undo()
        work(repair)
        assert picture(broker) == before

    def test_to_another_queue(self, broker: Broker, letters: list[int]) -> None:
        create(broker, "other")
        before = picture(broker)
        repair = plan(broker, edit="SET body.region = 'us'", to="other", canary=2)
        repair.canary()
        work(repair)
        complete_all(broker, "other")
        assert work(repair) is RepairPhase.PASSED
        repair.apply()
        work(repair)
        repair.undo()
        work(repair)
        counts = repair.status().counts
        assert (counts.skipped, counts.processed + counts.undone) == (1, 3)
        assert picture(broker)[0] != before[0]

    def test_large_bodies(self, broker: Broker) -> None:
        set_aside(broker, b'{"pad": "%s"}' % (b"x" * 5000))
        before = picture(broker)
        repair = plan(broker, edit='[{"op": "add", "path": "/fixed", "value": true}]')
        repair.apply()
        work(repair)
        assert b'"fixed": true' in bodies(broker.peek("q", 1))[0]
        repair.undo()
        work(repair)
        assert picture(broker) == before

    def test_the_hash_knows_the_edit(self, broker: Broker, letters: list[int]) -> None:
        edits = ('{"a": 1}', '{"a": 2}', None)
        assert len({plan(broker, edit=edit).status().digest for edit in edits}) == 3

    @pytest.mark.parametrize("edit", ["SET", "{", "nowhere_at_all:mend", 5])
    def test_what_is_no_edit(self, broker: Broker, edit: Any) -> None:
        with pytest.raises(LazarettoError):
            plan(broker, edit=edit)


class TestPreview:
    """What would happen now."""

    def test_what_would_be_skipped(self, broker: Broker) -> None:
        set_aside(broker, *each(b"123"))
        repair = plan(broker)
        take(broker, "q;poison")
        found = repair.preview(letters=None)
        assert (found.letters, found.looked_at, found.stops, found.bytes) == (3, 3, None, 3)
        assert found.skipped == {"locked by a receiver of the dead-letter subqueue": 1}
        broker.set_status("q", "disabled")
        assert repair.preview().stops == "'q' is disabled"

    def test_duplicates_of_the_target(self, broker: Broker) -> None:
        create(broker, "once", requires_duplicate_detection=True)
        numbers_ = set_aside(broker, b"1")
        (letter,) = broker.dead_letters("q")
        send(broker, b"1", path="once", message_id=letter.message_id)
        assert plan(broker, numbers_, to="once").preview().duplicates == 1

    def test_some_of_many(self, broker: Broker) -> None:
        set_aside(broker, *[b"x"] * 100)
        assert plan(broker).preview(letters=20).looked_at == 20


class TestRunner:
    """One at a time, fenced."""

    def test_a_runner_that_lost_its_lease_changes_nothing(self, broker: Broker, clock: ManualClock) -> None:
        set_aside(broker, *each(b"123"))
        repair = plan(broker)
        repair.apply()
        store = store_of(broker)
        taken = store.run(TakeRepair())
        assert taken is not None
        assert store.run(TakeRepair()) is None
        clock.advance(LEASE + 1)
        again = store.run(TakeRepair())
        assert again is not None
        assert store.run(Advance(*taken, 10)).lost
        assert repair.status().counts == RepairCounts(left=3)
        assert store.run(Advance(*again, 2)).letters == 2

    def test_a_clock_that_is_put_back(self, broker: Broker, clock: ManualClock) -> None:
        set_aside(broker, b"1")
        repair = plan(broker)
        repair.apply()
        store = store_of(broker)
        assert store.run(TakeRepair()) is not None
        clock.advance(-86_400)
        assert store.run(TakeRepair()) is not None

    @pytest.mark.parametrize("jump", [-86_400, 86_400])
    def test_clocks_that_jump_change_no_set(self, broker: Broker, clock: ManualClock, jump: float) -> None:
        set_aside(broker, *each(b"123"))
        repair = plan(broker)
        clock.advance(jump)
        later = set_aside(broker, b"4")
        repair.apply()
        assert work(repair) is RepairPhase.DONE
        assert repair.status().counts == RepairCounts(left=0, waiting=3)
        assert numbers(broker.dead_letters("q")) == later

    def test_a_commit_that_fails_is_done_again(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        set_aside(broker, *each(b"123"))
        repair = plan(broker)
        repair.apply()
        store, failures = store_of(broker), [StoreError("a fault")]
        run = Advance.run

        def failing(self: Advance, tx: Any) -> Any:
            done = run(self, tx)
            if failures:
                raise failures.pop()
            return done

        monkeypatch.setattr(Advance, "run", failing)
        taken = store.run(TakeRepair())
        assert taken is not None
        with pytest.raises(StoreError, match="a fault"):
            store.run(Advance(*taken, 10))
        assert repair.status().counts == RepairCounts(left=3)
        store.run(Advance(*taken, 10))
        assert repair.status().counts == RepairCounts(left=0, waiting=3)


class TestSessions:
    """Letters of a session keep their order, and are never split between the canary and the rest."""

    @pytest.fixture
    def letters(self, broker: Broker) -> list[int]:
        create(broker, "s", requires_session=True, receive_retry_count=0)
        with broker.sender("s") as sender:
            sender.send(
                [Message(b"%d-%d" % (turn, n), session_id=f"s{n}") for turn in range(10) for n in range(10)]
            )
        for n in range(10):
            with broker.receiver("s", session=f"s{n}") as receiver:
                receiver.dead_letter(receiver.receive(10), reason="why")
        return numbers(broker.dead_letters("s"))

    def test_order(self, broker: Broker, letters: list[int]) -> None:
        before = picture(broker)
        repair = plan(broker, path="s", canary=15)
        status = repair.status()
        assert (status.order, status.sessions, status.canary) == ("session", 10, 10)
        repair.canary()
        work(repair)
        seen: dict[str, list[bytes]] = {}
        (one,) = broker.sessions("s")
        with broker.receiver("s", session=one) as receiver:
            messages = receiver.receive(100)
            seen[one] = bodies(messages)
            receiver.complete(messages)
        assert work(repair) is RepairPhase.PASSED
        repair.apply()
        work(repair)
        for session in broker.sessions("s"):
            seen[session] = [m.body for m in broker.peek("s", 1000) if m.session_id == session]
        assert seen == {f"s{n}": [b"%d-%d" % (turn, n) for turn in range(10)] for n in range(10)}
        repair.undo()
        work(repair)
        assert repair.status().counts == RepairCounts(left=0, processed=10, undone=90)
        assert before[1] != picture(broker)[1]

    def test_undo(self, broker: Broker, letters: list[int]) -> None:
        before = picture(broker)
        repair = plan(broker, path="s")
        repair.apply()
        work(repair)
        repair.undo()
        work(repair)
        assert picture(broker) == before

    def test_by_number(self, broker: Broker, letters: list[int]) -> None:
        repair = plan(broker, path="s", order="number")
        repair.apply()
        work(repair)
        sent = [m.body for m in broker.peek("s", 1000)]
        assert sent == [b"%d-%d" % (turn, n) for turn in range(10) for n in range(10)]

    def test_a_held_place(self, broker: Broker) -> None:
        create(broker, "h", requires_session=True, receive_retry_count=0, on_poison_session="park")
        with broker.sender("h") as sender:
            sender.send([Message(b"%d" % n, session_id="a") for n in range(3)])
        with broker.receiver("h", session="a") as receiver:
            receiver.abandon(receiver.receive(1))
        assert [held.session_id for held in broker.held_sessions("h")] == ["a"]
        before = picture(broker)
        repair = plan(broker, path="h")
        repair.apply()
        work(repair)
        assert broker.held_sessions("h") == []
        assert bodies(broker.peek("h", 10)) == [b"0", b"1", b"2"]
        repair.undo()
        work(repair)
        assert picture(broker) == before
        again = plan(broker, path="h")
        again.apply()
        work(again)
        with broker.receiver("h", session="a") as receiver:
            receiver.abandon(receiver.receive(1))
        assert again.status().counts == RepairCounts(left=0, failed=1)


class TestKept:
    """What is kept of repairs, and for how long."""

    def test_a_month(self, broker: Broker, clock: ManualClock) -> None:
        from lazaretto.engine.timers import CleanUp

        set_aside(broker, b"1")
        repair = plan(broker)
        repair.apply()
        work(repair)
        clock.advance(29 * 86_400)
        store_of(broker).run(CleanUp())
        assert repair.status().counts.sent == 1
        clock.advance(2 * 86_400)
        while store_of(broker).run(CleanUp()):
            pass
        with pytest.raises(RepairNotFound):
            repair.status()
        tables = ("repairs", "repair_members", "repair_items", "repair_originals")
        assert [stored(broker, f"SELECT count(*) FROM lazaretto_{name}") for name in tables] == [[(0,)]] * 4


def test_two_brokers(broker: Broker, connect: Connect) -> None:
    set_aside(broker, *each(b"12"))
    repair = plan(broker, name="fix")
    other = connect().repair("fix")
    other.apply()
    work(repair)
    assert other.status().phase is RepairPhase.DONE
    assert in_sql(broker, "?") in ("?", "%s")


def test_dialogs(broker: Broker) -> None:
    """A letter of a dialog goes back into its stream; one whose dialog is over is skipped."""
    talk.services(broker, poison="set_aside", failures=1)
    handles = [talk.begin(broker, b"1"), talk.begin(broker, b"2")]
    for _ in handles:
        talk.fail(broker)
    before = picture(broker)
    repair = plan(broker, path="shop")
    repair.apply()
    assert work(repair) is RepairPhase.DONE
    assert repair.status().counts == RepairCounts(left=0, waiting=2)
    repair.undo()
    work(repair)
    assert picture(broker) == before
    again = plan(broker, path="shop")
    broker.dialogs.end(handles[0], error=(1, "no more"))
    talk.read_all(broker)
    assert again.preview().skipped
    again.apply()
    work(again)
    assert again.status().counts == RepairCounts(left=0, waiting=1, skipped=1)
    assert talk.bodies(talk.read_all(broker)) == [b"2"]
