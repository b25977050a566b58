"""Three expense reports, one of them poison: python -m examples.expense_dialogs [URL of a store]"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import msgspec

import lazaretto
from examples.expense_dialogs.service import (
    EMPLOYEES,
    EXPENSE_REPORT,
    EXPENSES,
    SUBMISSION,
    ExpenseReport,
    Item,
    set_up,
)
from lazaretto import Broker

REPORTS = [
    ExpenseReport("Ana", [Item("train", 4200), Item("lunch", 1350)]),
    # The second item breaks a rule of the table; the first must not stay in the books alone.
    ExpenseReport("Ben", [Item("hotel", 18900), Item("refund", -500)]),
    ExpenseReport("Ana", [Item("taxi", 2300)]),
]


def submit(broker: Broker) -> dict[str, str]:
    """Begin a dialog for each report; return the employees by conversation."""
    employees = {}
    with broker.dialogs.transaction() as work:
        for report in REPORTS:
            handle = work.begin_dialog(EMPLOYEES, EXPENSES, SUBMISSION)
            work.send(handle, EXPENSE_REPORT, msgspec.json.encode(report))
            employees[handle] = report.employee
    return employees


def main() -> None:
    """Process the reports in the store that is named, or in one that is thrown away at the end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        lazaretto.connect(sys.argv[1] if len(sys.argv) > 1 else Path(folder, "expenses.db")) as broker,
    ):
        set_up(broker)
        with broker.transaction() as tx:
            tx.execute("INSERT INTO employees VALUES ('Ana'), ('Ben')")
        employees = submit(broker)

        # The host reads as long as there is something to read.
        with broker.dialogs.activate() as (monitor,):
            while monitor.has_work():
                time.sleep(0.05)

        with broker.transaction() as tx:
            query = "SELECT employee, sum(amount) FROM expense_items GROUP BY employee ORDER BY employee"
            for employee, cents in tx.execute(query):
                print(f"in the books: {employee} {cents / 100:.2f}")
        for letter in broker.dead_letters("expense-queue"):
            failed = [e for e in broker.dialogs.timeline(letter.message_id[:32]) if e.kind == "set_aside"]
            print(f"set aside: reason {letter.reason}, {letter.error_type}, message {failed[0].number}")
        with broker.dialogs.transaction("employees") as work:
            for message in work.receive():
                print(f"{employees.pop(message.conversation)} is told: error {message.error}")
        for handle in employees:
            broker.dialogs.end(handle)
        with broker.dialogs.activate() as (monitor,):
            while monitor.has_work():
                time.sleep(0.05)
        print(f"conversations left: {len(list(broker.dialogs.conversations()))}")


if __name__ == "__main__":
    main()
