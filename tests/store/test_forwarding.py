"""Forwarding: messages and dead letters go on to other entities, or are set aside where they stopped."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lazaretto import (
    Broker,
    EntityNotFound,
    InvalidOption,
    ManualClock,
    Message,
    MessageState,
    NotAllowed,
    PoisonPolicy,
    QueueOptions,
)

from .actions import bodies, create, peek_one, send, states, take
from .forwarding import chain, peek_time, why


class TestForwardTo:
    """A queue's messages go on in the commit that brings them."""

    def test_they_come_to_rest_at_the_end(self, broker: Broker) -> None:
        chain(broker, "a", "b", "c")
        assert send(broker, b"1", b"2", path="a") == [1, 2]
        assert bodies(broker.peek("c", 10)) == [b"1", b"2"]
        assert broker.peek("a", 10) == broker.peek("b", 10) == []

    def test_a_new_number_there_and_the_first_one_kept(self, broker: Broker) -> None:
        chain(broker, "a", "b", "c")
        send(broker, b"own", path="c")
        send(broker, b"before", path="a")
        send(broker, b"x", path="a")
        (found,) = broker.peek("c", 1, 3)
        assert (found.sequence_number, found.enqueued_sequence_number) == (3, 2)

    def test_numbers_of_the_source_go_on(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        assert [send(broker, b"x", path="a") for _ in range(3)] == [1, 2, 3]
        assert take(broker, "b").enqueued_sequence_number == 1

    def test_everything_travels(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        fields: dict[str, Any] = {
            "message_id": "m",
            "session_id": "s",
            "subject": "label",
            "properties": {"n": 1},
            "time_to_live": 60.0,
        }
        send(broker, b"x", path="a", **fields)
        found = peek_one(broker, "b")
        assert (found.message_id, found.session_id, found.subject) == ("m", "s", "label")
        assert (found.properties, found.time_to_live) == ({"n": 1}, timedelta(seconds=60))
        assert found.expires_at == found.enqueued_time + timedelta(seconds=60)

    def test_large_bodies(self, broker: Broker) -> None:
        chain(broker, "a", "b", max_message_size=1_000_000)
        send(broker, b"x" * 500_000, path="a")
        assert take(broker, "b").body == b"x" * 500_000

    def test_each_entity_on_the_way_may_shorten_the_life(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, "c")
        create(broker, "b", forward_to="c", default_time_to_live=30.0)
        create(broker, "a", forward_to="b", default_time_to_live=90.0)
        send(broker, b"x", path="a")
        assert peek_one(broker, "c").expires_at == peek_one(broker, "c").enqueued_time + timedelta(seconds=30)

    def test_a_life_goes_on_while_it_waits(self, broker: Broker, clock: ManualClock) -> None:
        chain(broker, "a", "b")
        broker.set_status("a", "receive_disabled")
        send(broker, b"x", path="a", time_to_live=60.0)
        clock.advance(20)
        broker.set_status("a", "active")
        message = take(broker, "b")
        assert message.expires_at == message.enqueued_time + timedelta(seconds=40)

    def test_nobody_receives_from_the_source(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        for call in (
            lambda: take(broker, "a"),
            lambda: broker.receiver("a").receive_deferred([1]),
            lambda: broker.transaction().receive("a"),
        ):
            with pytest.raises(NotAllowed, match=r"'a' cannot be received from: .* forwarded to 'b'"):
                call()

    def test_scheduled_ones_wait_in_the_source(self, broker: Broker, clock: ManualClock) -> None:
        chain(broker, "a", "b")
        at = peek_time(broker) + timedelta(seconds=60)
        number = broker.sender("a").schedule(Message(b"x"), at)
        assert states(broker, "a") == [(b"x", MessageState.SCHEDULED)]
        broker.sender("a").cancel(number)
        broker.sender("a").schedule(Message(b"y"), at)
        clock.advance(60)
        assert take(broker, "b").body == b"y"
        assert broker.peek("a", 10) == []

    def test_what_was_there_before_goes_on_too(self, broker: Broker) -> None:
        create(broker, "a")
        create(broker, "b")
        sent = [Message(b"%d" % n) for n in range(350)]
        broker.sender("a").send(sent)
        (held,) = broker.receiver("a").receive()
        broker.update_queue("a", forward_to="b")
        got = broker.receiver("b").receive(1000) + broker.receiver("b").receive(1000)
        assert bodies(got) == [b"%d" % n for n in range(1, 350)]
        broker.receiver("a").abandon(held)
        assert take(broker, "b").body == b"0"

    def test_taken_back_nothing_goes_on(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        broker.update_queue("a", forward_to=None)
        send(broker, b"x", path="a")
        assert take(broker, "a").body == b"x"

    def test_a_source_that_is_off_holds_its_messages(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        broker.set_status("a", "receive_disabled")
        send(broker, b"1", b"2", path="a")
        assert broker.receiver("b").receive(10) == []
        assert bodies(broker.peek("a", 10)) == [b"1", b"2"]
        broker.set_status("a", "active")
        assert bodies(broker.receiver("b").receive(10)) == [b"1", b"2"]

    def test_duplicates_are_dropped_at_the_destination(self, broker: Broker) -> None:
        create(broker, "b", requires_duplicate_detection=True)
        create(broker, "a", forward_to="b")
        for body in (b"1", b"2"):
            send(broker, body, path="a", message_id="same")
        send(broker, b"3", path="b", message_id="same")
        assert bodies(broker.peek("b", 10)) == [b"1"]

    def test_partitions_tell_duplicates_apart_there(self, broker: Broker) -> None:
        create(broker, "b", requires_duplicate_detection=True, partitions=4)
        create(broker, "a", forward_to="b")
        for body, partition in ((b"1", "p"), (b"2", "q"), (b"3", "p")):
            send(broker, body, path="a", message_id="same", partition_key=partition)
        assert sorted(bodies(broker.peek("b", 10))) == [b"1", b"2"]

    def test_without_a_session_it_dies_in_a_destination_that_needs_one(self, broker: Broker) -> None:
        create(broker, "b", requires_session=True)
        create(broker, "a", forward_to="b")
        send(broker, b"x", path="a")
        send(broker, b"y", path="a", session_id="s")
        assert why(broker, "b")[0] == "Session ID is null."
        assert take(broker, "b", session="s").body == b"y"

    def test_in_one_commit_with_a_transaction(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        with pytest.raises(RuntimeError), broker.transaction() as tx:
            tx.send("a", Message(b"x"))
            raise RuntimeError
        assert broker.peek("b", 10) == []
        with broker.transaction() as tx:
            tx.send("a", Message(b"x"))
        assert bodies(broker.peek("b", 10)) == [b"x"]

    def test_a_receiver_that_waits_is_woken(self, broker: Broker) -> None:
        import concurrent.futures

        chain(broker, "a", "b")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(broker.receiver("b").receive, 1, 30.0)
            send(broker, b"x", path="a")
            assert bodies(waiting.result(120)) == [b"x"]


class TestHops:
    """At most four."""

    def test_four_are_allowed(self, broker: Broker) -> None:
        chain(broker, "a", "b", "c", "d", "e")
        send(broker, b"x", path="a")
        assert take(broker, "e").body == b"x"

    def test_the_fifth_sets_aside_where_it_stopped(self, broker: Broker) -> None:
        chain(broker, "a", "b", "c", "d", "e", "f")
        number = send(broker, b"x", path="a")
        assert broker.peek("f", 10) == []
        assert why(broker, "e") == (
            "MaxTransferHopCountExceeded",
            "The maximum number of allowed hops when forwarding between queues has been exceeded. "
            "This value is set to 4.",
        )
        assert peek_one(broker, "e;poison").enqueued_sequence_number == number
        assert broker.queue("e").counts.transfer_dead_letter == 0

    def test_they_count_on_when_a_queue_begins_to_forward_later(self, broker: Broker) -> None:
        chain(broker, "a", "b", "c", "d", "e")
        send(broker, b"x", path="a")
        create(broker, "f")
        broker.update_queue("e", forward_to="f")
        assert broker.receiver("f").receive() == []
        assert why(broker, "e")[0] == "MaxTransferHopCountExceeded"

    def test_that_dead_letter_is_not_forwarded(self, broker: Broker) -> None:
        create(broker, "graves")
        chain(broker, "a", "b", "c", "d", "e", "f")
        broker.update_queue("e", forward_dead_lettered_messages_to="graves")
        send(broker, b"x", path="a")
        assert broker.peek("graves", 10) == []
        assert why(broker, "e")[0] == "MaxTransferHopCountExceeded"

    def test_resubmitted_it_may_go_on(self, broker: Broker) -> None:
        chain(broker, "a", "b", "c", "d", "e", "f")
        send(broker, b"x", path="a")
        (letter,) = broker.dead_letters("e")
        broker.resubmit("e", letter.sequence_number)
        assert take(broker, "f").generation == 1

    def test_dead_letters_in_a_circle_stop(self, broker: Broker) -> None:
        # Each queue sends its dead letters to the other: of use, as long as somebody mends them.
        create(broker, "a", receive_retry_count=0)
        create(broker, "b", receive_retry_count=0, forward_dead_lettered_messages_to="a")
        broker.update_queue("a", forward_dead_lettered_messages_to="b")
        send(broker, b"x", path="a")
        path, deaths = "a", 0
        while messages := broker.receiver(path).receive():
            broker.receiver(path).abandon(messages, error=ValueError("no"))
            path, deaths = ("b" if path == "a" else "a"), deaths + 1
        assert deaths == 5
        (letter,) = [*broker.dead_letters("a"), *broker.dead_letters("b")]
        assert letter.reason == "MaxDeliveryCountExceeded"


class TestCircles:
    """Taken, as at Service Bus; the limit of hops ends them."""

    def test_to_itself(self, broker: Broker) -> None:
        create(broker, "a", forward_to="A")
        for body in (b"1", b"2"):
            broker.sender("a").send(Message(body))
        letters = list(broker.dead_letters("a"))
        assert [(one.reason, one.message and one.message.body) for one in letters] == [
            ("MaxTransferHopCountExceeded", b"1"),
            ("MaxTransferHopCountExceeded", b"2"),
        ]
        assert broker.queue("a").counts.active == 0

    def test_what_waits_when_a_circle_is_made(self, broker: Broker) -> None:
        chain(broker, "a", "b", "c")
        broker.sender("c").send([Message(b"%d" % number) for number in range(5)])
        broker.update_queue("c", forward_to="a")
        letters = [one for path in "abc" for one in broker.dead_letters(path)]
        assert {one.reason for one in letters} == {"MaxTransferHopCountExceeded"}
        assert sorted(one.message.body for one in letters if one.message) == [b"0", b"1", b"2", b"3", b"4"]

    def test_through_a_topic(self, broker: Broker) -> None:
        broker.create_topic("t")
        broker.create_subscription("t", "s", QueueOptions(forward_to="t"))
        broker.create_subscription("t", "other")
        broker.sender("t").send(Message(b"x"))
        # One copy for each time that it came by.
        assert broker.queue("t/subscriptions/other").counts.active == 5
        (letter,) = broker.dead_letters("t/subscriptions/s")
        assert letter.reason == "MaxTransferHopCountExceeded"

    def test_one_that_would_drop_messages_as_their_own_duplicates(self, broker: Broker) -> None:
        create(broker, "d", requires_duplicate_detection=True)
        create(broker, "e", forward_to="d")
        with pytest.raises(InvalidOption, match="dropped there as duplicates of themselves"):
            broker.update_queue("d", forward_to="e")
        with pytest.raises(InvalidOption, match="dropped there as duplicates of themselves"):
            create(broker, "itself", requires_duplicate_detection=True, forward_to="Itself")
        # One that is only reached from a circle drops none.
        broker.create_topic("t")
        broker.create_subscription("t", "out", QueueOptions(forward_to="d"))
        broker.create_subscription("t", "back", QueueOptions(forward_to="t"))

    def test_dead_letters_to_itself(self, broker: Broker) -> None:
        create(broker, "a", policy=PoisonPolicy(receive_retry_count=0))
        broker.update_queue("a", forward_dead_lettered_messages_to="A")
        broker.sender("a").send(Message(b"x"))
        for _ in range(5):
            broker.receiver("a").abandon(broker.receiver("a").receive(1), error=ValueError("no"))
        assert broker.queue("a").counts.active == 0
        (letter,) = broker.dead_letters("a")
        assert letter.reason == "MaxDeliveryCountExceeded"

    def test_from_an_entity_with_sessions(self, broker: Broker) -> None:
        create(broker, "to")
        create(broker, "s", requires_session=True, forward_to="to")
        broker.sender("s").send(Message(b"x", session_id="A"))
        (message,) = broker.receiver("to").receive(1)
        assert message.session_id == "A"

    def test_dead_letters_may_go_round(self, broker: Broker) -> None:
        create(broker, "a")
        create(broker, "helper", forward_to="a")
        broker.update_queue("a", forward_dead_lettered_messages_to="helper")


class TestDestinations:
    """What may be one."""

    @pytest.mark.parametrize("name", ["forward_to", "forward_dead_lettered_messages_to"])
    def test_it_must_be_there(self, broker: Broker, name: str) -> None:
        create(broker, "orders")
        with pytest.raises(EntityNotFound, match=rf"'ordrs' \({name}\); did you mean 'orders'"):
            create(broker, "a", **{name: "ordrs"})

    @pytest.mark.parametrize("path", ["q;poison", "t/subscriptions/s", "$system/deadletter"])
    def test_only_queues_and_topics(self, path: str) -> None:
        with pytest.raises(InvalidOption, match="expected forward_to to be a queue or a topic"):
            QueueOptions(forward_to=path)
