"""Two orders, of which one cannot be paid: python -m examples.order_saga [URL of a store]"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import msgspec

import lazaretto
from examples.order_saga.services import DEFINITIONS, Order
from lazaretto import Broker


def order(broker: Broker, wanted: Order) -> str:
    """Order something, and return how that ended."""
    with broker.dialogs.transaction() as work:
        handle = work.begin_dialog("Customers", "Orders", "Ordering")
        work.send(handle, "order/Place", msgspec.json.encode(wanted))
    answer = "nothing"
    while True:
        with broker.dialogs.transaction("customers") as work:
            for message in work.receive(max_wait=30.0, conversation=handle):
                if message.is_error:
                    return f"refused, {message.error}"
                if message.is_end:
                    return answer
                answer = message.type


def main() -> None:
    """Run the saga twice, in the store that is named or in one that is thrown away at the end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        lazaretto.connect(sys.argv[1] if len(sys.argv) > 1 else Path(folder, "orders.db")) as broker,
    ):
        broker.dialogs.apply(DEFINITIONS)
        with broker.dialogs.activate() as monitors:
            for wanted in (Order("lamp", 4_990, "Ana"), Order("sofa", 79_900, "Ben")):
                print(f"{wanted.account} orders a {wanted.article}")
                answer = order(broker, wanted)
                # The customer may hear of it before the shipper does.
                while any(monitor.has_work() for monitor in monitors):
                    time.sleep(0.05)
                print(f"  customer: {answer}")
        print(f"conversations left: {len(list(broker.dialogs.conversations()))}")


if __name__ == "__main__":
    main()
