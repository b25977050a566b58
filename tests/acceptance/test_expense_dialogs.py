"""Service Broker's sample of poison messages: the verdict falls at the fourth failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from servers import new_store

import lazaretto
from examples.expense_dialogs.service import (
    EMPLOYEES,
    EXPENSE_REPORT,
    EXPENSES,
    SUBMISSION,
    ExpenseReport,
    Item,
    process_expense_report,
    set_up,
)
from lazaretto import Broker, QueueDisabled
from lazaretto.dialogs import DialogTransaction, Reader

QUEUE = "expense-queue"
GOOD = ExpenseReport("Ana", [Item("train", 4200)])
#: The second item breaks a rule of the table.
POISON = ExpenseReport("Ana", [Item("hotel", 18900), Item("refund", -500)])


@pytest.fixture(params=["sqlite", "postgres"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'expenses.db'}"
        with lazaretto.connect(url) as opened:
            yield ready(opened)
        return
    with new_store(request.getfixturevalue("postgres").url) as url, lazaretto.connect(url) as opened:
        yield ready(opened)


def ready(broker: Broker) -> Broker:
    set_up(broker)
    with broker.transaction() as tx:
        tx.execute("INSERT INTO employees VALUES ('Ana')")
    return broker


def submit(broker: Broker, *reports: ExpenseReport) -> str:
    with broker.dialogs.transaction() as work:
        handle = work.begin_dialog(EMPLOYEES, EXPENSES, SUBMISSION)
        for report in reports:
            work.send(handle, EXPENSE_REPORT, msgspec.json.encode(report))
    return handle


class OneAtATime(Reader):
    """A reader whose procedure is to return after one round."""

    @property
    def stopping(self) -> bool:
        return self.receives > 0


def process(broker: Broker) -> None:
    """Run the procedure's loop once."""
    known = broker.dialogs.definitions().service(EXPENSES)
    process_expense_report(OneAtATime(broker._store, broker.dialogs._directory, known))


def rows(broker: Broker, sql: str) -> list[Any]:
    with broker.transaction() as tx:
        found: list[Any] = tx.execute(sql).fetchall()
    return found


def counts(broker: Broker) -> list[int]:
    return [count for (count,) in rows(broker, "SELECT count FROM expense_service_failed_messages")]


def test_the_counter_and_the_verdict(broker: Broker) -> None:
    handle = submit(broker, POISON, GOOD)
    seen = []
    for _ in range(4):
        process(broker)
        seen.append(counts(broker))
    # The first failure inserts a 1 and adds one at once; the counter is above 3 at the fourth.
    assert seen == [[2], [3], [4], []]
    with broker.dialogs.transaction("employees") as work:
        (answer,) = work.receive()
        assert (answer.conversation, answer.error) == (handle, (500, "Unable to process message."))
    # Ended with an error, a conversation loses what waited in it; here the culprit is kept.
    (dead,) = broker.dead_letters(QUEUE)
    assert (dead.reason, dead.counters.failures) == ("500", 0)
    assert dead.error_message is not None
    assert "amount" in dead.error_message
    assert rows(broker, "SELECT * FROM expense_items") == []
    assert list(broker.dialogs.conversations()) == []


def test_a_success_clears_the_count_of_its_conversation(broker: Broker) -> None:
    handle = submit(broker, ExpenseReport("Ben", [Item("lunch", 900)]))
    for _ in range(3):
        process(broker)
    assert counts(broker) == [4]
    with broker.transaction() as tx:
        tx.execute("INSERT INTO employees VALUES ('Ben')")
    process(broker)
    assert counts(broker) == []
    assert rows(broker, "SELECT employee, amount FROM expense_items") == [("Ben", 900)]
    broker.dialogs.end(handle)
    process(broker)
    assert list(broker.dialogs.conversations()) == []


def test_other_conversations_go_on_between_the_failures(broker: Broker) -> None:
    submit(broker, POISON)
    for _ in range(3):
        submit(broker, GOOD)
    for _ in range(7):
        process(broker)
    assert len(rows(broker, "SELECT * FROM expense_items")) == 3
    assert len(list(broker.dead_letters(QUEUE))) == 1


def test_what_the_code_cannot_catch_switches_the_queue_off(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fatal(work: DialogTransaction, message: object) -> None:
        raise KeyboardInterrupt

    submit(broker, GOOD)
    monkeypatch.setattr("examples.expense_dialogs.service.add_expense_report", fatal)
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            process(broker)
    monkeypatch.undo()
    with pytest.raises(QueueDisabled):
        process(broker)
    broker.resume_queue(QUEUE)
    process(broker)
    assert len(rows(broker, "SELECT * FROM expense_items")) == 1
