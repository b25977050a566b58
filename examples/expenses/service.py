"""Service Broker's sample ProcessExpenseReport, with its TrackMessage and ClearMessageTracking.

The application decides itself when a report is poison, and remembers failures in a table of its
own. A report that fails is undone to a savepoint, which keeps its lock: until the commit nobody
else gets it, and the commit both gives it back and counts the failure.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lazaretto import (
    Broker,
    BrokerTransaction,
    Message,
    PoisonPolicy,
    QueueOptions,
    ReceivedMessage,
)

QUEUE = "expenses"
#: Failures after which a report gets no further attempt.
MOST_FAILURES = 4

# Nothing is counted per message by the broker. But five receives in a row that are rolled back
# as a whole switch the queue off: the safety net for what this code cannot catch.
OPTIONS = QueueOptions(policy=PoisonPolicy.service_broker())

_TABLES = (
    "CREATE TABLE IF NOT EXISTS employees (name TEXT PRIMARY KEY)",
    """CREATE TABLE IF NOT EXISTS expense_items (
        employee TEXT NOT NULL, purpose TEXT NOT NULL, amount INTEGER NOT NULL CHECK (amount > 0)
    )""",
    """CREATE TABLE IF NOT EXISTS expense_failed_messages (
        message_id TEXT PRIMARY KEY, count INTEGER NOT NULL
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
    """Create the queue and the application's tables, in one database, if they are missing."""
    broker.create_queue(QUEUE, OPTIONS, exist_ok=True)
    with broker.transaction() as tx:
        for table in _TABLES:
            tx.execute(table)


def process_next(broker: Broker, max_wait: float = 0.0) -> bool:
    """Process one expense report in one commit; return whether there was one."""
    with broker.transaction() as tx:
        before_receive = tx.savepoint()
        messages = tx.receive(QUEUE, max_wait=max_wait)
        if not messages:
            return False
        (message,) = messages
        try:
            add_expense_report(tx, message)
        except Exception as error:
            before_receive.rollback()
            track_message(tx, message, error)
        else:
            clear_message_tracking(tx, message)
    return True


def add_expense_report(tx: BrokerTransaction, message: ReceivedMessage) -> None:
    """Write the items of a report to the books."""
    report = msgspec.json.decode(message.body, type=ExpenseReport)
    found = run_sql(tx, "SELECT 1 FROM employees WHERE name = ?", report.employee).fetchone()
    if found is None:
        raise UnknownEmployee(f"no employee is named {report.employee!r}")
    for item in report.items:
        values = (report.employee, item.purpose, item.amount)
        run_sql(tx, "INSERT INTO expense_items VALUES (?, ?, ?)", *values)


def track_message(tx: BrokerTransaction, message: ReceivedMessage, error: Exception) -> None:
    """Count a failure of a message; after too many, set it aside and tell its sender."""
    (count,) = run_sql(
        tx,
        "INSERT INTO expense_failed_messages VALUES (?, 1) "
        "ON CONFLICT (message_id) DO UPDATE SET count = expense_failed_messages.count + 1 RETURNING count",
        message.message_id,
    ).fetchone()
    if count < MOST_FAILURES:
        return
    clear_message_tracking(tx, message)
    tx.dead_letter(message, reason="500", description="Unable to process message.", error=error)
    if message.reply_to is not None:
        answer = {"error": 500, "description": "Unable to process message.", "cause": str(error)}
        tx.send(message.reply_to, Message(msgspec.json.encode(answer), correlation_id=message.message_id))


def clear_message_tracking(tx: BrokerTransaction, message: ReceivedMessage) -> None:
    """Forget the failures of a message."""
    run_sql(tx, "DELETE FROM expense_failed_messages WHERE message_id = ?", message.message_id)


def run_sql(tx: BrokerTransaction, sql: str, *values: object) -> Any:
    """Run a statement whose parameters are ?, in a file or on a server."""
    return tx.execute(sql if tx.paramstyle == "qmark" else sql.replace("?", "%s"), values)
