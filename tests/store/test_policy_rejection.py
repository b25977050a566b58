"""The disposition reject: back to the sender, with a negative acknowledgement."""

from __future__ import annotations

import pytest

from lazaretto import (
    Broker,
    Disposition,
    LazarettoError,
    ManualClock,
    PoisonPolicy,
)

from .actions import bodies, create, fail, peek_one, send, take

SYSTEM = "$system/deadletter"
REJECT = Disposition.REJECT


class TestReject:
    """Back to the sender's dead-letter queue, with a negative acknowledgement."""

    @pytest.fixture(autouse=True)
    def queue(self, broker: Broker) -> None:
        create(broker, receive_retry_count=0, on_poison=REJECT)

    def test_to_the_systems_queue(self, broker: Broker, clock: ManualClock) -> None:
        number = send(broker, b"x", subject="s", properties={"a": 1})
        clock.advance(5)
        fail(broker, error="KeyError: x")
        message = take(broker, SYSTEM)
        assert (message.body, message.subject, message.properties) == (b"x", "s", {"a": 1})
        assert message.enqueued_sequence_number == number
        assert message.delivery_count == 0
        assert message.enqueued_time.timestamp() == clock.now() / 1e6
        assert broker.queue("q").counts.total == 0

    def test_the_negative_acknowledgement(self, broker: Broker) -> None:
        number = send(broker, b"x")
        fail(broker)
        word = peek_one(broker, SYSTEM).negative_acknowledgement
        assert word is not None
        assert (word.kind, word.status, word.code) == ("rejected", "not_delivered", 0xC004)
        assert (word.queue, word.sequence_number) == ("q", number)
        assert (
            word.text == "MaxDeliveryCountExceeded: Message could not be consumed after 1 delivery attempts."
        )

    def test_the_history_goes_along(self, broker: Broker) -> None:
        send(broker, b"x")
        fail(broker, error="KeyError: x")
        (attempt,) = broker.attempts(SYSTEM, peek_one(broker, SYSTEM).sequence_number)
        assert (attempt.error_type, attempt.error_message) == ("KeyError", "x")

    def test_a_large_body_goes_along(self, broker: Broker) -> None:
        send(broker, b"x" * 50_000)
        fail(broker)
        assert take(broker, SYSTEM).body == b"x" * 50_000

    def test_to_the_queue_the_sender_named(self, broker: Broker) -> None:
        create(broker, "Mine")
        send(broker, b"x", dead_letter_queue="mine")
        fail(broker)
        assert take(broker, "mine").negative_acknowledgement is not None
        assert broker.peek(SYSTEM) == []

    def test_a_sender_that_has_none_moved_not_lost(self, broker: Broker) -> None:
        number = send(broker, b"x", dead_letter_queue=None)
        fail(broker)
        assert broker.dead_letter("q", number).reason == "Rejected"
        assert peek_one(broker, "q;poison").body == b"x"

    def test_a_named_queue_that_was_deleted(self, broker: Broker) -> None:
        create(broker, "mine")
        send(broker, b"x", dead_letter_queue="mine")
        broker.delete_queue("mine")
        fail(broker)
        assert peek_one(broker, SYSTEM).body == b"x"

    def test_a_named_queue_that_is_the_queue_itself(self, broker: Broker) -> None:
        number = send(broker, b"x", dead_letter_queue="q")
        fail(broker)
        assert broker.dead_letter("q", number).reason == "Rejected"

    def test_a_named_queue_that_does_not_exist_is_an_error_at_send(self, broker: Broker) -> None:
        with pytest.raises(LazarettoError, match="no queue exists at 'nowhere', which the message names"):
            send(broker, b"x", dead_letter_queue="nowhere")

    def test_rejected_again_it_goes_to_the_system(self, broker: Broker) -> None:
        create(broker, "mine", receive_retry_count=0, on_poison=REJECT)
        send(broker, b"x", dead_letter_queue="mine")
        fail(broker)
        fail(broker, "mine")
        word = peek_one(broker, SYSTEM).negative_acknowledgement
        assert word is not None
        assert word.queue == "mine"

    def test_rejected_by_the_system_it_stays_there(self, broker: Broker) -> None:
        broker.update_queue(SYSTEM, policy=PoisonPolicy(receive_retry_count=0, on_poison=REJECT))
        send(broker, b"x")
        fail(broker)
        fail(broker, SYSTEM)
        assert peek_one(broker, f"{SYSTEM};poison").body == b"x"

    def test_a_senders_queue_with_sessions(self, broker: Broker) -> None:
        create(broker, "mine", requires_session=True)
        send(broker, b"x", dead_letter_queue="mine", session_id="a")
        number = send(broker, b"y", dead_letter_queue="mine")
        fail(broker)
        fail(broker)
        assert bodies(broker.receiver("mine", session="a").receive(5)) == [b"x"]
        (letter,) = broker.dead_letters("mine")
        assert (letter.reason, letter.sequence_number) == ("Session ID is null.", number)

    def test_headers_that_grow_past_the_quota(self, broker: Broker) -> None:
        """The acknowledgement adds to the headers; a message that has no room for it is set aside."""
        filler = {"a": "x" * 32_000, "b": "x" * 32_000, "c": "x" * 1_380}
        send(broker, b"x", properties=filler)
        fail(broker, error="KeyError: x")
        (letter,) = broker.dead_letters(SYSTEM)
        assert letter.reason == "HeaderSizeExceeded"
        assert letter.description == "The size quota for this stream has been exceeded."
        message = take(broker, f"{SYSTEM};poison")
        assert (message.body, message.properties) == (b"x", filler)
        assert broker.queue("q").counts.total == 0

    def test_told(self, broker: Broker) -> None:
        number = send(broker, b"x")
        fail(broker)
        (event,) = broker.events(kind="rejected")
        assert (event.queue, event.sequence_number) == ("q", number)
        assert event.detail == {"reason": "MaxDeliveryCountExceeded", "to": SYSTEM}
