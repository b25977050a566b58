"""Filters, fan-out to subscriptions, and many subscriptions: python -m bench.topics"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import lazaretto
from bench.measure import rate
from bench.payload import bodies
from lazaretto import Broker, CorrelationFilter, Message, Rule
from lazaretto.model.filters.sql import compile_filter
from lazaretto.model.filters.view import MessageView
from lazaretto.model.headers import Headers

_EXPRESSIONS = (
    "amount > 100 AND region IN ('EU','US')",
    "sys.Label = 'order' AND amount * 2 >= 300",
    "name LIKE 'A%lamp' AND NOT EXISTS(cancelled)",
)
_BATCH = 100


def filters(console: Console, rounds: int) -> None:
    """Print how often a second filters are evaluated."""
    properties = {"amount": 150, "region": "EU", "name": "Anna's lamp"}
    view = MessageView(Headers(subject="order", properties=properties), "m")
    table = Table("filter", "evaluations/s")
    for text in _EXPRESSIONS:
        matches, count = compile_filter(text), 200_000

        def run(matches: Callable[[MessageView], object] = matches, count: int = count) -> None:
            for _ in range(count):
                matches(view)

        table.add_row(text, f"{statistics.median(rate(count, run) for _ in range(rounds)):,.0f}")
    console.print(table)


def _send(broker: Broker, path: str, messages: list[Message]) -> Callable[[], object]:
    sender = broker.sender(path)

    def run() -> None:
        for start in range(0, len(messages), _BATCH):
            sender.send(messages[start : start + _BATCH])

    return run


def _used(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def fan_out(console: Console, folder: Path, count: int, rounds: int) -> None:
    """Print how fast a topic with ten subscriptions takes messages, beside a queue."""
    queue, topic, size = [], [], 0.0
    messages = [Message(body) for body in bodies(count)]
    for number in range(rounds):
        store = folder / f"fan{number}.db"
        with lazaretto.connect(store) as broker:
            broker.create_queue("queue")
            broker.create_topic("topic")
            for subscription in range(10):
                broker.create_subscription("topic", f"s{subscription}")
            queue.append(rate(count, _send(broker, "queue", messages)))
            before = _used(store)
            topic.append(rate(count, _send(broker, "topic", messages)))
        size = _used(store) - before
        store.unlink()
    ratio = statistics.median(t / q for t, q in zip(topic, queue, strict=True))
    table = Table("1 KiB, 100 of a send", "messages/s", "to the queue")
    table.add_row("a queue", f"{statistics.median(queue):,.0f}", "1.00")
    table.add_row("a topic with 10 subscriptions", f"{statistics.median(topic):,.0f}", f"{ratio:.2f}")
    console.print(table)
    console.print(f"the topic's file grew by {size / count:,.0f} bytes a message sent")


def many(console: Console, folder: Path, count: int, rounds: int) -> None:
    """Print what a send costs with 10 and with 1,000 subscriptions, of which one wants the message."""
    table = Table("subscriptions with a correlation filter", "µs a send", "to 10")
    found: dict[int, list[float]] = {10: [], 1_000: []}
    for number in range(rounds):
        for subscriptions, costs in found.items():
            store = folder / f"many{subscriptions}-{number}.db"
            with lazaretto.connect(store) as broker:
                broker.create_topic("topic")
                for n in range(subscriptions):
                    rule = Rule("r", CorrelationFilter(properties={"customer": n}))
                    broker.create_subscription("topic", f"s{n}", rules=[rule])
                messages = [Message(body, properties={"customer": 7}) for body in bodies(count)]
                sender = broker.sender("topic")
                sender.send(messages[0])
                one = rate(count, lambda messages=messages, send=sender.send: [send(m) for m in messages])  # type: ignore[misc]
                costs.append(1e6 / one)
            store.unlink()
    few = statistics.median(found[10])
    for subscriptions, costs in found.items():
        cost = statistics.median(costs)
        table.add_row(f"{subscriptions:,}", f"{cost:,.0f}", f"{cost / few:.2f}")
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path())
    arguments = parser.parse_args()
    console = Console()
    filters(console, arguments.rounds)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as here:
        fan_out(console, Path(here), arguments.messages, arguments.rounds)
        many(console, Path(here), 2_000, arguments.rounds)


if __name__ == "__main__":
    main()
