"""Three expense reports, one of them poison: python -m examples.expense_reports"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

import lazaretto
from examples.expense_reports.service import ANSWERS, EXPENSES, end_with_error, process_expense_report, set_up
from examples.expenses.__main__ import REPORTS
from lazaretto import Message
from lazaretto.host import ServiceHost


def main() -> None:
    """Process the reports in a store that is thrown away at the end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        lazaretto.connect(Path(folder, "expenses.db")) as broker,
    ):
        set_up(broker)
        with broker.sender(EXPENSES) as sender:
            for name, report in REPORTS.items():
                sender.send(Message(msgspec.json.encode(report), message_id=name, reply_to=ANSWERS))

        host = ServiceHost(broker, [process_expense_report, end_with_error])
        host.run(until=lambda: broker.queue(EXPENSES).counts.total == 0)
        (work, _) = host.reports()
        print(f"{work.completed + work.retried + work.dead} attempts at {len(REPORTS)} reports")
        with broker.transaction() as tx:
            for employee, cents in tx.execute(
                "SELECT employee, sum(amount) FROM expense_items GROUP BY employee ORDER BY employee"
            ):
                print(f"in the books: {employee} {cents / 100:.2f}")
        for answer in broker.peek(ANSWERS):
            print(f"answered: {answer.correlation_id}: {answer.body.decode()}")


if __name__ == "__main__":
    main()
