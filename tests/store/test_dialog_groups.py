"""Groups of conversations, their priorities, how long they are kept, and their cleaning up."""

from __future__ import annotations

import pytest

from lazaretto import Broker, ManualClock, NotAllowed
from lazaretto.errors import (
    ConversationError,
    ConversationLocked,
    MessageLockLost,
    SessionLockLost,
)

from .talk import (
    FRONT,
    NOTE,
    ORDER,
    ORDERING,
    RECEIPT,
    SHOP,
    begin,
    bodies,
    far,
    leftovers,
    read,
    send,
    services,
)


@pytest.fixture(autouse=True)
def _services(broker: Broker) -> None:
    services(broker)


class TestGroups:
    def test_one_reader_of_a_group_at_a_time(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        first = broker.dialogs.transaction("shop")
        assert bodies(first.receive()) == [b"1"]
        send(broker, handle, body=b"2")
        assert read(broker) == []
        with pytest.raises(ConversationLocked):
            read(broker, conversation=far(handle))
        # Who has the lock may go on.
        assert bodies(first.receive()) == [b"2"]
        first.commit()
        assert read(broker) == []

    def test_another_group_meanwhile(self, broker: Broker) -> None:
        begin(broker, b"1")
        begin(broker, b"2")
        with broker.dialogs.transaction("shop") as work:
            one = work.receive(max_messages=10)
            assert len(one) == 1
            other = read(broker)
            assert sorted(bodies(one + other)) == [b"1", b"2"]

    def test_messages_of_one_group_come_from_all_its_conversations(self, broker: Broker) -> None:
        with broker.dialogs.transaction() as work:
            one = work.begin_dialog(FRONT, SHOP, ORDERING)
            work.send(one, ORDER, b"1")
        group = broker.dialogs.conversation(one).group
        with broker.dialogs.transaction() as work:
            two = work.begin_dialog(FRONT, SHOP, ORDERING, group=group)
            work.send(two, ORDER, b"2")
        for handle, text in ((one, b"a"), (two, b"b")):
            send(broker, far(handle), NOTE, text)
        assert bodies(read(broker, "front")) == [b"a", b"b"]

    def test_state_is_read_before_the_message(self, broker: Broker) -> None:
        handle = begin(broker, b"1", b"2")
        for seen in (None, b"one"):
            with broker.dialogs.transaction("shop") as work:
                found = work.get_conversation_group()
                assert found is not None
                group, before = found
                assert before == seen
                (message,) = work.receive(group=group)
                assert message.group == group
                work.set_group_state(group, b"one")
        broker.dialogs.end(handle)
        read(broker)
        assert leftovers(broker) == []

    def test_state_is_rolled_back_with_the_rest(self, broker: Broker) -> None:
        begin(broker, b"1")
        with pytest.raises(ZeroDivisionError), broker.dialogs.transaction("shop") as work:
            found = work.get_conversation_group()
            assert found is not None
            work.set_group_state(found[0], b"x")
            raise ZeroDivisionError
        with broker.dialogs.transaction("shop") as work:
            found = work.get_conversation_group()
            assert found is not None
            assert found[1] is None

    def test_state_is_what_was_set_last(self, broker: Broker) -> None:
        begin(broker, b"1")
        with broker.dialogs.transaction("shop") as work:
            found = work.get_conversation_group()
            assert found is not None
            work.set_group_state(found[0], b"new")
            work.receive(group=found[0])
            work.renew_locks()
            assert work.group_state(found[0]) == b"new"

    def test_state_set_with_the_last_message_is_forgotten(self, broker: Broker) -> None:
        broker.dialogs.end(begin(broker, b"1"))
        with broker.dialogs.transaction("shop") as work:
            message, _ = work.receive(max_messages=2)
            work.set_group_state(message.group, b"done")
        assert leftovers(broker) == []

    def test_groups_of_several_priorities_in_one_transaction(self, broker: Broker) -> None:
        begin(broker, b"5")
        broker.dialogs.create_priority("p", 8, contract=ORDERING)
        begin(broker, b"8")
        with broker.dialogs.transaction("shop") as work:
            found = [work.get_conversation_group() for _ in range(3)]
        assert len({group[0] for group in found if group}) == 2
        assert found[2] is None

    def test_state_of_a_group_that_is_not_locked_here(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        group = broker.dialogs.conversation(far(handle)).group
        with pytest.raises(NotAllowed, match="not locked by this transaction"):
            broker.dialogs.transaction("shop").set_group_state(group, b"x")

    def test_several_groups_in_one_transaction(self, broker: Broker) -> None:
        begin(broker, b"1")
        begin(broker, b"2")
        with broker.dialogs.transaction("shop") as work:
            groups = {found[0] for found in (work.get_conversation_group() for _ in range(3)) if found}
            assert len(groups) == 2
            assert sorted(b"".join(bodies(work.receive(group=g))) for g in groups) == [b"1", b"2"]
        assert read(broker) == []

    def test_a_conversation_moves_to_another_group(self, broker: Broker) -> None:
        one, two = begin(broker, b"1"), begin(broker, b"2")
        group = broker.dialogs.conversation(far(one)).group
        with broker.dialogs.transaction() as work:
            work.move_conversation(far(two), group)
        assert sorted(bodies(read(broker))) == [b"1", b"2"]

    def test_not_out_of_a_group_that_another_has_locked(self, broker: Broker) -> None:
        one, two = begin(broker, b"1"), begin(broker, b"2")
        group = broker.dialogs.conversation(far(one)).group
        with broker.dialogs.transaction("shop") as work:
            work.receive(conversation=far(two))
            with pytest.raises(ConversationLocked), broker.dialogs.transaction() as other:
                other.move_conversation(far(two), group)
            work.move_conversation(far(two), group)
        assert broker.dialogs.conversation(far(two)).group == group

    def test_a_lock_that_runs_out_gives_the_group_to_another(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        begin(broker, b"1")
        slow = broker.dialogs.transaction("shop")
        slow.receive()
        clock.advance(61)
        (message,) = read(broker)
        assert (message.body, message.delivery_count) == (b"1", 1)
        with pytest.raises((SessionLockLost, MessageLockLost)):
            slow.commit()

    def test_locks_are_prolonged(self, broker: Broker, clock: ManualClock) -> None:
        begin(broker, b"1")
        with broker.dialogs.transaction("shop") as slow:
            slow.receive()
            clock.advance(40)
            slow.renew_locks()
            clock.advance(40)
            assert read(broker) == []
        assert leftovers(broker) != []
        assert read(broker) == []


class TestPriorities:
    def test_the_most_urgent_first(self, broker: Broker) -> None:
        dialogs = broker.dialogs
        dialogs.create_priority("low", 2, contract=ORDERING)
        low = begin(broker, b"2")
        dialogs.create_priority("low", 9, contract=ORDERING)
        high = begin(broker, b"9")
        assert (dialogs.conversation(low).priority, dialogs.conversation(high).priority) == (2, 9)
        assert [bodies(read(broker)) for _ in range(2)] == [[b"9"], [b"2"]]

    def test_the_rest_are_not_starved(self, broker: Broker) -> None:
        dialogs = broker.dialogs
        dialogs.create_priority("p", 1, contract=ORDERING)
        begin(broker, b"1")
        dialogs.create_priority("p", 10, contract=ORDERING)
        urgent = begin(broker, *(b"10" for _ in range(40)))
        order = [bodies(read(broker, most=1))[0] for _ in range(41)]
        assert order.index(b"1") < 20
        assert order.count(b"10") == 40
        assert dialogs.conversation(urgent).priority == 10

    def test_groups_of_one_priority_take_turns(self, broker: Broker) -> None:
        handles = [begin(broker, b"%d" % n, b"%d" % n) for n in range(3)]
        first = [bodies(read(broker, most=1))[0] for _ in range(3)]
        assert sorted(first) == [b"0", b"1", b"2"]
        assert len(handles) == 3

    def test_the_most_specific_definition_counts(self, broker: Broker) -> None:
        dialogs = broker.dialogs
        dialogs.create_priority("any", 1)
        dialogs.create_priority("far", 3, far_service=SHOP)
        dialogs.create_priority("near", 4, service=FRONT)
        dialogs.create_priority("contract", 6, contract=ORDERING)
        dialogs.create_priority("contract of another", 7, contract=ORDERING, service=SHOP)
        known = dialogs.definitions()
        assert known.priority_of(ORDERING, FRONT, SHOP) == 6
        assert known.priority_of(ORDERING, SHOP, FRONT) == 7
        assert known.priority_of("DEFAULT", FRONT, SHOP) == 4
        assert known.priority_of("DEFAULT", SHOP, SHOP) == 3
        assert known.priority_of("DEFAULT", SHOP, FRONT) == 1


class TestRetention:
    def test_what_was_received_and_sent_is_kept_until_the_end(self, broker: Broker) -> None:
        broker.dialogs.create_service(SHOP, "shop", [ORDERING], retention=True)
        handle = begin(broker, b"1", b"2")
        with broker.dialogs.transaction("shop") as work:
            for message in work.receive(max_messages=10):
                work.send(message.conversation, RECEIPT, b"got " + message.body)
        kept = [m.body for m in broker.peek("shop", 10)]
        assert sorted(kept) == [b"1", b"2", b"got 1", b"got 2"]
        assert read(broker) == []
        assert bodies(read(broker, "front")) == [b"got 1", b"got 2"]
        broker.dialogs.end(handle)
        read(broker)
        assert leftovers(broker) == []


class TestCleaningUp:
    def test_one_end_goes_and_the_other_is_told_nothing(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        assert broker.dialogs.clean_up(far(handle)) == 1
        assert read(broker) == read(broker, "front") == []
        assert "cleaned up" in broker.dialogs.conversation(handle).waits
        broker.dialogs.end(handle)
        assert leftovers(broker) == []

    def test_nothing_can_be_sent_to_an_end_that_is_gone(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        broker.dialogs.clean_up(far(handle))
        with pytest.raises(ConversationError, match="was cleaned up; end the conversation"):
            send(broker, handle)
        broker.dialogs.end(handle)
        assert leftovers(broker) == []

    def test_with_the_open_end_goes_the_one_that_has_ended(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        broker.dialogs.end(handle)
        broker.dialogs.clean_up(far(handle))
        assert leftovers(broker) == []

    def test_many_conversations_leave_an_event_each_and_nothing_else(self, broker: Broker) -> None:
        for number in range(20):
            handle = begin(broker, b"%d" % number)
            read(broker)
            broker.dialogs.end(handle)
            read(broker)
        assert leftovers(broker) == []
        ended = [e for e in broker.events() if e.kind == "dialog_ended"]
        assert len(ended) == 20
        assert ended[0].detail["service"] == SHOP
