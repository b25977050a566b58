"""Repairs while others act: two operators, letters that go or die again, queues that change, clock jumps."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from lazaretto import (
    Broker,
    ManualClock,
    Message,
    PoisonPolicy,
    QuotaExceeded,
    Repair,
    RepairCounts,
    RepairPhase,
    RepairStatus,
)
from lazaretto.broker.broker import store_of
from lazaretto.engine.repairs.advance import LEASE, Advance, GiveUpRepair, TakeRepair

from .actions import bodies, create, fail, numbers, set_aside
from .conftest import Connect
from .test_repairs import complete_all, each, picture, plan, work

#: Why letters are skipped that another operator has sent.
TAKEN = {"already resubmitted", "dead-lettered again since it was selected"}


@pytest.fixture(autouse=True)
def queue(broker: Broker) -> None:
    create(broker, receive_retry_count=0)


class Steps:
    """A runner that goes on by so many letters as it is told to."""

    def __init__(self, broker: Broker, repair: Repair) -> None:
        self._store = store_of(broker)
        (number,) = [
            record.repair
            for record in self._store.read(lambda tx: list(tx.repairs.running()))
            if record.name == repair.name
        ]
        taken = self._store.run(TakeRepair(number))
        assert taken is not None
        self._taken = taken

    def go_on(self, letters: int) -> RepairPhase:
        return self._store.run(Advance(*self._taken, letters)).phase

    def give_up(self) -> None:
        """Let another runner go on."""
        self._store.run(GiveUpRepair(*self._taken))


def whys(repair: Repair) -> Counter[str | None]:
    return Counter(letter.why for letter in repair.letters(skipped=True))


class TestTwoOperators:
    """Their sets overlap: each letter is sent by one of them."""

    @pytest.mark.parametrize("seed", range(3))
    def test_by_turns(self, broker: Broker, seed: int) -> None:
        draw = random.Random(seed)
        letters = set_aside(broker, *[b"%d" % n for n in range(60)])
        repairs = [plan(broker, letters[:40]), plan(broker, letters[20:])]
        for repair in repairs:
            repair.apply()
        runners = [Steps(broker, repair) for repair in repairs]
        while any(repair.status().phase is RepairPhase.APPLYING for repair in repairs):
            draw.choice(runners).go_on(draw.randint(1, 9))
        counts = [repair.status().counts for repair in repairs]
        assert [found.left for found in counts] == [0, 0]
        assert sum(found.waiting for found in counts) == 60
        assert sum(found.skipped for found in counts) == 20
        assert set(whys(repairs[0]) + whys(repairs[1])) == {"already resubmitted"}
        assert sorted(map(int, complete_all(broker))) == list(range(60))
        assert numbers(broker.dead_letters("q")) == []

    def test_at_the_same_time(self, broker: Broker, connect: Connect) -> None:
        letters = set_aside(broker, *[b"%d" % n for n in range(600)])
        plan(broker, letters[:400], name="first")
        plan(broker, letters[200:], name="second")
        found: dict[str, RepairStatus] = {}

        def operate(name: str) -> None:
            repair = connect().repair(name)
            repair.apply()
            found[name] = repair.run()

        operators = [threading.Thread(target=operate, args=[name]) for name in ("first", "second")]
        for operator in operators:
            operator.start()
        for operator in operators:
            operator.join(120)
        assert [status.phase for status in found.values()] == [RepairPhase.DONE] * 2
        assert sum(status.counts.sent for status in found.values()) == 600
        assert sum(status.counts.skipped for status in found.values()) == 200
        assert sorted(map(int, complete_all(broker))) == list(range(600))
        assert broker.check() == []

    def test_one_undoes_while_the_other_applies(self, broker: Broker) -> None:
        letters = set_aside(broker, *[b"%d" % n for n in range(30)])
        before = picture(broker)
        first, second = plan(broker, letters), plan(broker, letters)
        first.apply()
        steps = Steps(broker, first)
        steps.go_on(20)
        first.undo()
        steps = Steps(broker, first)
        # Newest first: 10 to 19 are dead letters again, 0 to 9 are not yet.
        steps.go_on(10)
        second.apply()
        others = Steps(broker, second)
        others.go_on(15)
        assert second.status().counts == RepairCounts(left=15, waiting=5, skipped=10)
        while steps.go_on(3) is not RepairPhase.UNDONE:
            pass
        while others.go_on(4) is not RepairPhase.DONE:
            pass
        assert first.status().counts == RepairCounts(left=10, undone=20)
        assert second.status().counts == RepairCounts(left=0, waiting=20, skipped=10)
        assert bodies(broker.peek("q", 100)) == [b"%d" % n for n in range(10, 30)]
        second.undo()
        assert work(second) is RepairPhase.UNDONE
        assert picture(broker) == before

    def test_undoing_takes_nothing_of_the_others(self, broker: Broker) -> None:
        """A letter was sent by the first, died again, and was sent by the second: the first leaves it."""
        set_aside(broker, *each(b"12"))
        first = plan(broker)
        first.apply()
        work(first)
        fail(broker)
        (again,) = broker.dead_letters("q", messages=True)
        second = plan(broker)
        second.apply()
        work(second)
        first.undo()
        work(first)
        assert first.status().counts == RepairCounts(left=0, failed=1, undone=1)
        assert second.status().counts == RepairCounts(left=0, waiting=1)
        assert bodies(broker.peek("q", 10)) == bodies([again.message])


class TestLettersMeanwhile:
    """What becomes of letters between two commits of a repair."""

    def test_resolved_and_locked(self, broker: Broker) -> None:
        letters = set_aside(broker, *each(b"123456789"))
        repair = plan(broker)
        repair.apply()
        steps = Steps(broker, repair)
        steps.go_on(3)
        broker.purge("q", letters[3])
        broker.resubmit("q", letters[4])
        create(broker, "desk")
        broker.move_dead_letters("q", letters[5], "desk")
        receiver = broker.receiver("q", subqueue="dead_letter")
        (locked,) = receiver.receive(1)
        assert locked.sequence_number == letters[6]
        assert steps.go_on(100) is RepairPhase.DONE
        assert {letter.sequence_number: letter.why for letter in repair.letters(skipped=True)} == {
            letters[3]: "already purged",
            letters[4]: "already resubmitted",
            letters[5]: "already moved",
            letters[6]: "locked by a receiver of the dead-letter subqueue",
        }
        receiver.release(locked)
        assert numbers(broker.dead_letters("q")) == [letters[6]]
        repair.undo()
        work(repair)
        # What others did stays as it is.
        assert repair.status().counts == RepairCounts(left=0, skipped=4, undone=5)
        assert bodies(broker.peek("q", 10)) == [b"5"]
        assert bodies(broker.peek("desk", 10)) == [b"6"]
        assert broker.purged("q") == [letters[3]]

    def test_one_that_dies_again_is_not_sent_again(self, broker: Broker, clock: ManualClock) -> None:
        set_aside(broker, *each(b"1234"))
        repair = plan(broker)
        repair.apply()
        steps = Steps(broker, repair)
        steps.go_on(2)
        clock.advance(1)
        fail(broker)
        fail(broker)
        again = numbers(broker.dead_letters("q"))[-2:]
        # It does not seem to help; whoever lets it go on all the same does not send these once more.
        assert steps.go_on(100) is RepairPhase.STOPPED
        repair.resume()
        assert work(repair) is RepairPhase.DONE
        assert repair.status().counts == RepairCounts(left=0, waiting=2, failed=2)
        assert numbers(broker.dead_letters("q")) == again
        repair.undo()
        work(repair)
        assert repair.status().counts == RepairCounts(left=0, failed=2, undone=2)
        assert sorted(bodies(letter.message for letter in broker.dead_letters("q"))) == each(b"1234")

    def test_one_that_died_again_in_its_place(self, broker: Broker, clock: ManualClock) -> None:
        """A letter that keeps its number: it returned to its session, and died there again."""
        create(broker, "h", requires_session=True, receive_retry_count=0, on_poison_session="park")
        broker.sender("h").send([Message(b"%d" % n, session_id="a") for n in range(2)])
        with broker.receiver("h", session="a") as receiver:
            receiver.abandon(receiver.receive(1))
        (letter,) = broker.dead_letters("h")
        repair = plan(broker, path="h")
        clock.advance(1)
        broker.resubmit("h", letter.sequence_number)
        with broker.receiver("h", session="a") as receiver:
            receiver.abandon(receiver.receive(1))
        assert numbers(broker.dead_letters("h")) == [letter.sequence_number]
        repair.apply()
        work(repair)
        assert repair.status().counts == RepairCounts(left=0, skipped=1)
        assert set(whys(repair)) == {"dead-lettered again since it was selected"}


class TestQueuesMeanwhile:
    """What becomes of the queue."""

    def test_a_full_queue_takes_its_own_letters_back(self, broker: Broker) -> None:
        """Letters count for their queue's size: sending them back needs no room."""
        create(broker, "small", max_size=3000)
        set_aside(broker, *[b"x" * 500] * 2, path="small")
        before = picture(broker)
        repair = plan(broker, path="small")
        with pytest.raises(QuotaExceeded):
            for _ in range(10):
                broker.sender("small").send(Message(b"y" * 500))
        filled = len(broker.peek("small", 100))
        repair.apply()
        assert work(repair) is RepairPhase.DONE
        assert len(broker.peek("small", 100)) == filled + 2
        assert before[1] != picture(broker)[1]

    def test_halted_in_the_middle(self, broker: Broker) -> None:
        set_aside(broker, *each(b"1234"))
        repair = plan(broker)
        repair.apply()
        steps = Steps(broker, repair)
        steps.go_on(2)
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=0, on_poison="fault"))
        poison = fail(broker)
        assert steps.go_on(10) is RepairPhase.STOPPED
        assert repair.status().counts.left == 2
        broker.resume_queue("q", "retry")
        repair.resume()
        assert work(repair) is RepairPhase.DONE
        assert repair.status().counts == RepairCounts(left=0, waiting=4)
        assert poison in numbers(broker.peek("q", 10))

    @pytest.mark.parametrize("verb", ["apply", "undo"])
    def test_deleted_and_made_again(self, broker: Broker, verb: str) -> None:
        """A queue of the same name is another queue: nothing is sent to it, nothing taken from it."""
        set_aside(broker, *each(b"1234"))
        repair = plan(broker)
        repair.apply()
        steps = Steps(broker, repair)
        steps.go_on(2)
        if verb == "undo":
            repair.undo()
            steps = Steps(broker, repair)
            steps.go_on(1)
        broker.delete_queue("q")
        create(broker, receive_retry_count=0)
        set_aside(broker, b"other")
        broker.sender("q").send(Message(b"live"))
        after = picture(broker)
        phases = {"apply": RepairPhase.STOPPED, "undo": RepairPhase.UNDONE}
        assert steps.go_on(100) is phases[verb]
        assert picture(broker) == after
        assert repair.status().counts.sent + repair.status().counts.undone == 2

    def test_an_undo_of_letters_sent_to_a_queue_that_is_gone(self, broker: Broker) -> None:
        create(broker, "desk")
        set_aside(broker, *each(b"12"))
        repair = plan(broker, to="desk")
        repair.apply()
        steps = Steps(broker, repair)
        assert steps.go_on(1) is RepairPhase.APPLYING
        steps.give_up()
        broker.delete_queue("desk")
        assert work(repair) is RepairPhase.STOPPED
        repair.undo()
        assert work(repair) is RepairPhase.UNDONE
        counts = repair.status().counts
        assert (counts.left, counts.processed + counts.undone) == (1, 1)
        assert len(numbers(broker.dead_letters("q"))) == 1 + counts.undone
        assert broker.check() == []

    def test_a_changed_policy(self, broker: Broker) -> None:
        """Letters are treated by the policy that the queue has when they are handed out."""
        set_aside(broker, *each(b"1234"))
        before = picture(broker)
        repair = plan(broker)
        repair.apply()
        steps = Steps(broker, repair)
        steps.go_on(2)
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=1, on_poison="drop"))
        assert steps.go_on(10) is RepairPhase.DONE
        repair.undo()
        assert work(repair) is RepairPhase.UNDONE
        assert picture(broker) == before
        again = plan(broker)
        again.apply()
        work(again)
        for failures in (0, 1):
            assert again.status().counts.failed == 0, failures
            fail(broker)
        # It was dropped: nothing is left of it that could be sent again.
        assert numbers(broker.dead_letters("q")) == []
        assert len(broker.peek("q", 10)) == 3

    def test_a_smaller_size_refuses_what_an_edit_makes(self, broker: Broker) -> None:
        set_aside(broker, b'{"n": 1}', b'{"n": 2}')
        repair = plan(broker, edit='{"pad": "%s"}' % ("x" * 2000))
        broker.update_queue("q", max_message_size=1024)
        repair.apply()
        assert work(repair) is RepairPhase.DONE
        assert repair.status().counts == RepairCounts(left=0, skipped=2)
        assert all("cannot be sent" in (why or "") for why in whys(repair))
        assert len(numbers(broker.dead_letters("q"))) == 2

    def test_a_shorter_time_to_live(self, broker: Broker, clock: ManualClock) -> None:
        set_aside(broker, *each(b"12"))
        before = picture(broker)
        repair = plan(broker)
        broker.update_queue("q", default_time_to_live=60.0)
        repair.apply()
        work(repair)
        assert all(message.expires_at is not None for message in broker.peek("q", 10))
        repair.undo()
        work(repair)
        # As dead letters they do not expire.
        assert picture(broker) == before


class TestClocks:
    """A clock that jumps by a day, forward or back."""

    @pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
    def test_in_the_middle(self, broker: Broker, clock: ManualClock, jump: float) -> None:
        set_aside(broker, *[b"%d" % n for n in range(30)])
        before = picture(broker)
        repair = plan(broker)
        repair.apply()
        steps = Steps(broker, repair)
        steps.go_on(10)
        clock.advance(jump)
        # Whoever is at work goes on; with a lease that is over, another one may as well.
        steps.go_on(10)
        steps.give_up()
        assert work(repair) is RepairPhase.DONE
        assert repair.status().counts == RepairCounts(left=0, waiting=30)
        assert bodies(broker.peek("q", 100)) == [b"%d" % n for n in range(30)]
        repair.undo()
        steps = Steps(broker, repair)
        steps.go_on(10)
        clock.advance(-2 * jump)
        steps.give_up()
        assert work(repair) is RepairPhase.UNDONE
        assert picture(broker) == before

    @pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
    def test_a_rate_is_kept(self, broker: Broker, clock: ManualClock, jump: float) -> None:
        """The rate is by a clock that does not jump: there is no burst, and no wait of a day."""
        set_aside(broker, *[b"%d" % n for n in range(30)])
        repair = plan(broker, rate=100.0)
        repair.apply()
        began = time.monotonic()
        jumped = False

        def jumping() -> bool:
            nonlocal jumped
            if not jumped:
                clock.advance(jump)
                jumped = True
            return time.monotonic() - began > 120

        assert repair.run(until=jumping).phase is RepairPhase.DONE
        assert time.monotonic() - began > 0.1
        assert repair.status().counts == RepairCounts(left=0, waiting=30)

    @pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
    def test_during_a_canary(self, broker: Broker, clock: ManualClock, jump: float) -> None:
        """One that was not processed in time can be waited for again; nothing more was sent."""
        set_aside(broker, *each(b"123456"))
        repair = plan(broker, canary=2, canary_wait=60.0)
        repair.canary()
        steps = Steps(broker, repair)
        steps.go_on(10)
        clock.advance(jump)
        phase = steps.go_on(10)
        assert phase is (RepairPhase.INCONCLUSIVE if jump > 0 else RepairPhase.CANARY)
        assert repair.status().counts == RepairCounts(left=4, waiting=2)
        complete_all(broker)
        steps.give_up()
        if jump > 0:
            repair.canary()
        assert work(repair) is RepairPhase.PASSED

    def test_a_canary_ends_after_a_clock_was_put_back(self, broker: Broker, clock: ManualClock) -> None:
        set_aside(broker, *each(b"123456"))
        repair = plan(broker, canary=2, canary_wait=60.0)
        repair.canary()
        steps = Steps(broker, repair)
        steps.go_on(10)
        clock.advance(-86_400.0)
        assert steps.go_on(10) is RepairPhase.CANARY
        clock.advance(61.0)
        assert steps.go_on(10) is RepairPhase.INCONCLUSIVE

    def test_a_lease_that_a_jump_ends(self, broker: Broker, clock: ManualClock) -> None:
        set_aside(broker, *each(b"123456"))
        repair = plan(broker)
        repair.apply()
        first = Steps(broker, repair)
        first.go_on(2)
        clock.advance(LEASE + 1)
        second = Steps(broker, repair)
        first.go_on(2)
        assert repair.status().counts == RepairCounts(left=4, waiting=2)
        assert second.go_on(10) is RepairPhase.DONE
        assert bodies(broker.peek("q", 10)) == each(b"123456")
