"""What forwarding does with dead letters, topics and sends via another queue."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lazaretto import (
    Broker,
    EntityNotFound,
    ManualClock,
    Message,
    MessageState,
    NotAllowed,
    QueueOptions,
    Rule,
    SqlAction,
    SqlFilter,
    TopicOptions,
)

from .actions import bodies, create, numbers, peek_one, send, set_aside, states, take
from .forwarding import chain, peek_time, why

TRANSFER = "/$Transfer/$deadletterqueue"


class TestTransferDeadLetters:
    """Where a destination cannot take a message, it waits in the source, with the reason."""

    def test_missing(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        broker.delete_queue("b")
        number = send(broker, b"x", path="a")
        assert why(broker, "a" + TRANSFER) == (
            "MessagingEntityNotFound",
            "The destination 'b' does not exist.",
        )
        assert numbers(broker.dead_letters("a" + TRANSFER)) == [number]
        counts = broker.queue("a").counts
        assert (counts.transfer_dead_letter, counts.dead_letter, counts.active) == (1, 0, 0)

    @pytest.mark.parametrize("status", ["disabled", "send_disabled"])
    def test_off(self, broker: Broker, status: str) -> None:
        chain(broker, "a", "b")
        broker.set_status("b", status)
        send(broker, b"x", path="a")
        assert why(broker, "a" + TRANSFER) == (
            "MessagingEntityDisabled",
            f"The destination 'b' is {status}.",
        )

    def test_closed_for_receiving_it_still_takes(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        broker.set_status("b", "receive_disabled")
        send(broker, b"x", path="a")
        assert bodies(broker.peek("b", 10)) == [b"x"]

    def test_full(self, broker: Broker) -> None:
        create(broker, "b", max_size=2_000)
        create(broker, "a", forward_to="b")
        send(broker, b"x" * 900, b"y" * 900, b"z" * 900, path="a")
        assert len(broker.peek("b", 10)) == 2
        assert why(broker, "a" + TRANSFER) == (
            "QuotaExceeded",
            "The destination 'b' is full: it holds 1800 of 2000 bytes.",
        )

    def test_too_large_for_it(self, broker: Broker) -> None:
        create(broker, "b", max_message_size=1024)
        create(broker, "a", forward_to="b")
        send(broker, b"x" * 2000, path="a")
        assert why(broker, "a" + TRANSFER)[0] == "MessageSizeExceeded"

    def test_in_the_middle_of_a_chain_it_is_the_last_source_that_keeps_it(self, broker: Broker) -> None:
        chain(broker, "a", "b", "c")
        broker.delete_queue("c")
        number = send(broker, b"x", path="a")
        assert why(broker, "b" + TRANSFER)[0] == "MessagingEntityNotFound"
        assert peek_one(broker, "b" + TRANSFER).enqueued_sequence_number == number

    def test_the_others_of_a_batch_go_on(self, broker: Broker) -> None:
        create(broker, "b", max_message_size=1024)
        create(broker, "a", forward_to="b")
        send(broker, b"1", b"x" * 2000, b"3", path="a")
        assert bodies(broker.peek("b", 10)) == [b"1", b"3"]
        assert numbers(broker.dead_letters("a" + TRANSFER)) == [2]

    def test_the_two_kinds_of_dead_letters_are_kept_apart(self, broker: Broker) -> None:
        create(broker, "a")
        create(broker, "b")
        set_aside(broker, b"dead", path="a", reason="bad")
        broker.update_queue("a", forward_to="b")
        broker.delete_queue("b")
        send(broker, b"moved", path="a")
        assert why(broker, "a")[0] == "bad"
        assert why(broker, "a" + TRANSFER)[0] == "MessagingEntityNotFound"
        assert [g.reason for g in broker.dead_letter_groups("a" + TRANSFER)] == ["MessagingEntityNotFound"]
        assert [g.reason for g in broker.dead_letter_groups("a")] == ["bad"]

    def test_resubmitted_it_goes_on(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        broker.set_status("b", "disabled")
        number = send(broker, b"x", path="a")
        broker.set_status("b", "active")
        report = broker.resubmit("a" + TRANSFER, number)
        assert list(report.resubmitted) == [number]
        assert take(broker, "b").body == b"x"
        assert broker.queue("a").counts.total == 0

    def test_resubmitted_too_early_it_comes_back(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        broker.set_status("b", "disabled")
        number = send(broker, b"x", path="a")
        broker.resubmit("a" + TRANSFER, number)
        (letter,) = broker.dead_letters("a" + TRANSFER)
        assert (letter.reason, letter.generation) == ("MessagingEntityDisabled", 1)

    def test_read_and_purged_as_others_are(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        broker.delete_queue("b")
        send(broker, b"1", b"2", b"3", path="a")
        receiver = broker.receiver("a", subqueue="transfer_dead_letter")
        (message,) = receiver.receive()
        assert (message.body, message.dead_letter_reason) == (b"1", "MessagingEntityNotFound")
        receiver.abandon(message)
        receiver.complete(receiver.receive(1))
        assert numbers(broker.dead_letters("a" + TRANSFER)) == [2, 3]
        assert broker.dead_letter("a" + TRANSFER, 1).resolution == "completed"
        assert broker.purge("a" + TRANSFER, [2]) == [2]
        assert numbers(broker.dead_letters("a" + TRANSFER)) == [3]

    def test_told(self, broker: Broker) -> None:
        chain(broker, "a", "b")
        broker.delete_queue("b")
        send(broker, b"x", path="a")
        (event,) = broker.events(kind="dead_lettered")
        assert event.detail["subqueue"] == "$Transfer/$deadletterqueue"


class TestForwardDeadLetters:
    """Dead letters go on, and tell where they come from."""

    def test_they_go_on_with_their_reason(self, broker: Broker) -> None:
        create(broker, "graves")
        create(broker, "a", forward_dead_lettered_messages_to="graves", receive_retry_count=0)
        number = send(broker, b"x", path="a", message_id="m", properties={"n": 1})
        receiver = broker.receiver("a")
        receiver.dead_letter(receiver.receive(), reason="bad", description="it is")
        message = take(broker, "graves")
        assert (message.message_id, message.enqueued_sequence_number) == ("m", number)
        assert (message.dead_letter_reason, message.dead_letter_error_description) == ("bad", "it is")
        assert message.dead_letter_source == "a"
        assert message.properties["n"] == 1
        assert broker.queue("a").counts.total == 0
        assert broker.dead_letter("a", number).resolution == "forwarded"

    def test_their_history_goes_with_them(self, broker: Broker) -> None:
        create(broker, "graves")
        create(broker, "a", forward_dead_lettered_messages_to="graves", receive_retry_count=1)
        send(broker, b"x", path="a")
        for _ in range(2):
            receiver = broker.receiver("a")
            receiver.abandon(receiver.receive(), error=ValueError("no"))
        message = take(broker, "graves")
        assert message.delivery_count == 0
        history = broker.attempts("graves", message.sequence_number)
        assert [(a.number, a.error_message) for a in history] == [(1, "no"), (2, "no")]

    def test_expired_ones_live_again(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, "late")
        create(broker, "a", forward_dead_lettered_messages_to="late", dead_letter_on_expiration=True)
        send(broker, b"x", path="a", time_to_live=10.0)
        clock.advance(11)
        message = take(broker, "late")
        assert (message.dead_letter_reason, message.expires_at) == ("TTLExpiredException", None)

    def test_from_a_session(self, broker: Broker) -> None:
        create(broker, "graves")
        create(broker, "a", requires_session=True, forward_dead_lettered_messages_to="graves")
        send(broker, b"x", path="a", session_id="s")
        receiver = broker.receiver("a", session="s")
        receiver.dead_letter(receiver.receive(), reason="bad")
        assert take(broker, "graves").session_id == "s"

    def test_to_a_topic_filtered_by_reason(self, broker: Broker) -> None:
        broker.create_topic("graves")
        rules = [Rule("bad", SqlFilter("DeadLetterReason = 'bad'"))]
        broker.create_subscription("graves", "bad", rules=rules)
        broker.create_subscription("graves", "all")
        create(broker, "a", forward_dead_lettered_messages_to="graves")
        set_aside(broker, b"1", path="a", reason="bad")
        set_aside(broker, b"2", path="a", reason="worse")
        assert bodies(broker.peek("graves/subscriptions/bad", 10)) == [b"1"]
        assert bodies(broker.peek("graves/subscriptions/all", 10)) == [b"1", b"2"]

    def test_of_a_subscription_names_its_path(self, broker: Broker) -> None:
        create(broker, "graves")
        broker.create_topic("t")
        broker.create_subscription("t", "s", QueueOptions(forward_dead_lettered_messages_to="graves"))
        send(broker, b"x", path="t")
        receiver = broker.receiver("t/subscriptions/s")
        receiver.dead_letter(receiver.receive(), reason="bad")
        assert take(broker, "graves").dead_letter_source == "t/subscriptions/s"

    def test_nobody_receives_them_where_they_do_not_stay(self, broker: Broker) -> None:
        create(broker, "graves")
        create(broker, "a", forward_dead_lettered_messages_to="graves")
        with pytest.raises(NotAllowed, match="forwarded to 'graves'"):
            take(broker, "a;poison")

    def test_a_destination_that_is_gone(self, broker: Broker) -> None:
        create(broker, "graves")
        create(broker, "a", forward_dead_lettered_messages_to="graves")
        broker.delete_queue("graves")
        set_aside(broker, b"x", path="a", reason="bad", description="it is")
        reason, text = why(broker, "a" + TRANSFER)
        assert reason == "MessagingEntityNotFound"
        assert text is not None
        assert text.endswith("It was a dead letter before: bad: it is")
        assert broker.queue("a").counts.dead_letter == 0

    def test_headers_without_room_for_the_reason_stay(self, broker: Broker) -> None:
        create(broker, "graves")
        create(broker, "a", forward_dead_lettered_messages_to="graves")
        properties = {f"p{n}": "x" * 16_000 for n in range(4)}
        broker.sender("a").send(Message(b"x", properties=properties))
        receiver = broker.receiver("a")
        receiver.dead_letter(receiver.receive(), reason="bad", description="y" * 3000)
        assert why(broker, "a")[0] == "bad"
        assert len(broker.events(kind="forward_refused")) == 1

    def test_those_already_there_stay(self, broker: Broker) -> None:
        create(broker, "a")
        create(broker, "graves")
        set_aside(broker, b"x", path="a")
        broker.update_queue("a", forward_dead_lettered_messages_to="graves")
        assert broker.queue("a").counts.dead_letter == 1
        assert broker.receiver("graves").receive() == []


class TestTopics:
    """Topics in a chain."""

    def test_a_queue_to_a_topic_to_queues(self, broker: Broker) -> None:
        broker.create_topic("t")
        for name in ("x", "y"):
            create(broker, name)
            broker.create_subscription("t", name, QueueOptions(forward_to=name))
        create(broker, "a", forward_to="t")
        number = send(broker, b"m" * 5000, path="a")
        for name in ("x", "y"):
            found = take(broker, name)
            assert (found.body, found.enqueued_sequence_number) == (b"m" * 5000, number)

    def test_an_action_counts_in_the_topic_behind(self, broker: Broker) -> None:
        broker.create_topic("second")
        broker.create_subscription("second", "marked", rules=[Rule("m", SqlFilter("mark = 1"))])
        broker.create_topic("first")
        rule = Rule("mark", SqlFilter("n > 0"), SqlAction("SET mark = 1"))
        broker.create_subscription("first", "s", QueueOptions(forward_to="second"), [rule])
        broker.sender("first").send([Message(b"0", properties={"n": 0}), Message(b"1", properties={"n": 1})])
        assert bodies(broker.peek("second/subscriptions/marked", 10)) == [b"1"]

    def test_what_fits_nobody_is_counted_in_the_topic_behind(self, broker: Broker) -> None:
        broker.create_topic("t")
        create(broker, "a", forward_to="t")
        send(broker, b"x", path="a")
        assert broker.topic("t").unmatched == 1

    def test_a_filter_that_fails_in_a_forwarding_subscription(self, broker: Broker) -> None:
        broker.create_topic("t")
        create(broker, "b")
        rules = [Rule("r", SqlFilter("n > 'x'"))]
        broker.create_subscription("t", "s", QueueOptions(forward_to="b"), rules)
        broker.sender("t").send(Message(b"x", properties={"n": 1}))
        assert why(broker, "t/subscriptions/s")[0] == "FilterException"

    def test_one_destination_gone_the_others_get_theirs(self, broker: Broker) -> None:
        broker.create_topic("t")
        for name in ("x", "y"):
            create(broker, name)
            broker.create_subscription("t", name, QueueOptions(forward_to=name))
        broker.delete_queue("x")
        send(broker, b"m", path="t")
        assert bodies(broker.peek("y", 10)) == [b"m"]
        assert why(broker, f"t/subscriptions/x{TRANSFER}")[0] == "MessagingEntityNotFound"

    def test_life_is_shortened_by_the_topic(self, broker: Broker) -> None:
        broker.create_topic("t", TopicOptions(default_time_to_live=30.0))
        create(broker, "b")
        broker.create_subscription("t", "s", QueueOptions(forward_to="b"))
        send(broker, b"m", path="t")
        found = peek_one(broker, "b")
        assert found.expires_at == found.enqueued_time + timedelta(seconds=30)


class TestSendVia:
    """A message passes through a queue, which answers for it."""

    def test_it_arrives(self, broker: Broker) -> None:
        create(broker, "work")
        create(broker, "out")
        assert broker.sender("out", via="work").send([Message(b"1"), Message(b"2")]) == [1, 2]
        assert bodies(broker.peek("out", 10)) == [b"1", b"2"]
        assert take(broker, "out").enqueued_sequence_number == 1
        assert broker.queue("work").counts.total == 0

    def test_the_destination_may_be_gone(self, broker: Broker) -> None:
        create(broker, "work")
        broker.sender("out", via="work").send(Message(b"x"))
        assert why(broker, "work" + TRANSFER)[0] == "MessagingEntityNotFound"

    def test_a_transaction_commits_although_the_destination_is_off(self, broker: Broker) -> None:
        create(broker, "work")
        create(broker, "out")
        broker.set_status("out", "disabled")
        send(broker, b"in", path="work")
        with broker.transaction() as tx:
            (message,) = tx.receive("work")
            tx.send("out", Message(b"reply", correlation_id=message.message_id), via="work")
        assert broker.queue("work").counts.active == 0
        assert why(broker, "work" + TRANSFER)[0] == "MessagingEntityDisabled"
        # Without a queue on the way, the same transaction fails, and the message comes back.
        send(broker, b"in", path="work")
        with pytest.raises(Exception, match="'out' cannot be sent to"), broker.transaction() as tx:
            tx.receive("work")
            tx.send("out", Message(b"reply"))
        assert broker.queue("work").counts.active == 1

    def test_the_queue_on_the_way_must_take_it(self, broker: Broker) -> None:
        create(broker, "out")
        with pytest.raises(EntityNotFound, match="'work'"):
            broker.sender("out", via="work").send(Message(b"x"))
        create(broker, "work")
        broker.set_status("work", "send_disabled")
        with pytest.raises(Exception, match="'work' cannot be sent to"):
            broker.sender("out", via="work").send(Message(b"x"))

    def test_a_scheduled_one_waits_at_its_destination(self, broker: Broker, clock: ManualClock) -> None:
        create(broker, "work")
        create(broker, "out")
        at = peek_time(broker) + timedelta(seconds=60)
        broker.sender("out", via="work").schedule(Message(b"x"), at)
        assert states(broker, "out") == [(b"x", MessageState.SCHEDULED)]
        clock.advance(60)
        assert take(broker, "out").body == b"x"

    def test_to_a_topic(self, broker: Broker) -> None:
        create(broker, "work")
        broker.create_topic("t")
        broker.create_subscription("t", "s")
        broker.sender("t", via="work").send(Message(b"x"))
        assert take(broker, "t/subscriptions/s").body == b"x"

    def test_its_own_forwarding_does_not_count(self, broker: Broker) -> None:
        create(broker, "elsewhere")
        create(broker, "out")
        create(broker, "work", forward_to="elsewhere")
        broker.sender("out", via="work").send(Message(b"x"))
        assert bodies(broker.peek("out", 10)) == [b"x"]
