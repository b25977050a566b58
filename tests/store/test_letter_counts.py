"""Numbers of dead letters, which are kept and not counted: right at every moment, also within a commit."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lazaretto import Broker, DeadLetterFilter
from lazaretto.engine.entities.queues import describe
from lazaretto.model.entities import Subqueue
from lazaretto.model.keys import lower_bound, upper_bound
from lazaretto.store.records.messages import Again
from lazaretto.store.sql.operation import Operation
from lazaretto.store.sql.transaction import Transaction

from .actions import create, send, set_aside, take
from .forwarding import chain
from .test_causes import Execute, forget_causes
from .test_repairs import plan, work

TRANSFER = "a/$Transfer/$deadletterqueue"


@pytest.fixture
def told(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """Compare the numbers of all queues in each commit; return what they told last."""
    found: dict[str, tuple[int, int]] = {}
    run = broker._store.run

    def run_and_compare(operation: Operation[Any], *rest: Any, **options: Any) -> Any:
        if not isinstance(operation, Execute):
            operation = Compared(operation, found)
        return run(operation, *rest, **options)

    monkeypatch.setattr(broker._store, "run", run_and_compare)
    return found


@dataclasses.dataclass(slots=True)
class Compared(Operation[Any]):
    """Run an operation, and compare within its commit what queues tell with what they hold."""

    operation: Operation[Any]
    told: dict[str, tuple[int, int]]

    def run(self, tx: Transaction) -> Any:
        while isinstance(answer := self.operation.run(tx), Again):
            pass
        for queue in tx.queues.all():
            counts = describe(tx, queue).counts
            now = counts.dead_letter, counts.transfer_dead_letter
            held = (
                _count(tx, queue.queue_id, Subqueue.DEAD_LETTER),
                _count(tx, queue.queue_id, Subqueue.TRANSFER_DEAD_LETTER),
            )
            assert now == held, queue.path
            self.told[queue.path] = now
        return answer


def _count(tx: Any, queue_id: int, subqueue: Subqueue) -> int:
    bounds = lower_bound(queue_id, subqueue), upper_bound(queue_id, subqueue)
    return len(tx.context.run("select_some_keys", (*bounds, 1_000)).fetchall())


def test_in_each_commit(broker: Broker, told: dict[str, tuple[int, int]]) -> None:
    create(broker, receive_retry_count=0)
    numbers = set_aside(broker, *(b"%d" % n for n in range(9)), reason="Bad")
    assert told["q"] == (9, 0)
    broker.resubmit("q", numbers[:2])
    broker.resubmit("q", numbers[2])
    assert told["q"] == (6, 0)
    broker.purge("q", numbers[3:6])
    assert told["q"] == (3, 0)
    broker.restore("q", numbers[3:5])
    assert told["q"] == (5, 0)
    create(broker, "other")
    broker.move_dead_letters("q", numbers[3], "other")
    assert told["q"] == (4, 0)
    receiver = broker.receiver("q/$deadletterqueue")
    receiver.complete(receiver.receive(1))
    assert told["q"] == (3, 0)
    repair = plan(broker)
    repair.apply()
    work(repair)
    assert told["q"] == (0, 0)
    repair.undo()
    work(repair)
    assert told["q"] == (3, 0)
    broker.delete_queue("q")
    assert broker.queues()[0].counts.dead_letter == 0
    assert broker.check() == []


def test_of_messages_that_could_not_be_forwarded(broker: Broker, told: dict[str, tuple[int, int]]) -> None:
    chain(broker, "a", "b")
    broker.delete_queue("b")
    send(broker, b"x", path="a")
    send(broker, b"y", path="a")
    assert told["a"] == (0, 2)
    take(broker, TRANSFER, mode="receive_and_delete")
    assert told["a"] == (0, 1)
    create(broker, "b")
    broker.resubmit(TRANSFER, DeadLetterFilter())
    assert told["a"] == (0, 0)


def test_of_an_older_version(broker: Broker, told: dict[str, tuple[int, int]]) -> None:
    create(broker, receive_retry_count=0)
    numbers = set_aside(broker, b"1", b"2", b"3")
    forget_causes(broker)
    assert broker.queue("q").counts.dead_letter == 3
    broker.purge("q", numbers[:1])
    assert told["q"] == (2, 0)
    broker.triage("q")
    broker.restore("q", numbers[:1])
    assert told["q"] == (3, 0)
    assert broker.queue("q").counts.dead_letter == 3
