"""Rows of a session: in the order of their origin; behind one that failed, they wait in the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from lazaretto import Broker, InvalidOption, PoisonPolicy, QueueOptions
from lazaretto.model.entities import PoisonSession
from lazaretto.spark import quarantine

from .test_quarantine import with_body

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)
#: Customers and bodies by offset: those of `a` behind the bad one must wait, those of `b` need not.
ROWS = [("a", "1"), ("b", "2"), ("a", "bad"), ("b", "4"), ("a", "5"), (None, "6"), ("a", "7"), ("b", "8")]


def book(row: Any, context: Any) -> Any:
    """Note a row in the order in which its customer's are processed."""
    from lazaretto import Message

    n = int(row.line)
    context.send("out", Message(row.line.encode(), subject=str(row.customer)))
    return {"n": n}


class Orders:
    """A stream of orders by customer, and its quarantine."""

    def __init__(self, spark: Any, url: str, folder: Path) -> None:
        self.spark, self.url, self.folder = spark, url, folder
        self.offset = 0

    def add(self, *rows: tuple[str | None, str]) -> None:
        """Add rows, in files of two, so that many tasks read them."""
        for start in range(0, len(rows), 2):
            numbered = [
                (customer, line, self.offset + place)
                for place, (customer, line) in enumerate(rows[start : start + 2])
            ]
            self.offset += len(numbered)
            frame = self.spark.createDataFrame(numbered, "customer string, line string, offset bigint")
            frame.coalesce(1).write.mode("append").parquet(str(self.folder / "in"))

    def run(self, **options: Any) -> None:
        source = self.spark.readStream.schema("customer string, line string, offset bigint")
        given = {"session": "customer", "queue": "keyed", **options}
        query = quarantine(
            source.parquet(str(self.folder / "in")), book, store=self.url, body="line", origin=["offset"],
            checkpoint=str(self.folder / "checkpoint"), results=str(self.folder / "results"),
            schema="n bigint", deadline=60, **given,
        )  # fmt: skip
        assert isinstance(query, StreamingQuery)
        query.awaitTermination()

    def done(self) -> list[int]:
        return sorted(row.n for row in self.spark.read.parquet(str(self.folder / "results")).collect())


@pytest.fixture
def orders(spark: Any, url: str, tmp_path: Path) -> Orders:
    return Orders(spark, url, tmp_path)


def make_queue(broker: Broker, mode: PoisonSession, retries: int = 0) -> None:
    policy = PoisonPolicy(receive_retry_count=retries)
    broker.create_queue("keyed", QueueOptions(requires_session=True, on_poison_session=mode, policy=policy))


def order_of(broker: Broker, customer: str) -> list[int]:
    return [int(message.body) for message in broker.peek("out", 99) if message.subject == customer]


@pytest.mark.stores("sqlite", "postgres")
def test_rows_behind_one_that_failed_wait_until_it_is_repaired(orders: Orders, broker: Broker) -> None:
    make_queue(broker, PoisonSession.PARK)
    orders.add(*ROWS)
    orders.run()
    assert orders.done() == [1, 2, 4, 6, 8]
    counts = broker.queue("keyed").counts
    assert (counts.dead_letter, counts.total) == (1, 3)
    # What comes later waits, too, where others of its session do.
    orders.add(("a", "9"), ("b", "10"))
    orders.run()
    assert orders.done() == [1, 2, 4, 6, 8, 10]
    assert broker.queue("keyed").counts.total == 4
    (letter,) = broker.dead_letters("keyed")
    assert letter.message is not None
    assert letter.message.session_id == "a"
    broker.resubmit("keyed", letter.sequence_number, edit=with_body(b"3"))
    orders.run()
    assert orders.done() == list(range(1, 11))
    assert broker.queue("keyed").counts.total == 0
    assert order_of(broker, "b") == [2, 4, 8, 10]
    assert sorted(order_of(broker, "a")) == [1, 3, 5, 7, 9]
    assert [n for n in order_of(broker, "a") if n != 3] == [1, 5, 7, 9]
    orders.add(("a", "11"))
    orders.run()
    assert order_of(broker, "a")[-1] == 11
    assert broker.check() == []


def test_rows_behind_one_that_is_skipped_do_not_wait_for_it(orders: Orders, broker: Broker) -> None:
    make_queue(broker, PoisonSession.SKIP, retries=1)
    orders.add(*ROWS)
    for _ in range(3):
        orders.run()
    assert orders.done() == [1, 2, 4, 5, 6, 7, 8]
    assert broker.queue("keyed").counts.total == 1
    assert order_of(broker, "a") == [1, 5, 7]
    (letter,) = broker.dead_letters("keyed")
    assert letter.counters.failures == 2


def test_a_table_keeps_the_order_of_sessions(spark: Any, broker: Broker, url: str, tmp_path: Path) -> None:
    make_queue(broker, PoisonSession.PARK)
    rows = [(f"c{n % 7}", str(n) if n != 21 else "bad", n) for n in range(70)]
    table = spark.createDataFrame(rows, "customer string, line string, id int").repartition(5)
    quarantine(
        table, book, store=url, queue="keyed", checkpoint=str(tmp_path / "check"), body="line",
        origin=["id"], session="customer",
    )  # fmt: skip
    for customer in range(7):
        wanted = [n for n in range(customer, 70, 7) if customer or n < 21]
        assert order_of(broker, f"c{customer}") == wanted
    assert broker.queue("keyed").counts.total == 7


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"session": None}, "session='customer'"),
        ({"queue": "work"}, "omit session"),
        ({"session": "nowhere"}, "expected session to be a column"),
        ({"isolation": "vectorised"}, "does not keep the order of sessions"),
        ({"queue": "blocking"}, "'skip' or 'park'"),
    ],
)
def test_what_has_no_order_is_refused(
    orders: Orders, broker: Broker, options: dict[str, Any], text: str
) -> None:
    make_queue(broker, PoisonSession.PARK)
    broker.create_queue("blocking", QueueOptions(requires_session=True, on_poison_session="block"))
    (orders.folder / "in").mkdir()
    with pytest.raises(InvalidOption, match=text):
        orders.run(**options)
