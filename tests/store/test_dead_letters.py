"""Dead letters: found, grouped, sent back, edited, purged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from lazaretto import (
    Broker,
    DeadLetter,
    DeadLetterFilter,
    InvalidOption,
    ManualClock,
    Message,
    MessageNotFound,
    MessageState,
    NotAllowed,
    PoisonPolicy,
    QueueDisabled,
)
from lazaretto.model.clock import to_datetime

from .actions import bodies, create, fail, kinds, numbers, peek_one, send, set_aside, take
from .conftest import Connect


@pytest.fixture(autouse=True)
def queue(broker: Broker) -> None:
    create(broker, receive_retry_count=0)


@pytest.fixture
def letters(broker: Broker, clock: ManualClock) -> list[int]:
    """Five dead letters, ten seconds apart: the numbers 1 to 5."""
    found = []
    for body, error in (
        (b'{"to": "SJU"}', "KeyError: SJU"),
        (b'{"to": "BOS"}', "ValueError: no arrival time"),
        (b"x" * 3000 + b"SJU", "ValueError: no time in the air"),
        (b"\xff\xfe", "KeyError: BQN"),
    ):
        found.append(send(broker, body))
        fail(broker, error=error)
        clock.advance(10)
    found += set_aside(broker, b"plain", reason="Manual", description="set aside by hand: SJU")
    return found


def _now(clock: ManualClock) -> datetime:
    return to_datetime(clock.now())


class TestList:
    """What waits in a dead-letter subqueue."""

    def test_all_by_number(self, broker: Broker, letters: list[int]) -> None:
        found = list(broker.dead_letters("q"))
        assert numbers(found) == letters == [1, 2, 3, 4, 5]
        assert numbers(broker.dead_letters("q;poison")) == letters

    def test_what_a_letter_tells(self, broker: Broker, clock: ManualClock) -> None:
        number = send(broker, b"x", message_id="m")
        enqueued = _now(clock)
        clock.advance(5)
        fail(broker, error="KeyError: x")
        (letter,) = broker.dead_letters("q")
        assert (letter.queue, letter.sequence_number, letter.message_id) == ("q", number, "m")
        assert (letter.error_type, letter.error_message) == ("KeyError", "x")
        assert (letter.enqueued, letter.dead_lettered) == (enqueued, _now(clock))
        assert (letter.generation, letter.resolution, letter.resubmitted_as) == (0, None, None)
        assert letter.message is not None
        assert letter.message.body == b"x"
        assert letter.attempts == ()
        assert len(broker.dead_letter("q", number).attempts) == 1

    def test_a_limit(self, broker: Broker, letters: list[int]) -> None:
        assert numbers(broker.dead_letters("q", limit=2)) == [1, 2]
        assert numbers(broker.dead_letters("q", limit=0)) == []

    def test_more_than_one_reading(self, broker: Broker) -> None:
        sent = set_aside(broker, *[b"%d" % n for n in range(1203)])
        assert numbers(broker.dead_letters("q")) == sent
        assert numbers(broker.dead_letters("q", limit=700)) == sent[:700]

    def test_an_unknown_number(self, broker: Broker, letters: list[int]) -> None:
        with pytest.raises(MessageNotFound, match=r"no dead letter 99 in 'q/\$deadletterqueue'"):
            broker.dead_letter("q", 99)

    def test_other_subqueues_hold_none(self, broker: Broker) -> None:
        with pytest.raises(
            InvalidOption, match="expected a queue or one of its dead-letter subqueues, got 'q;retry'"
        ):
            list(broker.dead_letters("q;retry"))


class TestFilter:
    """Every part that is given must be met."""

    @pytest.mark.parametrize(
        ("which", "found"),
        [
            (DeadLetterFilter(), [1, 2, 3, 4, 5]),
            (DeadLetterFilter(reason="MaxDeliveryCountExceeded"), [1, 2, 3, 4]),
            (DeadLetterFilter(reason="Manual"), [5]),
            (DeadLetterFilter(reason="manual"), []),
            (DeadLetterFilter(error_type="KeyError"), [1, 4]),
            (DeadLetterFilter(error_type="KeyErr"), []),
            (DeadLetterFilter(text="SJU"), [1, 3, 5]),
            (DeadLetterFilter(text="air"), [3]),
            (DeadLetterFilter(text="by hand"), [5]),
            (DeadLetterFilter(text="%"), []),
            (DeadLetterFilter(sequence_numbers=(4, 2, 99)), [2, 4]),
            (DeadLetterFilter(sequence_numbers=()), []),
            (DeadLetterFilter(error_type="KeyError", text="SJU"), [1]),
            (DeadLetterFilter(error_type="ValueError", sequence_numbers=(1, 2)), [2]),
        ],
        ids=lambda value: str(value.as_detail()) if isinstance(value, DeadLetterFilter) else "",
    )
    def test_parts(
        self, broker: Broker, letters: list[int], which: DeadLetterFilter, found: list[int]
    ) -> None:
        assert numbers(broker.dead_letters("q", which)) == found

    def test_since_is_included_and_until_is_not(
        self, broker: Broker, clock: ManualClock, letters: list[int]
    ) -> None:
        def ago(seconds: float) -> datetime:
            return _now(clock) - timedelta(seconds=seconds)

        assert numbers(broker.dead_letters("q", DeadLetterFilter(since=ago(30), until=ago(10)))) == [2, 3]
        assert numbers(broker.dead_letters("q", DeadLetterFilter(since=ago(20)))) == [3, 4, 5]
        assert numbers(broker.dead_letters("q", DeadLetterFilter(until=ago(30)))) == [1]

    def test_text_that_is_not_utf_8_in_the_body_is_no_obstacle(
        self, broker: Broker, letters: list[int]
    ) -> None:
        assert numbers(broker.dead_letters("q", DeadLetterFilter(text="BQN"))) == [4]

    def test_groups(self, broker: Broker, clock: ManualClock, letters: list[int]) -> None:
        groups = broker.dead_letter_groups("q")
        assert [(g.reason, g.error_type, g.count, g.example) for g in groups] == [
            ("MaxDeliveryCountExceeded", "KeyError", 2, 1),
            ("MaxDeliveryCountExceeded", "ValueError", 2, 2),
            ("Manual", None, 1, 5),
        ]
        assert groups[0].last - groups[0].first == timedelta(seconds=30)


class TestResubmit:
    """Back to the queue in one commit: same id, new generation."""

    def test_one(self, broker: Broker) -> None:
        number = send(broker, b"x", message_id="m", subject="s")
        fail(broker)
        report = broker.resubmit("q", number)
        assert report.resubmitted == {number: number + 1}
        assert report.skipped == []
        message = take(broker)
        assert (message.body, message.message_id, message.subject) == (b"x", "m", "s")
        assert (message.generation, message.delivery_count, message.cycle) == (1, 0, 0)
        assert message.enqueued_sequence_number == number
        assert message.dead_letter_reason is None
        assert broker.peek("q;poison") == []

    def test_what_became_of_the_letter(self, broker: Broker, clock: ManualClock) -> None:
        number = send(broker, b"x")
        fail(broker, error="KeyError: x")
        clock.advance(60)
        broker.resubmit("q", number)
        letter = broker.dead_letter("q", number)
        assert (letter.resolution, letter.resolved) == ("resubmitted", _now(clock))
        assert (letter.resubmitted_as, letter.message) == (number + 1, None)
        assert (letter.error_type, len(letter.attempts)) == ("KeyError", 1)
        assert list(broker.dead_letters("q")) == []
        assert broker.dead_letter_groups("q") == []

    def test_many_by_number(self, broker: Broker, letters: list[int]) -> None:
        assert broker.resubmit("q", [5, 1, 1]).resubmitted == {5: 6, 1: 7}
        assert numbers(broker.dead_letters("q")) == [2, 3, 4]

    def test_by_filter(self, broker: Broker, letters: list[int]) -> None:
        report = broker.resubmit("q", DeadLetterFilter(error_type="KeyError"))
        assert list(report.resubmitted) == [1, 4]
        assert numbers(broker.dead_letters("q")) == [2, 3, 5]

    def test_by_the_empty_filter_all(self, broker: Broker, letters: list[int]) -> None:
        assert len(broker.resubmit("q", DeadLetterFilter()).resubmitted) == 5

    def test_in_chunks_with_progress(self, broker: Broker) -> None:
        set_aside(broker, *[b"x"] * 1203)
        seen: list[tuple[int, int]] = []
        broker.resubmit("q", DeadLetterFilter(), on_chunk=lambda done, total: seen.append((done, total)))
        assert seen == [(500, 1203), (1000, 1203), (1203, 1203)]
        assert broker.queue("q").counts.active == 1203

    def test_totals_go_on_and_cycles_start_again(self, broker: Broker) -> None:
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=1))
        number = send(broker, b"x")
        fail(broker)
        fail(broker)
        (again,) = broker.resubmit("q", number).resubmitted.values()
        assert fail(broker) == fail(broker) == again
        letter = broker.dead_letter("q", again)
        assert (letter.generation, letter.counters.failures, letter.counters.deliveries) == (1, 4, 4)
        assert letter.counters.delivery_count == 2

    def test_a_second_death_has_the_whole_history(self, broker: Broker) -> None:
        number = send(broker, b"x", message_id="m")
        for error in ("KeyError: 1", "ValueError: 2", "OSError: 3"):
            number = fail(broker, error=error)
            last = number
            number = broker.resubmit("q", number).resubmitted[number]
        assert [a.error_type for a in broker.attempts("q", number)] == ["KeyError", "ValueError", "OSError"]
        assert broker.dead_letter("q", last).message_id == "m"
        assert take(broker).generation == 3

    def test_headers_and_time_to_live_come_back(self, broker: Broker, clock: ManualClock) -> None:
        number = send(broker, b"x", time_to_live=60, properties={"a": 1})
        fail(broker)
        clock.advance(1000)
        broker.resubmit("q", number)
        found = peek_one(broker)
        assert found.properties == {"a": 1}
        assert found.expires_at == _now(clock) + timedelta(seconds=60)

    def test_duplicate_detection_never_swallows_it(self, broker: Broker) -> None:
        create(broker, "once", requires_duplicate_detection=True, receive_retry_count=0)
        number = send(broker, b"x", path="once", message_id="m")
        fail(broker, "once")
        assert len(broker.resubmit("once", number).resubmitted) == 1
        assert take(broker, "once").message_id == "m"

    def test_it_does_not_let_a_duplicate_in_either(self, broker: Broker) -> None:
        create(broker, "once", requires_duplicate_detection=True, receive_retry_count=0)
        number = send(broker, b"x", path="once", message_id="m")
        fail(broker, "once")
        broker.resubmit("once", number)
        send(broker, b"x", path="once", message_id="m")
        assert broker.queue("once").counts.active == 1

    def test_a_session_message_returns_to_its_session(self, broker: Broker) -> None:
        create(broker, "s", requires_session=True)
        number = send(broker, b"x", path="s", session_id="a")
        receiver = broker.receiver("s", session="a")
        receiver.dead_letter(receiver.receive())
        broker.resubmit("s", number)
        assert bodies(receiver.receive()) == [b"x"]

    def test_from_the_systems_queue_it_stays_there(self, broker: Broker) -> None:
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=0, on_poison="reject"))
        send(broker, b"x")
        fail(broker)
        set_aside_there = broker.receiver("$system/deadletter")
        set_aside_there.dead_letter(set_aside_there.receive())
        assert len(broker.resubmit("$system/deadletter", DeadLetterFilter()).resubmitted) == 1
        assert peek_one(broker, "$system/deadletter").body == b"x"

    def test_a_receiver_that_waits_gets_it(self, broker: Broker, letters: list[int]) -> None:
        broker.resubmit("q", 1)
        assert len(broker.receiver("q").receive(max_wait=120)) == 1

    def test_told_and_audited(self, broker: Broker, letters: list[int]) -> None:
        position = broker.last_event()
        broker.resubmit("q", DeadLetterFilter(error_type="KeyError"), actor="ann")
        events = broker.events(position)
        assert kinds(events) == ["resubmitted", "resubmitted"]
        assert (events[0].sequence_number, events[0].detail) == (
            1,
            {"new_sequence_number": 6, "edited": False},
        )
        (entry,) = broker.audit(limit=1)
        assert (entry.actor, entry.action) == ("ann", "resubmit")
        assert entry.detail == {
            "count": 2,
            "sequence_numbers": [1, 4],
            "filter": {"error_type": "KeyError"},
        }


class TestSkipped:
    """What cannot be sent back stays where it is, and the report says why."""

    def test_locked_by_a_receiver(self, broker: Broker, letters: list[int]) -> None:
        held = take(broker, "q;poison")
        report = broker.resubmit("q", DeadLetterFilter())
        assert list(report.resubmitted) == [2, 3, 4, 5]
        assert [(s.sequence_number, s.why) for s in report.skipped] == [
            (1, "locked by a receiver of the dead-letter subqueue")
        ]
        broker.receiver("q;poison").complete(held)

    def test_unknown_and_dealt_with(self, broker: Broker, letters: list[int]) -> None:
        broker.resubmit("q", 1)
        broker.purge("q", 2)
        report = broker.resubmit("q", [1, 2, 99, 3])
        assert [(s.sequence_number, s.why) for s in report.skipped] == [
            (1, "already resubmitted"),
            (2, "already purged"),
            (99, "not found"),
        ]
        assert list(report.resubmitted) == [3]

    def test_a_queue_that_is_off(self, broker: Broker, letters: list[int]) -> None:
        broker.update_queue("q", policy=PoisonPolicy(receive_retry_count=9, disable_after_rollbacks=1))
        send(broker, b"x")
        fail(broker)
        with pytest.raises(QueueDisabled):
            broker.resubmit("q", 1)
        assert broker.queue("q").counts.dead_letter == 5

    def test_a_deferred_dead_letter_is_sent_back(self, broker: Broker, letters: list[int]) -> None:
        dead = broker.receiver("q;poison")
        dead.defer(dead.receive())
        assert broker.resubmit("q", 1).resubmitted == {1: 6}
        assert take(broker).sequence_number == 6


class TestEdit:
    """Sent back in another form: a new id, which remembers the old one."""

    def test_edited(self, broker: Broker) -> None:
        number = send(broker, b"bad", message_id="m", subject="s")
        fail(broker)
        seen: list[DeadLetter] = []

        def edit(letter: DeadLetter) -> Message:
            seen.append(letter)
            return Message(b"good", subject="t")

        broker.resubmit("q", number, edit=edit)
        message = take(broker)
        assert (message.body, message.subject, message.edit_of) == (b"good", "t", "m")
        assert message.message_id != "m"
        assert message.generation == 1
        assert seen[0].message is not None
        assert seen[0].message.body == b"bad"
        assert broker.events(kind="resubmitted")[0].detail["edited"] is True

    def test_with_an_id_of_ones_own(self, broker: Broker) -> None:
        number = send(broker, b"bad", message_id="m")
        fail(broker)
        broker.resubmit("q", number, edit=lambda _: Message(b"good", message_id="n"))
        assert peek_one(broker).message_id == "n"

    def test_none_sends_it_as_it_is(self, broker: Broker, letters: list[int]) -> None:
        broker.resubmit("q", 1, edit=lambda _: None)
        assert peek_one(broker).edit_of is None

    def test_one_that_fails_is_skipped_and_the_rest_goes(self, broker: Broker, letters: list[int]) -> None:
        def edit(letter: DeadLetter) -> Message | None:
            if letter.sequence_number == 2:
                raise ZeroDivisionError("no")
            if letter.sequence_number == 3:
                return Message("text")  # type: ignore[arg-type]
            if letter.sequence_number == 4:
                return Message(b"x" * 300_000)
            return None

        report = broker.resubmit("q", letters, edit=edit)
        assert list(report.resubmitted) == [1, 5]
        assert "the edit failed: ZeroDivisionError: no" in report.skipped[0].why
        assert "expected body to be bytes" in report.skipped[1].why
        assert "at most 262144 bytes" in report.skipped[2].why
        assert numbers(broker.dead_letters("q")) == [2, 3, 4]

    @pytest.mark.parametrize(("before", "after"), [(10, 5000), (5000, 10), (5000, 6000)])
    def test_bodies_of_all_sizes(self, broker: Broker, before: int, after: int) -> None:
        number = send(broker, b"x" * before)
        fail(broker)
        broker.resubmit("q", number, edit=lambda _: Message(b"y" * after))
        assert take(broker).body == b"y" * after


class TestPurge:
    """Deleted for good."""

    def test_by_number_and_filter(self, broker: Broker, letters: list[int]) -> None:
        assert broker.purge("q", [1, 99]) == [1]
        assert broker.purge("q", DeadLetterFilter(error_type="ValueError")) == [2, 3]
        assert numbers(broker.dead_letters("q")) == [4, 5]
        assert broker.dead_letter("q", 1).resolution == "purged"

    def test_the_empty_filter_is_refused_unless_spelt_out(self, broker: Broker, letters: list[int]) -> None:
        with pytest.raises(InvalidOption, match="pass everything=True to delete them all"):
            broker.purge("q", DeadLetterFilter())
        assert broker.queue("q").counts.dead_letter == 5
        assert broker.purge("q", DeadLetterFilter(), everything=True) == letters
        assert broker.queue("q").counts.dead_letter == 0

    def test_a_locked_one_stays(self, broker: Broker, letters: list[int]) -> None:
        take(broker, "q;poison")
        assert broker.purge("q", DeadLetterFilter(), everything=True) == [2, 3, 4, 5]
        assert peek_one(broker, "q;poison").state is MessageState.LOCKED

    def test_live_messages_are_safe(self, broker: Broker, letters: list[int]) -> None:
        number = send(broker, b"x")
        assert broker.purge("q", number) == []
        assert peek_one(broker).sequence_number == number

    def test_told_and_audited(self, broker: Broker, letters: list[int]) -> None:
        broker.purge("q", DeadLetterFilter(text="SJU"), actor="ann")
        assert numbers(broker.events(kind="purged")) == [1, 3, 5]
        (entry,) = broker.audit(limit=1)
        assert (entry.actor, entry.action, entry.detail["filter"]) == ("ann", "purge", {"text": "SJU"})


def test_dead_letters_survive_a_restart(broker: Broker, connect: Connect, letters: list[int]) -> None:
    before = [broker.dead_letter("q", number) for number in letters]
    broker.close()
    again = connect()
    assert [again.dead_letter("q", number) for number in letters] == before


def test_events_and_resolved_letters_are_dated_by_the_stores_clock(
    broker: Broker, clock: ManualClock, letters: list[int]
) -> None:
    broker.purge("q", 1)
    assert broker.events(kind="purged")[0].time == broker.dead_letter("q", 1).resolved == _now(clock)


def test_an_edit_may_schedule_the_message(broker: Broker, clock: ManualClock) -> None:
    create(broker, "w")
    (number,) = set_aside(broker, b"x", path="w")
    later = _now(clock) + timedelta(seconds=60)
    report = broker.resubmit("w", number, edit=lambda letter: Message(b"y", scheduled_enqueue_time=later))
    assert list(report.resubmitted) == [number]
    (waiting,) = broker.peek("w")
    assert (waiting.state, waiting.scheduled_enqueue_time) == (MessageState.SCHEDULED, later)
    assert broker.receiver("w").receive() == []
    clock.advance(60)
    found = take(broker, "w")
    assert (found.body, len(broker.attempts("w", found.sequence_number))) == (b"y", 1)


def test_a_topic_has_no_dead_letters_of_its_own(broker: Broker) -> None:
    broker.create_topic("t")
    calls: list[Callable[[], object]] = [
        lambda: list(broker.dead_letters("t")),
        lambda: broker.dead_letter("t", 1),
        lambda: broker.dead_letter_groups("t"),
        lambda: broker.resubmit("t", 1),
        lambda: broker.resubmit("t", DeadLetterFilter()),
        lambda: broker.purge("t", 1),
        lambda: broker.peek("t;poison"),
        lambda: broker.peek("t", subqueue="transfer_dead_letter"),
        lambda: broker.peek("t;retry"),
    ]
    for call in calls:
        with pytest.raises(NotAllowed, match=r"'t' is a topic: .* its subscriptions"):
            call()
    assert broker.peek("t") == []
