"""The order service, and the service that looks after its poison messages.

As in queued WCF's sample, each is an operation of one service on one queue: the second one reads the
subqueue that the first one's poison messages are moved to.
"""

from __future__ import annotations

import msgspec

from lazaretto import Broker, Message, PoisonPolicy, QueueOptions, ReceivedMessage
from lazaretto.host import HandlerContext, handler

ORDERS = "orders"
STATUS = "order_status"
#: Two attempts, then a pause, then two more: an order may be faster than the news of its customer.
POLICY = PoisonPolicy(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=0.2)


class Line(msgspec.Struct):
    """What is ordered: a product, how many, and the price of one in cents."""

    product: str
    quantity: int
    price: int


class PurchaseOrder(msgspec.Struct):
    """An order, as its sender wrote it."""

    number: str
    customer: int
    lines: list[Line]


class UnknownCustomer(Exception):
    """There is no customer with this number."""


_decode = msgspec.json.Decoder(PurchaseOrder).decode
#: The customers there are.
CUSTOMERS = {1001: "Contoso", 1002: "Fabrikam"}


def is_order(message: ReceivedMessage) -> None:
    """Refuse what is no order at all: trying it again would change nothing."""
    _decode(message.body)


@handler(ORDERS, batch_size=10, deadline=5, validator=is_order)
def submit_order(message: ReceivedMessage, context: HandlerContext) -> None:
    """Book an order, and tell its sender, in the commit that takes it off the queue."""
    order = _decode(message.body)
    customer = CUSTOMERS.get(order.customer)
    if customer is None:
        raise UnknownCustomer(f"{order.number}: expected a customer's number, got {order.customer}")
    total = sum(line.quantity * line.price for line in order.lines)
    context.execute("INSERT INTO orders VALUES (?, ?, ?)", (order.number, customer, total))
    context.send(STATUS, Message(f"{order.number} accepted".encode()))


@handler(f"{ORDERS};poison")
def note_poison(message: ReceivedMessage, context: HandlerContext) -> None:
    """Write down what could not be booked, for a person to look at; the dead letter is done with then."""
    context.execute("INSERT INTO problems VALUES (?, ?)", (message.message_id, message.dead_letter_reason))
    context.send(STATUS, Message(f"{message.message_id} refused".encode()))


def set_up(broker: Broker) -> None:
    """Create the queues and the tables, in one database, if they are missing."""
    for path, options in ((ORDERS, QueueOptions(policy=POLICY)), (STATUS, QueueOptions())):
        broker.create_queue(path, options, exist_ok=True)
    with broker.transaction() as tx:
        tx.execute(
            "CREATE TABLE IF NOT EXISTS orders (number TEXT PRIMARY KEY, customer TEXT, total INTEGER)"
        )
        tx.execute("CREATE TABLE IF NOT EXISTS problems (number TEXT PRIMARY KEY, reason TEXT)")
