"""What is asked about many at once: few statements, however many there are, and everything as with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lazaretto import Broker, DeadLetterFilter, Message
from lazaretto.store.sql.transaction import SqlTransaction

from .actions import bodies, create, numbers, set_aside
from .conftest import Connect

MANY = 1200


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All statements of the brokers that are opened from now on."""
    found: list[str] = []
    begin = SqlTransaction.__init__

    def counting(self: SqlTransaction, execute: Callable[..., Any], *others: Any) -> None:
        def run(sql: str, *parameters: Any) -> Any:
            found.append(sql)
            return execute(sql, *parameters)

        begin(self, run, *others)

    monkeypatch.setattr(SqlTransaction, "__init__", counting)
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
        purge, resubmit = broker.audit(queue="q")
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
