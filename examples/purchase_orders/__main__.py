"""Five purchase orders, two of them bad: python -m examples.purchase_orders"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

import lazaretto
from examples.purchase_orders.service import (
    ORDERS,
    STATUS,
    Line,
    PurchaseOrder,
    note_poison,
    set_up,
    submit_order,
)
from lazaretto import Message
from lazaretto.host import ServiceHost

BODIES = {
    "po-1": PurchaseOrder("po-1", 1001, [Line("blue widget", 54, 2999)]),
    "po-2": PurchaseOrder("po-2", 1002, [Line("red widget", 890, 4559)]),
    "po-3": PurchaseOrder("po-3", 9999, [Line("green widget", 1, 100)]),
    "po-4": {"number": "po-4", "customer": "who?"},
    "po-5": PurchaseOrder("po-5", 1001, [Line("red widget", 1, 4559)]),
}


def main() -> None:
    """Process the orders in a store that is thrown away at the end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        lazaretto.connect(Path(folder, "orders.db")) as broker,
    ):
        set_up(broker)
        with broker.sender(ORDERS) as sender:
            sender.send([Message(msgspec.json.encode(b), message_id=name) for name, b in BODIES.items()])

        ServiceHost(broker, [submit_order, note_poison]).run(
            until=lambda: broker.queue(STATUS).counts.active == len(BODIES)
        )
        with broker.transaction() as tx:
            for number, customer, cents in tx.execute("SELECT * FROM orders ORDER BY number"):
                print(f"booked: {number} for {customer}, {cents / 100:,.2f}")
            for number, reason in tx.execute("SELECT * FROM problems ORDER BY number"):
                print(f"to look at: {number}: {reason}")
        print("told:", ", ".join(sorted(m.body.decode() for m in broker.peek(STATUS, 10))))


if __name__ == "__main__":
    main()
