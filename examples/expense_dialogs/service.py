"""ProcessExpenseReport, TrackMessage and ClearMessageTracking, as Service Broker's documentation has them.

Before it receives, the procedure marks a savepoint. What it cannot process it undoes to there: the message
is back in its queue, and its conversation group stays locked, so that nobody else gets it before the
commit, which counts the failure in a table of the application. At the fourth failure the conversation is
ended with an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from lazaretto import Broker
from lazaretto.dialogs import DialogMessage, DialogTransaction, Reader

DEFINITIONS = Path(__file__).with_name("services.toml")
_NAMES = "//Adventure-Works.com/AccountsPayable"
EMPLOYEES, EXPENSES = f"{_NAMES}/Employees", f"{_NAMES}/Expenses"
SUBMISSION, EXPENSE_REPORT = f"{_NAMES}/ExpenseSubmission", f"{_NAMES}/ExpenseReport"

_TABLES = (
    "CREATE TABLE IF NOT EXISTS employees (name TEXT PRIMARY KEY)",
    """CREATE TABLE IF NOT EXISTS expense_items (
        employee TEXT NOT NULL, purpose TEXT NOT NULL, amount INTEGER NOT NULL CHECK (amount > 0)
    )""",
    """CREATE TABLE IF NOT EXISTS expense_service_failed_messages (
        conversation_handle TEXT PRIMARY KEY, count INTEGER NOT NULL
    )""",
)


class Item(msgspec.Struct):
    """What was paid for, and the amount in cents."""

    purpose: str
    amount: int


class ExpenseReport(msgspec.Struct):
    """What an employee spent."""

    employee: str
    items: list[Item]


class UnknownEmployee(Exception):
    """The report is from someone who is not an employee, or not yet."""


def set_up(broker: Broker) -> None:
    """Make the services and the application's tables, in one database, where they are missing."""
    broker.dialogs.apply(DEFINITIONS)
    with broker.transaction() as tx:
        for table in _TABLES:
            tx.execute(table)


def process_expense_report(reader: Reader) -> None:
    """Process expense reports until none comes for half a second."""
    while not reader.stopping:
        with reader.transaction() as work:
            undo_receive = work.savepoint()
            messages = work.receive(max_wait=0.5)
            if not messages:
                return
            (message,) = messages
            if message.type == EXPENSE_REPORT:
                try:
                    add_expense_report(work, message)
                except Exception as error:
                    undo_receive.rollback()
                    track_message(work, message, error)
                else:
                    clear_message_tracking(work, message.conversation)
            elif message.is_last:
                work.end(message.conversation)
                clear_message_tracking(work, message.conversation)


def add_expense_report(work: DialogTransaction, message: DialogMessage) -> None:
    """Write the items of a report to the books."""
    report = msgspec.json.decode(message.body, type=ExpenseReport)
    if run_sql(work, "SELECT 1 FROM employees WHERE name = ?", report.employee).fetchone() is None:
        raise UnknownEmployee(f"no employee is named {report.employee!r}")
    for item in report.items:
        values = (report.employee, item.purpose, item.amount)
        run_sql(work, "INSERT INTO expense_items VALUES (?, ?, ?)", *values)


def track_message(work: DialogTransaction, message: DialogMessage, error: Exception) -> None:
    """Count a failure of the conversation; after too many, end it with an error."""
    handle = message.conversation
    table = "expense_service_failed_messages"
    found = run_sql(work, f"SELECT count FROM {table} WHERE conversation_handle = ?", handle).fetchone()
    if found is None:
        run_sql(work, f"INSERT INTO {table} (count, conversation_handle) VALUES (1, ?)", handle)
    if found is not None and found[0] > 3:
        clear_message_tracking(work, handle)
        # Service Broker would lose the report here. This one is kept, with the error, for someone to look at.
        work.dead_letter(message, reason="500", error=error)
        work.end(handle, error=(500, "Unable to process message."))
    else:
        run_sql(work, f"UPDATE {table} SET count = count + 1 WHERE conversation_handle = ?", handle)


def clear_message_tracking(work: DialogTransaction, handle: str) -> None:
    """Forget the failures of a conversation."""
    run_sql(work, "DELETE FROM expense_service_failed_messages WHERE conversation_handle = ?", handle)


def run_sql(work: DialogTransaction, sql: str, *values: object) -> Any:
    """Run a statement whose parameters are ?, in a file or on a server."""
    return work.execute(sql if work.paramstyle == "qmark" else sql.replace("?", "%s"), values)
