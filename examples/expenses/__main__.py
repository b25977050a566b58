"""Three expense reports, one of them poison: python -m examples.expenses [URL of a store]"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import msgspec

import lazaretto
from examples.expenses.service import QUEUE, ExpenseReport, Item, process_next, set_up
from lazaretto import Message

REPORTS = {
    "report-1": ExpenseReport("Ana", [Item("train", 4200), Item("lunch", 1350)]),
    # The second item breaks a rule of the table; the first must not stay in the books alone.
    "report-2": ExpenseReport("Ben", [Item("hotel", 18900), Item("refund", -500)]),
    "report-3": ExpenseReport("Ana", [Item("taxi", 2300)]),
}


def main() -> None:
    """Process the reports in the store that is named, or in one that is thrown away at the end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        lazaretto.connect(sys.argv[1] if len(sys.argv) > 1 else Path(folder, "expenses.db")) as broker,
    ):
        set_up(broker)
        broker.create_queue("answers", exist_ok=True)
        with broker.transaction() as tx:
            tx.execute("INSERT INTO employees VALUES ('Ana'), ('Ben')")
        with broker.sender(QUEUE) as sender:
            for name, report in REPORTS.items():
                sender.send(Message(msgspec.json.encode(report), message_id=name, reply_to="answers"))

        attempts = 0
        while process_next(broker):
            attempts += 1
        print(f"{attempts} attempts at {len(REPORTS)} reports")
        with broker.transaction() as tx:
            for employee, cents in tx.execute(
                "SELECT employee, sum(amount) FROM expense_items GROUP BY employee ORDER BY employee"
            ):
                print(f"in the books: {employee} {cents / 100:.2f}")
        for letter in broker.dead_letters(QUEUE):
            print(f"set aside: {letter.message_id}: {letter.error_message}")
        for answer in broker.peek("answers"):
            print(f"answered: {answer.correlation_id}: {answer.body.decode()}")


if __name__ == "__main__":
    main()
