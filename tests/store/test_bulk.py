"""What is asked about many at once: few statements, however many there are, and everything as with one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lazaretto import (
    Broker,
    DeadLetterFilter,
    EntityExists,
    EntityNotFound,
    InvalidOption,
    InvalidPath,
    ManualClock,
    Message,
    MessageCounts,
    NotAllowed,
    PoisonPolicy,
    QueueOptions,
    ReceivedMessage,
    Receiver,
)
from lazaretto.engine.messages.prepare import prepare
from lazaretto.engine.messages.send import Send
from lazaretto.engine.messages.settle import Settle, Settled, Settlement
from lazaretto.model.clock import to_datetime
from lazaretto.model.entities import EntityPath
from lazaretto.model.policy import Outcome
from lazaretto.store.sql.group_commit import Ticket
from lazaretto.store.sql.statements import Statements

from .actions import bodies, create, kinds, numbers, send, set_aside
from .conftest import Connect

MANY = 1200


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All statements of this thread, by the brokers that are opened from now on."""
    found: list[str] = []
    begin = Statements.__init__

    def counting(self: Statements, execute: Callable[..., Any], *others: Any) -> None:
        def run(sql: str, *parameters: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                found.append(sql)
            return execute(sql, *parameters)

        begin(self, run, *others)

    monkeypatch.setattr(Statements, "__init__", counting)
    return found


@pytest.fixture
def broker(statements: list[str], connect: Connect) -> Broker:
    return connect()


@pytest.fixture
def letters(broker: Broker, statements: list[str]) -> list[int]:
    """Many dead letters of a queue, every third with a body that stands by itself."""
    create(broker)
    found = set_aside(broker, *(b"%d" % n + b"x" * (3000 * (n % 3 == 0)) for n in range(MANY)))
    statements.clear()
    return found


class TestDeadLetters:
    """Listed, sent back and purged."""

    def test_listed(self, broker: Broker, statements: list[str], letters: list[int]) -> None:
        found = list(broker.dead_letters("q"))
        assert len(statements) < MANY / 20
        assert [letter.message and letter.message.body[:1] for letter in found[:4]] == [
            b"0",
            b"1",
            b"2",
            b"3",
        ]
        assert numbers(found) == letters

    def test_listed_without_their_messages(
        self, broker: Broker, statements: list[str], letters: list[int]
    ) -> None:
        found = list(broker.dead_letters("q", messages=False))
        assert len(statements) < 10
        assert not any("lazaretto_bodies" in sql.split("WHERE")[0] for sql in statements)
        assert numbers(found) == letters
        assert {letter.message for letter in found} == {None}

    def test_resubmitted(self, broker: Broker, statements: list[str], letters: list[int]) -> None:
        report = broker.resubmit("q", DeadLetterFilter())
        assert len(statements) < MANY / 10
        assert report.resubmitted == {number: number + MANY for number in letters}
        assert report.skipped == []
        live = broker.peek("q", MANY)
        assert numbers(live) == list(report.resubmitted.values())
        assert [m.enqueued_sequence_number for m in live] == letters
        assert bodies(live)[:3] == [b"0" + b"x" * 3000, b"1", b"2"]
        assert {m.generation for m in live} == {1}
        dead = broker.dead_letter("q", letters[-1])
        assert (dead.resolution, dead.resubmitted_as) == ("resubmitted", 2 * MANY)
        assert broker.queue("q").counts.active == MANY
        assert broker.queue("q").counts.dead_letter == 0
        assert numbers(broker.events(kind="resubmitted", limit=10_000)) == letters
        assert broker.check() == []

    def test_purged(self, broker: Broker, statements: list[str], letters: list[int]) -> None:
        assert broker.purge("q", DeadLetterFilter(), everything=True) == letters
        assert len(statements) < MANY / 10
        assert numbers(broker.events(kind="purged", limit=10_000)) == letters
        assert broker.queue("q").counts.total == 0
        assert broker.check() == []

    def test_sizes_stay_right(self, broker: Broker, letters: list[int]) -> None:
        broker.update_queue("q", max_size=10_000_000)
        before = broker.queue("q").size
        broker.resubmit("q", letters[:700])
        assert broker.queue("q").size == before
        broker.purge("q", DeadLetterFilter(), everything=True)
        left = sum(len(message.body) for message in broker.peek("q", MANY))
        assert broker.queue("q").size == left > 0

    def test_audited_by_runs(self, broker: Broker, letters: list[int]) -> None:
        broker.resubmit("q", [*letters[:300], letters[400]])
        broker.purge("q", letters[500:900:2])
        purge, resubmit = broker.audit(queue="q", limit=2)
        assert resubmit.detail == {"count": 301, "sequence_numbers": ["1-300", 401]}
        assert purge.detail == {"count": 200, "first": 501, "last": 899}

    def test_edited_ones_among_others(self, broker: Broker, letters: list[int]) -> None:
        def edit(letter: Any) -> Message | None:
            return Message(b"new") if letter.sequence_number % 2 else None

        broker.resubmit("q", letters[:6], edit=edit)
        live = broker.peek("q", 10)
        assert bodies(live)[0::2] == [b"new"] * 3
        assert [m.edit_of is not None for m in live] == [True, False] * 3
        assert [e.detail["edited"] for e in broker.events(kind="resubmitted")] == [True, False] * 3
        assert broker.check() == []


def settle(how: str, receiver: Receiver, messages: list[ReceivedMessage]) -> None:
    """Settle messages that failed, in one of the ways in which a receiver does."""
    if how == "dead-lettered":
        receiver.dead_letter(messages, reason="bad")
    else:
        receiver.abandon(messages, error=ValueError(f"{how}: it failed"))


class TestSettling:
    """Messages that fail together are written about together, and stand as those that fail one by one."""

    @pytest.mark.parametrize("how", ["dead-lettered", "tried again", "set aside"])
    def test_together_and_one_by_one(
        self, broker: Broker, clock: ManualClock, statements: list[str], how: str
    ) -> None:
        retries = 1 if how == "tried again" else 0
        for path in ("together", "each"):
            broker.create_queue(path, QueueOptions(policy=PoisonPolicy(receive_retry_count=retries)))
            send(broker, *(b"%d" % n + b"x" * (3000 * (n % 3 == 0)) for n in range(150)), path=path)
        receivers = {path: broker.receiver(path) for path in ("together", "each")}
        got = {path: receiver.receive(150) for path, receiver in receivers.items()}
        statements.clear()
        settle(how, receivers["together"], got["together"])
        assert len(statements) < 30
        for message in got["each"]:
            settle(how, receivers["each"], [message])
        assert shown(broker, "together") == shown(broker, "each")
        events = [(e.sequence_number, e.detail) for e in broker.events(queue="together", limit=1000)]
        assert events == [(e.sequence_number, e.detail) for e in broker.events(queue="each", limit=1000)]
        again = {path: receiver.receive(150) for path, receiver in receivers.items()}
        tried = [[(m.body, m.attempt) for m in messages] for messages in again.values()]
        assert tried[0] == tried[1]
        assert len(tried[0]) == 150 * retries
        assert broker.check() == []

    def test_one_letter_after_its_attempts(self, broker: Broker) -> None:
        """What nobody gives an error for has that of its latest attempt, also if many are settled."""
        create(broker)
        send(broker, b"1", b"2", b"3")
        receiver = broker.receiver("q")
        for attempt in range(2):
            *failed, other = receiver.receive(3)
            for number, message in enumerate(failed):
                receiver.abandon(message, error=ValueError(f"{attempt} of {number}"))
            receiver.release(other)
        receiver.dead_letter(receiver.receive(3), reason="bad")
        letters = list(broker.dead_letters("q"))
        assert [letter.error_message for letter in letters] == ["1 of 0", "1 of 1", None]

    def test_what_fails_halfway_is_not_done(self, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
        create(broker)
        letters = set_aside(broker, b"1", b"2", reason="bad")
        dead, store = broker.receiver("q", subqueue="dead_letter"), broker._store
        held = dead.receive(2)
        # A dead letter cannot be dead-lettered: the attempt before it has not failed either.
        outcomes = (Settlement(Outcome.FAILED), Settlement(Outcome.DEAD_LETTERED))
        bad = Settle([Settled(m, how) for m, how in zip(held, outcomes, strict=True)])
        group = [Ticket(bad), Ticket(Send(EntityPath("q"), [prepare(Message(b"live"))]))]
        caplog.clear()
        with store._group.writing():
            # As the threads of two callers whose operations share a commit.
            store._commit(group)
        store._write_notices()
        assert isinstance(group[0].error, NotAllowed)
        assert group[1].error is None
        assert not [text for text in caplog.messages if "failed" in text]
        assert [outcome_of(broker, number) for number in letters] == [Outcome.DEAD_LETTERED] * 2
        dead.complete(held)
        assert bodies(broker.receiver("q").receive(2)) == [b"live"]
        assert broker.check() == []


def shown(broker: Broker, path: str) -> list[Any]:
    """Return what is shown of a queue's letters, counts and causes, but for times and ids."""
    letters = [broker.dead_letter(path, letter.sequence_number) for letter in broker.dead_letters(path)]
    of_letters = [
        (
            letter.sequence_number, letter.reason, letter.description, letter.error_type,
            letter.error_message, letter.counters, letter.fingerprint, letter.message and letter.message.body,
            [(a.number, a.outcome, a.error_type, a.error_message, a.stack, a.site) for a in letter.attempts],
        )
        for letter in letters
    ]  # fmt: skip
    queue = broker.queue(path)
    causes = [(cause.template, cause.letters) for cause in broker.triage(path).causes]
    return [of_letters, queue.counts, causes]


def outcome_of(broker: Broker, number: int) -> Outcome:
    """Return how the latest attempt at a dead letter ended."""
    return broker.dead_letter("q", number).attempts[-1].outcome


class TestQueues:
    """Created, described and counted."""

    def test_created_in_one_commit_and_described(self, broker: Broker, statements: list[str]) -> None:
        statements.clear()
        created = broker.create_queues([f"Many/{n}" for n in range(MANY)], QueueOptions(lock_duration=5))
        assert len(statements) < MANY / 20
        assert [queue.path for queue in created[:2]] == ["Many/0", "Many/1"]
        assert kinds(broker.events(limit=10_000)) == ["queue_created"] * MANY
        statements.clear()
        found = {queue.path: queue for queue in broker.queues()}
        assert len(statements) < 10
        assert {queue.path: queue for queue in created}.items() <= found.items()
        assert {queue.options.lock_duration for queue in created} == {5}
        assert len(found) == MANY + 1

    def test_all_of_them_or_none(self, broker: Broker) -> None:
        broker.create_queue("b")
        for paths, error in (
            (["a", "B"], EntityExists),
            (["a", "A"], EntityExists),
            (["a", "t/subscriptions/s"], InvalidPath),
            (["a", "c;poison"], NotAllowed),
            (["a", ""], InvalidPath),
            ("abc", InvalidOption),
        ):
            with pytest.raises(error):
                broker.create_queues(paths)
        with pytest.raises(EntityNotFound):
            broker.create_queues(["a", "c"], QueueOptions(forward_to="nowhere"))
        assert [queue.path for queue in broker.queues()] == ["$system/deadletter", "b"]
        assert broker.create_queues([]) == []
        assert kinds(broker.events()) == ["queue_created"]
        assert [entry.queue for entry in broker.audit()] == ["b"]

    def test_described_as_one_by_one(self, broker: Broker, clock: ManualClock) -> None:
        """Several queues in every state are described together as each is by itself."""
        broker.create_queues(["a", "b", "c"], QueueOptions(max_size=100_000))
        create(broker, "s", requires_session=True, receive_retry_count=0, on_poison_session="block")
        broker.create_topic("t")
        broker.create_subscription("t", "one")
        broker.sender("t").send([Message(b"x"), Message(b"y")])
        broker.sender("t").schedule(Message(b"later"), to_datetime(clock.now() + 60_000_000))
        set_aside(broker, b"dead", b"too", path="a")
        send(broker, b"1", b"2", b"3", path="a")
        taken = broker.receiver("a").receive(2)
        broker.receiver("a").defer(taken[0])
        broker.sender("b").schedule(Message(b"later"), to_datetime(clock.now() + 60_000_000))
        send(broker, b"short", path="c", time_to_live=1)
        send(broker, b"x", path="s", session_id="s1")
        with broker.receiver("s", session="s1") as receiver:
            receiver.abandon(receiver.receive()[0])
        held = broker.receiver("c").receive()
        found = {queue.path: queue for queue in broker.queues()}
        assert found == {path: broker.queue(path) for path in found}
        assert found["a"].counts == MessageCounts(active=1, locked=1, deferred=1, dead_letter=2)
        assert found["b"].counts == MessageCounts(scheduled=1)
        assert [found[path].size is None for path in "abs"] == [False, False, True]
        assert (found["c"].counts, len(held)) == (MessageCounts(locked=1), 1)
        assert found["s"].held_sessions == 1
        assert broker.topics() == [broker.topic("t")]
        assert (broker.topic("t").subscriptions, broker.topic("t").scheduled) == (1, 1)
        assert broker.subscriptions("t") == [broker.subscription("t", "one")]
        assert broker.subscription("t", "one").queue.counts.active == 2

    def test_made_by_several_threads(self, broker: Broker) -> None:
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(broker.create_queue, (f"q{n}" for n in range(100))))
        assert {queue.path for queue in made} == {f"q{n}" for n in range(100)}
        assert len(broker.queues()) == 101
