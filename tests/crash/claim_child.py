"""A driver of claims that kills itself at a named point."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import lazaretto
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.engine.claims import end_claims, settle_claims
from lazaretto.engine.claims.settle_claims import StagedRow, staged_rows
from lazaretto.store.sql.transaction import Transaction

from .child import die

#: Messages of a claim, and of those how many one commit removes.
CLAIM, AT_ONCE = 300, 40
#: Where it dies: in an operation when all is done and nothing committed, or behind its commit.
POINTS = {
    "in_settle": settle_claims.SettleClaims,
    "after_settle": settle_claims.SettleClaims,
    "in_remove": end_claims.RemoveCompleted,
    "after_remove": end_claims.RemoveCompleted,
}


def _arm(point: str, count: int, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that kills the process at its n-th call, when that is done."""
    left = count

    @functools.wraps(run)
    def deadly(*words: Any) -> Any:
        nonlocal left
        answer = run(*words)
        if not point.startswith("after") or isinstance(words[1], POINTS[point]):
            left -= 1
        if left <= 0:
            die()
        return answer

    return deadly


def main(store: str, point: str, count: int, ready: Connection) -> None:
    """Take claims, complete all but every hundredth message, and settle, until there is nothing left."""
    settle_claims._LARGE = 3
    end_claims._AT_ONCE = AT_ONCE
    with lazaretto.connect(store) as broker:
        deadly: Any = POINTS.get(point)
        if point.startswith("after"):
            broker._store.run = _arm(point, count, broker._store.run.__func__).__get__(broker._store)  # type: ignore[attr-defined, method-assign]
        elif deadly is not None:
            deadly.run = _arm(point, count, deadly.run)
        ready.send(None)
        consumer = ClaimConsumer(broker._store, "q", "job")
        done = consumer.attach()
        while (number := consumer.take(done, max_rows=CLAIM, shards=2)) is not None:
            stage = uuid.uuid4().hex
            for _, shard in consumer.shards(done, number):

                def keys_of(tx: Transaction, shard: Any = shard) -> list[int]:
                    return tx.claims.shard_keys(shard, CLAIM)

                keys = broker._store.read(keys_of)
                bad = [StagedRow(key, "dead_lettered") for key in keys if key % 100 == 0]
                consumer.stage(stage, staged_rows(shard.token, [k for k in keys if k % 100], bad, {}))
            consumer.settle([number], [stage])
            done = number
