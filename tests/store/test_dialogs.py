"""Conversations between two services: in order, once, ended at both ends, with nothing left."""

from __future__ import annotations

import pytest

from lazaretto import NEXT_SESSION, Broker, ManualClock, Message, NotAllowed
from lazaretto.errors import (
    ConversationError,
    ConversationNotFound,
    DefinitionError,
    InvalidOption,
)
from lazaretto.model.conversations import DIALOG_TIMER, END_DIALOG, ERROR, ConversationState

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
    read_all,
    send,
    services,
)


@pytest.fixture(autouse=True)
def _services(broker: Broker) -> None:
    services(broker)


def state(broker: Broker, handle: str) -> ConversationState:
    return broker.dialogs.conversation(handle).state


class TestTalking:
    def test_there_and_back_and_over(self, broker: Broker) -> None:
        handle = begin(broker, b"1", b"2")
        with broker.dialogs.transaction("shop") as work:
            first, second = work.receive(max_messages=10)
            work.send(first.conversation, RECEIPT, b"done")
        assert (first.type, first.body, first.number, first.conversation) == (ORDER, b"1", 1, far(handle))
        assert (second.body, second.number) == (b"2", 2)
        assert bodies(read(broker, "front")) == [b"done"]
        broker.dialogs.end(handle)
        assert state(broker, handle) is ConversationState.DISCONNECTED_OUTBOUND
        assert state(broker, far(handle)) is ConversationState.DISCONNECTED_INBOUND
        (last,) = read(broker)
        assert last.is_end
        assert leftovers(broker) == []

    def test_nothing_takes_effect_before_the_commit(self, broker: Broker) -> None:
        work = broker.dialogs.transaction()
        handle = work.begin_dialog(FRONT, SHOP, ORDERING)
        work.send(handle, ORDER, b"1")
        assert read(broker) == []
        work.rollback()
        assert leftovers(broker) == []

    def test_an_error_undoes_the_answer_and_returns_the_message(self, broker: Broker) -> None:
        begin(broker, b"1")
        with pytest.raises(ZeroDivisionError), broker.dialogs.transaction("shop") as work:
            (message,) = work.receive()
            work.send(message.conversation, RECEIPT, b"wrong")
            raise ZeroDivisionError
        assert read(broker, "front") == []
        (again,) = read(broker)
        assert (again.body, again.delivery_count) == (b"1", 1)

    def test_the_far_end_knows_of_it_by_the_first_message(self, broker: Broker) -> None:
        handle = begin(broker)
        assert state(broker, handle) is ConversationState.STARTED_OUTBOUND
        with pytest.raises(ConversationNotFound):
            broker.dialogs.conversation(far(handle))
        send(broker, handle)
        assert state(broker, handle) is state(broker, far(handle)) is ConversationState.CONVERSING

    def test_a_dialog_that_nothing_was_sent_on_leaves_nothing(self, broker: Broker) -> None:
        broker.dialogs.end(begin(broker))
        assert leftovers(broker) == []

    def test_what_waits_is_dropped_by_who_ends(self, broker: Broker) -> None:
        handle = begin(broker, b"1", b"2")
        broker.dialogs.end(far(handle))
        (last,) = read(broker, "front")
        assert last.is_end
        assert leftovers(broker) == []

    def test_what_was_sent_before_the_end_is_received_before_it(self, broker: Broker) -> None:
        handle = begin(broker, b"1", b"2")
        broker.dialogs.end(handle)
        messages = read(broker)
        assert [m.type for m in messages] == [ORDER, ORDER, END_DIALOG]
        assert leftovers(broker) == []

    def test_the_reader_may_end_it_by_itself(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        broker.dialogs.end(handle)
        with broker.dialogs.transaction("shop") as work:
            for message in work.receive(max_messages=10):
                if message.is_last:
                    work.end(message.conversation)
        assert leftovers(broker) == []

    def test_both_ends_end_in_one_commit(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        with broker.dialogs.transaction() as work:
            work.end(handle)
            work.end(far(handle))
        assert leftovers(broker) == []

    def test_ordinary_messages_in_the_same_commit(self, broker: Broker) -> None:
        broker.create_queue("audit")
        begin(broker, b"1")
        with broker.dialogs.transaction("shop") as work:
            (message,) = work.receive()
            work.messages.send("audit", Message(message.body))
        assert broker.queue("audit").counts.active == 1


class TestSettlingPartOfWhatWasReceived:
    """A batch with the end in it, of which not everything is processed."""

    def last(self, broker: Broker) -> str:
        handle = begin(broker, b"1", b"2")
        broker.dialogs.end(handle)
        return handle

    def test_set_aside(self, broker: Broker) -> None:
        self.last(broker)
        with broker.dialogs.transaction("shop") as work:
            first, *_ = work.receive(max_messages=10)
            work.dead_letter(first, reason="odd")
        assert [d.reason for d in broker.dead_letters("shop")] == ["odd"]
        assert leftovers(broker) == []

    @pytest.mark.parametrize("verb", ["release", "abandon"])
    def test_given_back_it_comes_again_before_the_end(self, broker: Broker, verb: str) -> None:
        self.last(broker)
        with broker.dialogs.transaction("shop") as work:
            first, *_ = work.receive(max_messages=10)
            getattr(work, verb)(first)
        assert [m.type for m in read(broker)] == [ORDER, END_DIALOG]
        assert leftovers(broker) == []

    @pytest.mark.parametrize("verb", ["complete", "abandon", "invalid", "dead_letter", "release"])
    def test_a_verb_takes_messages_of_dialogs_alone(self, broker: Broker, verb: str) -> None:
        self.last(broker)
        with broker.dialogs.transaction("shop") as work:
            messages = work.receive(max_messages=10)
            with pytest.raises(InvalidOption, match="expected messages of a dialog"):
                getattr(work, verb)([messages[0], messages[1].received])
            work.complete(messages)
        assert leftovers(broker) == []

    def test_invalid(self, broker: Broker) -> None:
        self.last(broker)
        with broker.dialogs.transaction("shop") as work:
            first, *_ = work.receive(max_messages=10)
            work.invalid(first)
        assert leftovers(broker) == []


class TestRefusals:
    def test_a_type_that_the_contract_does_not_have(self, broker: Broker) -> None:
        broker.dialogs.create_message_type("Other")
        handle = begin(broker)
        with pytest.raises(DefinitionError, match="has no message type 'Other'"):
            send(broker, handle, "Other")

    def test_a_type_that_this_end_does_not_send(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        with pytest.raises(DefinitionError, match="lets only the target send"):
            send(broker, handle, RECEIPT)
        with pytest.raises(DefinitionError, match="lets only the initiator send"):
            send(broker, far(handle), ORDER)
        send(broker, far(handle), NOTE)

    def test_sending_on_what_has_ended(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        broker.dialogs.end(handle)
        with pytest.raises(ConversationError, match="disconnected_outbound: it cannot send"):
            send(broker, handle)
        with pytest.raises(ConversationError, match="disconnected_inbound: it cannot send"):
            send(broker, far(handle), NOTE)
        with pytest.raises(ConversationError, match="cannot be ended again"):
            broker.dialogs.end(handle)
        read(broker)
        with pytest.raises(ConversationNotFound):
            broker.dialogs.end(handle)

    def test_a_service_that_is_no_target_of_the_contract(self, broker: Broker) -> None:
        work = broker.dialogs.transaction()
        work.begin_dialog(SHOP, FRONT, ORDERING)
        with pytest.raises(DefinitionError, match="is not the target of contract"):
            work.commit()

    def test_a_service_that_is_missing(self, broker: Broker) -> None:
        work = broker.dialogs.transaction()
        work.begin_dialog(FRONT, "//test/Shopp", ORDERING)
        with pytest.raises(DefinitionError, match="did you mean '//test/Shop'"):
            work.commit()

    @pytest.mark.parametrize("handle", ["", "x", 7, None, "0" * 32, "0" * 32 + "-x", b"0"])
    def test_handles_that_are_none(self, broker: Broker, handle: str) -> None:
        with pytest.raises(InvalidOption, match="expected a conversation's handle"):
            broker.dialogs.conversation(handle)

    def test_bodies_that_are_not_bytes(self, broker: Broker) -> None:
        handle = begin(broker)
        work = broker.dialogs.transaction()
        with pytest.raises(ValueError, match="expected body to be bytes"):
            work.send(handle, ORDER, "text")  # type: ignore[arg-type]

    def test_the_queue_of_a_service_is_for_dialogs_alone(self, broker: Broker) -> None:
        begin(broker, b"1")
        with pytest.raises(NotAllowed, match="by dialogs"):
            broker.sender("shop").send(Message(b"x", session_id="s"))
        with pytest.raises(NotAllowed, match="by dialogs"):
            broker.receiver("shop", session=NEXT_SESSION).receive()
        with pytest.raises(NotAllowed, match="by dialogs"):
            broker.receiver("shop", session="s")
        with pytest.raises(NotAllowed, match="by dialogs"):
            broker.receiver("shop").receive()
        with pytest.raises(NotAllowed, match="drop the service first"):
            broker.delete_queue("shop")
        assert broker.peek("shop")[0].body == b"1"

    def test_an_ordinary_queue_is_not(self, broker: Broker) -> None:
        broker.create_queue("plain")
        with pytest.raises(NotAllowed, match="not the queue of a service"):
            read(broker, "plain")
        with pytest.raises(DefinitionError, match="is an ordinary queue"):
            broker.dialogs.create_service("S", "plain")


class TestErrors:
    def test_an_error_comes_before_what_was_sent(self, broker: Broker) -> None:
        handle = begin(broker, b"1", b"2")
        broker.dialogs.end(handle, error=(42, "called off"))
        (first,) = read(broker, most=1)
        assert first.is_error
        assert first.error == (42, "called off")
        # What was queued may still be received, and then it is over.
        assert [m.body for m in read(broker, most=2)] == [b"1", b"2"]
        assert read(broker)[0].is_end
        assert leftovers(broker) == []

    def test_nothing_can_be_sent_after_it(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        broker.dialogs.end(far(handle), error=(1, "no"))
        with pytest.raises(ConversationError, match=r"is error \(error 1: no\)"):
            send(broker, handle)
        assert broker.dialogs.conversation(handle).error == (1, "no")

    def test_who_has_ended_is_told_nothing_more(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        broker.dialogs.end(handle)
        broker.dialogs.end(far(handle), error=(1, "too late"))
        assert read(broker, "front") == []
        assert leftovers(broker) == []

    @pytest.mark.parametrize("error", [(0, "x"), (-1, "x"), (1, ""), (1, "x" * 3001), "x", (1,), (True, "x")])
    def test_errors_that_are_none(self, broker: Broker, error: tuple[int, str]) -> None:
        handle = begin(broker)
        with pytest.raises(InvalidOption):
            broker.dialogs.end(handle, error=error)

    def test_an_invalid_body_is_answered_at_once(self, broker: Broker) -> None:
        handle = begin(broker, b"1")
        with broker.dialogs.transaction() as work:
            work.send(handle, ORDER, b"2")
            work.send(handle, ORDER, b"{broken")
        (answer,) = read(broker, "front")
        assert answer.error is not None
        code, text = answer.error
        assert code == -9615
        assert "must be well-formed JSON" in text
        # It was not received, and is not lost; nor is what it took with it.
        assert read(broker) == []
        reasons = [(d.reason, d.message and d.message.body) for d in broker.dead_letters("shop")]
        assert sorted(reasons, key=str) == [
            ("ConversationEnded", b"1"),
            ("ConversationEnded", b"2"),
            ("InvalidMessage", b"{broken"),
        ]
        assert leftovers(broker) == []

    def test_an_invalid_first_message(self, broker: Broker) -> None:
        begin(broker, b"")
        (answer,) = read(broker, "front")
        assert answer.is_error
        assert leftovers(broker) == []


class TestTime:
    def test_a_lifetime_that_is_over_is_an_error_at_both_ends(
        self, broker: Broker, clock: ManualClock
    ) -> None:
        handle = begin(broker, b"1", lifetime=60.0)
        clock.advance(61)
        assert state(broker, handle) is state(broker, far(handle)) is ConversationState.ERROR
        with pytest.raises(ConversationError, match="is error"):
            send(broker, handle)
        (near,) = read(broker, "front")
        assert near.error == (-8489, "The dialog has exceeded its lifetime.")
        assert [read(broker, most=1)[0].type for _ in range(3)] == [ERROR, ORDER, END_DIALOG]
        assert leftovers(broker) == []

    def test_a_dialog_that_ends_in_time_has_no_error(self, broker: Broker, clock: ManualClock) -> None:
        handle = begin(broker, b"1", lifetime=60.0)
        broker.dialogs.end(handle)
        read(broker)
        clock.advance(61)
        assert read_all(broker) == read_all(broker, "front") == []
        assert leftovers(broker) == []

    def test_a_timer_comes_before_everything(self, broker: Broker, clock: ManualClock) -> None:
        handle = begin(broker, b"1")
        with broker.dialogs.transaction() as work:
            work.set_timer(far(handle), 30.0)
        assert broker.dialogs.conversation(far(handle)).messages == {"active": 1, "scheduled": 1}
        clock.advance(31)
        broker.dialogs.end(handle, error=(5, "x"))
        assert [m.type.rpartition("/")[2] for m in read(broker)][:2] == ["DialogTimer", "Error"]

    def test_a_timer_set_again_takes_the_place_of_the_first(self, broker: Broker, clock: ManualClock) -> None:
        handle = begin(broker)
        for delay in (10.0, 30.0):
            with broker.dialogs.transaction() as work:
                work.set_timer(handle, delay)
        clock.advance(11)
        assert read(broker, "front") == []
        clock.advance(20)
        (timer,) = read(broker, "front")
        assert (timer.type, timer.is_timer) == (DIALOG_TIMER, True)
        assert read(broker, "front") == []

    def test_a_timer_taken_away(self, broker: Broker, clock: ManualClock) -> None:
        handle = begin(broker)
        with broker.dialogs.transaction() as work:
            work.set_timer(handle, 10.0)
            work.set_timer(handle, None)
        clock.advance(11)
        assert read(broker, "front") == []

    def test_a_timer_ends_with_its_conversation(self, broker: Broker, clock: ManualClock) -> None:
        handle = begin(broker, b"1")
        with broker.dialogs.transaction() as work:
            work.set_timer(handle, 10.0)
        broker.dialogs.end(handle)
        read(broker)
        assert leftovers(broker) == []
