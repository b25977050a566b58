"""Every commit of a process is measured, whichever way it takes."""

from __future__ import annotations

from collections.abc import Callable

from lazaretto import Broker, Message
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.store.runtime.measures import switch_on


def count() -> tuple[int, float]:
    """Return how many commits were measured, and how many operations were in them."""
    measures = switch_on()
    commits, operations = measures.commits.read(), measures.operations.read()
    return (sum(commits[()].counts), operations[()].sum) if commits else (0, 0)


def test_a_send_a_claim_and_a_transaction_with_sql_are_measured(broker: Broker) -> None:
    broker.create_queue("work")
    broker.sender("work").send([Message(b"")] * 3)
    consumer = ClaimConsumer(broker._store, "work", "job")
    consumer.attach()

    def use_sql() -> None:
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE own (n INTEGER)")
            tx.send("work", Message(b""))

    actions: list[Callable[[], object]] = [
        lambda: broker.sender("work").send(Message(b"")), lambda: consumer.take(0), use_sql,
    ]  # fmt: skip
    for action in actions:
        commits, operations = count()
        action()
        now = count()
        assert now[0] > commits
        assert now[1] > operations
