"""A day in the warehouse, with two part numbers that nobody knows: python -m examples.inventory"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

import lazaretto
from examples.inventory.service import (
    ALERTS,
    NEWS,
    STOCK,
    Change,
    add_part,
    keep_stock,
    message_of,
    set_up,
    stock,
)
from lazaretto import Broker, DeadLetter, DeadLetterFilter, Message

DAY = [("A-1", 500), ("B-7", 40), ("X-9", 12), ("A-1", -120), ("B7", 10), ("B-7", -3), ("X-9", 8)]


def show(title: str, broker: Broker) -> None:
    """Print the stock, and what waits for the operator."""
    print(f"{title}: " + ", ".join(f"{part} {quantity}" for part, quantity in stock(broker).items()))
    for letter in broker.dead_letters(STOCK):
        print(f"  for the operator: message {letter.sequence_number}: {letter.error_message}")


def corrected(letter: DeadLetter) -> Message | None:
    """Return a message with the part number that was meant; None: it was right."""
    assert letter.message is not None
    change = msgspec.json.decode(letter.message.body, type=Change)
    return message_of("B-7", change.quantity) if change.part == "B7" else None


def main() -> None:
    """Run the day in a store that is thrown away at the end."""
    with tempfile.TemporaryDirectory() as folder, lazaretto.connect(Path(folder, "parts.db")) as broker:
        set_up(broker, ["A-1", "B-7"])
        broker.sender(NEWS).send([message_of(part, quantity) for part, quantity in DAY])
        keep_stock(broker)
        show("at noon", broker)
        for alert in broker.peek(ALERTS, 10):
            print(f"  alert: {alert.subject}")

        # X-9 is a new part; B7 was a typing error. Each goes back to the stock alone: no alert comes twice.
        add_part(broker, "X-9")
        broker.resubmit(STOCK, DeadLetterFilter(reason="MaxDeliveryCountExceeded"), edit=corrected)
        keep_stock(broker)
        show("in the evening", broker)
        print(f"  alerts: {broker.queue(ALERTS).counts.active}")


if __name__ == "__main__":
    main()
