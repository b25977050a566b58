"""A message that cannot be processed, in a conversation where order is the point."""

from __future__ import annotations

import pytest

from lazaretto import Broker, ManualClock, QueueDisabled
from lazaretto.errors import ConversationError, ConversationNotFound, InvalidOption

from .conftest import Connect
from .talk import (
    ORDER,
    ORDERING,
    SHOP,
    begin,
    bodies,
    fail,
    far,
    leftovers,
    read,
    read_all,
    services,
)


def fail_all(broker: Broker, times: int) -> list[bytes]:
    """Fail so often; return what was tried."""
    return [message.body for _ in range(times) for message in fail(broker)]


class TestHold:
    """The default: only this conversation waits, until an operator decides."""

    @pytest.fixture(autouse=True)
    def _services(self, broker: Broker) -> None:
        services(broker, failures=2)

    def test_neither_skipped_nor_in_the_way_of_others(self, broker: Broker) -> None:
        poisoned = begin(broker, b"1", b"2")
        assert fail_all(broker, 2) == [b"1", b"1"]
        other = begin(broker, b"3")
        assert bodies(read_all(broker)) == [b"3"]
        held = broker.dialogs.conversation(far(poisoned))
        assert held.held is not None
        assert "poison message 1 (MaxDeliveryCountExceeded)" in held.waits
        assert broker.dialogs.conversation(far(other)).held is None
        assert [c.conversation for c in broker.dialogs.conversations() if c.held] == [far(poisoned)]

    def test_another_conversation_of_its_group_goes_on(self, broker: Broker) -> None:
        one, two = begin(broker, b"1"), begin(broker, b"2")
        with broker.dialogs.transaction() as work:
            work.move_conversation(far(two), broker.dialogs.conversation(far(one)).group)
        assert fail_all(broker, 2) == [b"1", b"1"]
        assert bodies(read_all(broker)) == [b"2"]

    @pytest.mark.parametrize(
        ("verdict", "then"), [("retry", [b"1", b"2"]), ("move", [b"2"]), ("drop", [b"2"])]
    )
    def test_a_verdict_lets_it_go_on(self, broker: Broker, verdict: str, then: list[bytes]) -> None:
        handle = begin(broker, b"1", b"2")
        fail_all(broker, 2)
        assert read(broker) == []
        broker.dialogs.resume(far(handle), verdict)
        assert bodies(read_all(broker)) == then
        assert broker.queue("shop").counts.dead_letter == (1 if verdict == "move" else 0)

    def test_a_verdict_that_ends_it(self, broker: Broker) -> None:
        handle = begin(broker, b"1", b"2")
        fail_all(broker, 2)
        broker.dialogs.resume(far(handle), "end", error=(7, "sorry"))
        (answer,) = read(broker, "front")
        assert answer.error == (7, "sorry")
        assert {d.reason for d in broker.dead_letters("shop")} == {"ConversationEnded"}
        assert leftovers(broker) == []

    def test_of_a_batch_the_first_is_held_and_the_others_are_tried_again(self, broker: Broker) -> None:
        handle = begin(broker, b"1", b"2", b"3")
        for _ in range(2):
            fail(broker, most=3)
        held = broker.dialogs.conversation(far(handle)).held
        assert held is not None
        assert held.sequence_number == min(m.sequence_number for m in broker.peek("shop", 3))
        broker.dialogs.resume(far(handle), "drop")
        assert bodies(read_all(broker)) == [b"2", b"3"]

    def test_verdicts_on_what_is_not_held(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        with pytest.raises(ConversationError, match="not held"):
            broker.dialogs.resume(far(handle), "retry")
        with pytest.raises(InvalidOption, match="expected a verdict"):
            broker.dialogs.resume(far(handle), "forget")
        with pytest.raises(ConversationNotFound):
            broker.dialogs.resume("0" * 32 + "-i", "retry")

    def test_an_error_of_the_far_end_reaches_it_all_the_same(self, broker: Broker) -> None:
        handle = begin(broker, b"1", b"2")
        fail_all(broker, 2)
        broker.dialogs.end(handle, error=(1, "never mind"))
        (message,) = read(broker)
        assert message.error == (1, "never mind")

    def test_a_handler_that_says_invalid_answers_at_once(self, broker: Broker) -> None:
        begin(broker, b"1", b"2")
        with broker.dialogs.transaction("shop") as work:
            (message,) = work.receive()
            work.invalid(message, error="there is no such employee")
        (answer,) = read(broker, "front")
        assert answer.error is not None
        assert answer.error[0] == -9615
        assert [d.reason for d in broker.dead_letters("shop")] == ["InvalidMessage", "ConversationEnded"]
        assert leftovers(broker) == []


class TestEnd:
    @pytest.fixture(autouse=True)
    def _services(self, broker: Broker) -> None:
        services(broker, poison="end")

    def test_the_verdict_falls_at_the_fourth_failure(self, broker: Broker) -> None:
        begin(broker, b"1", b"2")
        assert fail_all(broker, 9) == [b"1"] * 4
        (answer,) = read(broker, "front")
        assert answer.error == (500, "Unable to process message.")
        dead = {(d.message.body if d.message else b"", d.reason) for d in broker.dead_letters("shop")}
        assert dead == {(b"1", "MaxDeliveryCountExceeded"), (b"2", "ConversationEnded")}
        assert leftovers(broker) == []

    def test_what_is_aside_cannot_be_sent_back_into_what_has_ended(self, broker: Broker) -> None:
        begin(broker, b"1")
        fail_all(broker, 4)
        (dead,) = broker.dead_letters("shop")
        report = broker.resubmit("shop", dead.sequence_number)
        assert [s.why for s in report.skipped] == ["its conversation has ended"]

    def test_a_lock_that_runs_out_counts(self, broker: Broker, clock: ManualClock) -> None:
        begin(broker, b"1")
        for _ in range(4):
            assert bodies(broker.dialogs.transaction("shop").receive()) == [b"1"]
            clock.advance(61)
        assert read(broker) == []
        assert read(broker, "front")[0].is_error


class TestSetAside:
    @pytest.fixture(autouse=True)
    def _services(self, broker: Broker) -> None:
        services(broker, poison="set_aside", failures=2)

    def test_the_conversation_goes_on_without_it(self, broker: Broker) -> None:
        handle = begin(broker, b"1", b"2", b"3")
        assert fail_all(broker, 2) == [b"1", b"1"]
        assert bodies(read_all(broker)) == [b"2", b"3"]
        kinds = [(e.kind, e.number) for e in broker.dialogs.timeline(handle) if e.end == "target"]
        assert kinds == [
            ("arrived", None),
            *[("failed", 1)] * 2,
            ("set_aside", 1),
            ("received", 2),
            ("received", 3),
        ]

    def test_it_may_be_repaired_and_sent_back(self, broker: Broker) -> None:
        from lazaretto import Message

        begin(broker, b"1", b"2")
        fail_all(broker, 2)
        read_all(broker)
        (dead,) = broker.dead_letters("shop")
        report = broker.resubmit("shop", dead.sequence_number, edit=lambda letter: Message(b"11"))
        assert report.skipped == []
        (again,) = read(broker)
        assert (again.type, again.body) == (ORDER, b"11")

    def test_a_reader_may_set_aside_by_itself(self, broker: Broker) -> None:
        begin(broker, b"1", b"2")
        with broker.dialogs.transaction("shop") as work:
            (message,) = work.receive()
            work.dead_letter(message, reason="UnknownPart", error="part 12 is not known")
        assert [d.reason for d in broker.dead_letters("shop")] == ["UnknownPart"]
        assert bodies(read_all(broker)) == [b"2"]

    def test_an_end_that_cannot_be_processed_ends_it_all_the_same(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        read_all(broker)
        broker.dialogs.end(handle)
        fail_all(broker, 2)
        assert leftovers(broker) == []


def test_a_message_sent_back_is_found_whatever_its_priority(broker: Broker, connect: Connect) -> None:
    services(broker, poison="set_aside", failures=1)
    broker.dialogs.create_priority("high", 8, contract=ORDERING)
    begin(broker, b"1")
    fail(broker)
    other = connect()
    assert read(other) == []
    (dead,) = other.dead_letters("shop")
    other.resubmit("shop", dead.sequence_number)
    assert bodies(read(other)) == [b"1"]


class TestDisable:
    @pytest.fixture(autouse=True)
    def _services(self, broker: Broker) -> None:
        services(broker, poison="disable")

    def test_five_rollbacks_in_a_row_switch_the_queue_off(self, broker: Broker) -> None:
        handle = begin(broker, b"1", b"2")
        assert fail_all(broker, 5) == [b"1"] * 5
        with pytest.raises(QueueDisabled):
            read(broker)
        assert "disabled" in broker.dialogs.conversation(far(handle)).waits
        # What is sent meanwhile waits, as in Service Broker's transmission queue.
        with broker.dialogs.transaction() as work:
            work.send(handle, ORDER, b"3")
        broker.resume_queue("shop")
        assert bodies(read_all(broker)) == [b"1", b"2", b"3"]

    def test_a_rollback_to_a_savepoint_does_not_count(self, broker: Broker) -> None:
        begin(broker, b"1")
        for _ in range(9):
            with broker.dialogs.transaction("shop") as work:
                point = work.savepoint()
                assert bodies(work.receive()) == [b"1"]
                point.rollback()
        (message,) = read(broker)
        assert message.delivery_count == 0


class TestDelay:
    def test_failures_apart_hold_only_this_conversation(self, broker: Broker, clock: ManualClock) -> None:
        services(broker, failures=3, retry_delay=10.0, poison="end")
        one = begin(broker, b"1", b"2")
        assert fail_all(broker, 2) == [b"1"]
        begin(broker, b"3")
        assert bodies(read_all(broker)) == [b"3"]
        assert "to retry its first message" in broker.dialogs.conversation(far(one)).waits
        for _ in range(2):
            clock.advance(11)
            assert fail_all(broker, 2) == [b"1"]
        assert read(broker, "front")[0].is_error


def test_a_thousandth_conversation_is_not_slower_for_poison_in_others(broker: Broker) -> None:
    """One hundred conversations, ten of them held: the ninety finish, each in its order."""
    services(broker, failures=1)
    handles = [begin(broker, b"%d" % n, b"%d" % (n + 1000)) for n in range(100)]
    done: dict[str, list[int]] = {}
    while True:
        try:
            with broker.dialogs.transaction("shop") as work:
                (message,) = work.receive() or (None,)
                if message is None:
                    break
                number = int(message.body)
                if number % 10 == 0 and number < 100:
                    raise RuntimeError("poison")
                done.setdefault(message.conversation, []).append(number)
        except RuntimeError:
            continue
    assert len(done) == 90
    assert all(numbers == [numbers[0], numbers[0] + 1000] for numbers in done.values())
    held = {c.conversation for c in broker.dialogs.conversations(queue="shop") if c.held}
    assert held == {far(handles[n]) for n in range(0, 100, 10)}
    listed = [c.conversation for c in broker.dialogs.conversations(held=True)]
    assert listed == sorted(held)
    pages = list[str]()
    while len(pages) < 10:
        after = pages[-1] if pages else ""
        found = list(broker.dialogs.conversations(queue="shop", held=True, after=after, limit=4))
        assert len(found) == min(4, 10 - len(pages))
        pages += [c.conversation for c in found]
    assert pages == listed
    assert list(broker.dialogs.conversations(queue="front", held=True)) == []
    assert list(broker.dialogs.conversations(limit=0)) == []
    for wrong in ({"limit": -1}, {"after": "x"}):
        with pytest.raises(InvalidOption, match="expected"):
            list(broker.dialogs.conversations(**wrong))


def test_both_stay_what_they_are(broker: Broker) -> None:
    """A change of a service's way with poison counts from the next failure on."""
    services(broker, failures=5)
    begin(broker, b"1")
    fail_all(broker, 2)
    broker.dialogs.create_service(SHOP, "shop", [ORDERING], poison="end", failures=3)
    fail_all(broker, 1)
    assert read(broker, "front")[0].error == (500, "Unable to process message.")
