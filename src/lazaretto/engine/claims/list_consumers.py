"""Lists the consumers of claims: Spark queries and other pipelines, with the queue that each takes from."""

from __future__ import annotations

import dataclasses
from datetime import datetime

from lazaretto.model.clock import to_datetime
from lazaretto.store.sql.transaction import Transaction


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimPipeline:
    """A pipeline that takes claims of a queue. `driver`: its latest process. `settled`: its last ended claim.

    `attached`: when that process became its driver; None: it never had one.
    """

    queue: str
    name: str
    driver: str
    attached: datetime | None
    settled: int
    last_claim: int


def list_consumers(tx: Transaction) -> list[ClaimPipeline]:
    """Return all consumers of claims, by queue and name."""
    consumers = []
    for record in tx.claims.consumers():
        queue = tx.queues.by_id(record.queue_id)
        if queue is not None:
            attached = to_datetime(record.attached) if record.attached else None
            consumers.append(
                ClaimPipeline(
                    queue.path, record.consumer, record.driver, attached, record.settled, record.last_claim
                )
            )
    return sorted(consumers, key=lambda one: (one.queue, one.name))
