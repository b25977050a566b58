"""The expense service counts failures in its own table, in the commit that gives the report back."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from servers import Server, new_store

import lazaretto
from examples.expenses import service
from examples.expenses.service import QUEUE, ExpenseReport, Item, process_next
from lazaretto import Broker, BrokerTransaction, Message, QueueDisabled, QueueStatus, ReceivedMessage

ROOT = Path(__file__).parents[2]
GOOD = ExpenseReport("Ana", [Item("train", 4200)])
POISON = ExpenseReport("Ana", [Item("hotel", 18900), Item("refund", -500)])


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'expenses.db'}"
        return
    with new_store(request.getfixturevalue("postgres").url) as found:
        yield found


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with lazaretto.connect(url) as opened:
        service.set_up(opened)
        opened.create_queue("answers")
        with opened.transaction() as tx:
            tx.execute("INSERT INTO employees VALUES ('Ana')")
        yield opened


def send(broker: Broker, message_id: str, report: ExpenseReport | bytes) -> None:
    body = report if isinstance(report, bytes) else msgspec.json.encode(report)
    with broker.sender(QUEUE) as sender:
        sender.send(Message(body, message_id=message_id, reply_to="answers"))


def rows(broker: Broker, sql: str) -> list[Any]:
    with broker.transaction() as tx:
        found: list[Any] = tx.execute(sql).fetchall()
    return found


def failures(broker: Broker) -> dict[str, int]:
    return dict(rows(broker, "SELECT message_id, count FROM expense_failed_messages"))


def books(broker: Broker) -> list[Any]:
    return rows(broker, "SELECT employee, purpose, amount FROM expense_items")


def test_a_good_report_is_in_the_books_and_gone_from_the_queue(broker: Broker) -> None:
    send(broker, "r1", GOOD)
    assert process_next(broker)
    assert not process_next(broker)
    assert books(broker) == [("Ana", "train", 4200)]
    assert broker.queue(QUEUE).counts.total == 0


def test_the_verdict_falls_at_the_fourth_failure(broker: Broker) -> None:
    send(broker, "r1", POISON)
    for count in (1, 2, 3):
        assert process_next(broker)
        assert failures(broker) == {"r1": count}
        assert broker.queue(QUEUE).counts.active == 1
        assert not broker.peek("answers")

    assert process_next(broker)

    assert failures(broker) == {}
    assert books(broker) == [], "the item before the one that failed is undone too"
    (letter,) = broker.dead_letters(QUEUE)
    assert (letter.message_id, letter.reason) == ("r1", "500")
    assert letter.description == "Unable to process message."
    assert letter.error_type in ("sqlite3.IntegrityError", "psycopg.errors.CheckViolation")
    (answer,) = broker.peek("answers")
    assert answer.correlation_id == "r1"
    assert msgspec.json.decode(answer.body)["error"] == 500
    assert not process_next(broker)


def test_the_broker_itself_counts_nothing_and_stays_on(broker: Broker) -> None:
    for number in range(3):
        send(broker, f"r{number}", POISON)
    attempts = 0
    while process_next(broker):
        attempts += 1
    assert attempts == 3 * service.MOST_FAILURES
    assert broker.queue(QUEUE).status is QueueStatus.ACTIVE
    assert [letter.counters.failures for letter in broker.dead_letters(QUEUE)] == [0, 0, 0]


def test_reports_behind_a_poison_one_are_processed(broker: Broker) -> None:
    send(broker, "poison", POISON)
    send(broker, "unreadable", b"\xff not JSON")
    send(broker, "good", GOOD)
    while process_next(broker):
        pass
    assert books(broker) == [("Ana", "train", 4200)]
    assert [letter.message_id for letter in broker.dead_letters(QUEUE)] == ["poison", "unreadable"]


def test_a_success_clears_the_count(broker: Broker) -> None:
    send(broker, "r1", ExpenseReport("Ben", [Item("taxi", 2300)]))
    for _ in range(3):
        process_next(broker)
    assert failures(broker) == {"r1": 3}
    with broker.transaction() as tx:
        tx.execute("INSERT INTO employees VALUES ('Ben')")

    process_next(broker)

    assert failures(broker) == {}
    assert books(broker) == [("Ben", "taxi", 2300)]


def test_the_lock_is_kept_while_the_failure_is_counted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    track = service.track_message

    def look_first(tx: BrokerTransaction, message: ReceivedMessage, error: Exception) -> None:
        with broker.receiver(QUEUE) as other:
            seen.append(len(other.receive()))
        track(tx, message, error)

    monkeypatch.setattr(service, "track_message", look_first)
    send(broker, "r1", POISON)
    process_next(broker)
    assert seen == [0]
    assert failures(broker) == {"r1": 1}
    assert broker.queue(QUEUE).counts.active == 1


def test_a_failure_that_cannot_be_tracked_switches_the_queue_off_at_the_fifth(broker: Broker) -> None:
    with broker.transaction() as tx:
        tx.execute("DROP TABLE expense_failed_messages")
    send(broker, "r1", POISON)
    for _ in range(5):
        assert broker.queue(QUEUE).status is QueueStatus.ACTIVE
        with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable)):
            process_next(broker)

    assert broker.queue(QUEUE).status is QueueStatus.DISABLED
    with pytest.raises(QueueDisabled):
        process_next(broker)
    assert [event.kind for event in broker.events(queue=QUEUE)][-1] == "queue_disabled"
    assert len(broker.peek(QUEUE)) == 1, "the report is still there"


def run_example(name: str, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", name, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_the_example_runs(tmp_path: Path) -> None:
    assert run_example("examples.expenses", tmp_path).splitlines()[:3] == [
        "6 attempts at 3 reports",
        "in the books: Ana 78.50",
        "set aside: report-2: CHECK constraint failed: amount > 0",
    ]


def test_the_example_runs_on_a_server(postgres: Server, tmp_path: Path) -> None:
    with new_store(postgres.url) as url:
        lines = run_example("examples.expenses", tmp_path, url).splitlines()
    assert lines[:2] == ["6 attempts at 3 reports", "in the books: Ana 78.50"]
    assert lines[2].startswith("set aside: report-2: new row for relation")


def test_the_quickstart_runs_twice(tmp_path: Path) -> None:
    for _ in range(2):
        output = run_example("examples.quickstart", tmp_path).splitlines()
        assert output[:3] == [
            "shipping 12 boxes",
            "ConsumeReport(completed=1, failed=3, invalid=0, locks_lost=0)",
            "1 MaxDeliveryCountExceeded invalid literal for int() with base 10: b'a dozen'",
        ]
