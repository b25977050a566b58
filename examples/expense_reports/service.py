"""Service Broker's sample ProcessExpenseReport, as a handler.

`examples/expenses` keeps its own count of failures in a table, as the sample does. Here that is the
queue's poison policy: at the fourth failure the report is set aside, and a second handler answers.
"""

from __future__ import annotations

import msgspec

from examples.expenses.service import ExpenseReport
from lazaretto import Broker, Message, PoisonPolicy, QueueOptions, ReceivedMessage
from lazaretto.host import HandlerContext, handler

EXPENSES = "expenses"
ANSWERS = "answers"
#: The verdict falls at the fourth failure, as in the sample.
POLICY = PoisonPolicy(receive_retry_count=3)

_TABLE = """CREATE TABLE IF NOT EXISTS expense_items (
    employee TEXT NOT NULL, purpose TEXT NOT NULL, amount INTEGER NOT NULL CHECK (amount > 0)
)"""


@handler(EXPENSES, deadline=5)
def process_expense_report(message: ReceivedMessage, context: HandlerContext) -> None:
    """Write the items of a report to the books, all of them or none."""
    report = msgspec.json.decode(message.body, type=ExpenseReport)
    for item in report.items:
        values = (report.employee, item.purpose, item.amount)
        context.execute("INSERT INTO expense_items VALUES (?, ?, ?)", values)


@handler(f"{EXPENSES}/$deadletterqueue")
def end_with_error(message: ReceivedMessage, context: HandlerContext) -> None:
    """Answer the sender of a report that was set aside, which ends the matter."""
    if message.reply_to is not None:
        error = {"error": 500, "description": "Unable to process message."}
        context.send(message.reply_to, Message(msgspec.json.encode(error), correlation_id=message.message_id))


def set_up(broker: Broker) -> None:
    """Create the queues and the table, in one database, if they are missing."""
    for path, options in ((EXPENSES, QueueOptions(policy=POLICY)), (ANSWERS, QueueOptions())):
        broker.create_queue(path, options, exist_ok=True)
    with broker.transaction() as tx:
        tx.execute(_TABLE)
