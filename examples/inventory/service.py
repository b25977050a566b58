"""What is done with news of parts, and what the operator does with those nobody knows.

Every delivery and withdrawal is published once. The stock is kept by one subscription, an alert
for large withdrawals by another; neither knows of the other.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lazaretto import (
    Broker,
    Message,
    PoisonPolicy,
    QueueOptions,
    ReceivedMessage,
    Rule,
    SqlAction,
    SqlFilter,
)
from lazaretto.host import Handler, HandlerContext, ServiceHost

NEWS = "parts"
STOCK, ALERTS = f"{NEWS}/subscriptions/stock", f"{NEWS}/subscriptions/alerts"
#: An unknown part is not known a moment later either.
POLICY = PoisonPolicy(receive_retry_count=0)
LARGE = SqlFilter("kind = 'withdrawal' AND quantity >= @large", {"large": 100})


class Change(msgspec.Struct):
    """Parts that came, or with a quantity below 0, went."""

    part: str
    quantity: int


class UnknownPart(Exception):
    """No part has this number."""


_CHANGE = "UPDATE stock SET quantity = quantity + ? WHERE part = ?"
_decode = msgspec.json.Decoder(Change).decode


def message_of(part: str, quantity: int) -> Message:
    """Return the news of a delivery or a withdrawal."""
    kind = "delivery" if quantity > 0 else "withdrawal"
    body = msgspec.json.encode(Change(part, quantity))
    return Message(body, subject=part, properties={"kind": kind, "quantity": abs(quantity)})


class StockKeeper:
    """Changes the stock of parts that are known."""

    def __init__(self, parts: Iterable[str]) -> None:
        self._parts = frozenset(parts)

    def __call__(self, message: ReceivedMessage, context: HandlerContext) -> None:
        change = _decode(message.body)
        if change.part not in self._parts:
            # A typing error, or a new part: the operator knows.
            raise UnknownPart(f"expected the number of a part, got {change.part!r}")
        # Done in the commit that takes the news off the queue.
        context.execute(_CHANGE, (change.quantity, change.part))


def set_up(broker: Broker, parts: Iterable[str]) -> None:
    """Create the topic, its subscriptions and the table of parts."""
    broker.create_topic(NEWS, exist_ok=True)
    broker.create_subscription(NEWS, "stock", QueueOptions(policy=POLICY), exist_ok=True)
    warn = SqlAction("SET sys.Label = 'large withdrawal of ' + sys.Label")
    broker.create_subscription(NEWS, "alerts", rules=[Rule("large", LARGE, warn)], exist_ok=True)
    with broker.transaction() as tx:
        tx.execute("CREATE TABLE stock (part TEXT PRIMARY KEY, quantity INTEGER NOT NULL)")
    for part in parts:
        add_part(broker, part)


def add_part(broker: Broker, part: str) -> None:
    """Put a part on the list."""
    with broker.transaction() as tx:
        tx.execute("INSERT INTO stock VALUES (?, 0)", (part,))


def stock(broker: Broker) -> dict[str, int]:
    """Return how many there are of each part."""
    with broker.transaction() as tx:
        return dict(tx.execute("SELECT part, quantity FROM stock ORDER BY part").fetchall())


def keep_stock(broker: Broker) -> None:
    """Work off the news there is."""
    keeper = Handler(STOCK, StockKeeper(stock(broker)), deadline=5)
    ServiceHost(broker, keeper).run(until=lambda: broker.queue(STOCK).counts.total == waiting(broker))


def waiting(broker: Broker) -> int:
    """Return how many messages wait for the operator."""
    return broker.queue(STOCK).counts.dead_letter
