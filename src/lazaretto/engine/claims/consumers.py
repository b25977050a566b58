"""The consumers of claims: each has one driver, which renews its claims while it lives."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TypeVar

import msgspec

from lazaretto.engine.entities.queues import refuse_topic, require_queue
from lazaretto.errors import ClaimFenced, InvalidOption, NotAllowed
from lazaretto.model.checks import shown
from lazaretto.model.clock import to_datetime
from lazaretto.model.entities import EntityPath, Subqueue
from lazaretto.store.records.claims import (
    ConsumerRecord,
)
from lazaretto.store.records.messages import QueueRecord
from lazaretto.store.sql.operation import Operation
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


_replace = msgspec.structs.replace
T = TypeVar("T")

LONGEST_CONSUMER = 128


@dataclasses.dataclass(slots=True)
class ClaimOperation(Operation[T]):
    """An operation on claims of the queue at `path`, or on what is staged for it."""

    path: EntityPath

    def confined_to(self) -> str | None:
        return self.path.key


@dataclasses.dataclass(slots=True)
class ConsumerOperation(ClaimOperation[T]):
    """An operation of one consumer of claims."""

    consumer: str


@dataclasses.dataclass(slots=True)
class DriverOperation(ConsumerOperation[T]):
    """An operation of a consumer's driver, which another one may have fenced off: it raises ClaimFenced."""

    epoch: int

    def driver(self, tx: Transaction) -> tuple[QueueRecord, ConsumerRecord]:
        """Return queue and consumer if this is the latest driver. Raises ClaimFenced."""
        return require_driver(tx, self.path, self.consumer, self.epoch)


def require_claims(tx: Transaction, path: EntityPath) -> QueueRecord:
    """Return the queue if it allows claims."""
    queue = require_queue(tx, path)
    if path.subqueue is not Subqueue.MAIN:
        raise NotAllowed(f"claims are taken of a queue, not of its subqueue {str(path)!r}")
    refuse_topic(queue, "take claims of one of its subscriptions")
    return queue


def require_driver(
    tx: Transaction, path: EntityPath, consumer: str, epoch: int
) -> tuple[QueueRecord, ConsumerRecord]:
    """Return queue and consumer if this is the latest driver. Raises ClaimFenced."""
    queue = require_claims(tx, path)
    record = tx.claims.consumer(queue.queue_id, consumer)
    if record is None:
        raise ClaimFenced(
            f"consumer {consumer!r} of {queue.path!r} is not there: the queue was deleted and created again, "
            "or the store is another one; start the query anew"
        )
    if record.epoch != epoch:
        raise ClaimFenced(
            f"another driver has taken over consumer {consumer!r} of {queue.path!r} "
            f"({record.driver}); stop this driver"
        )
    return queue, record


@dataclasses.dataclass(slots=True)
class Identify(ConsumerOperation[int]):
    """Find a consumer or create it; return its identity."""

    def run(self, tx: Transaction) -> int:
        return identified(tx, require_claims(tx, self.path), self.consumer).identity


def identified(tx: Transaction, queue: QueueRecord, consumer: str) -> ConsumerRecord:
    """Return a consumer that has an identity."""
    if not consumer or len(consumer) > LONGEST_CONSUMER:
        raise InvalidOption(
            f"expected a consumer's name of 1 to {LONGEST_CONSUMER} characters, got {shown(consumer)}"
        )
    record = tx.claims.consumer(queue.queue_id, consumer) or ConsumerRecord(queue.queue_id, consumer)
    if not record.identity:
        record = _replace(record, identity=tx.random_token())
        tx.claims.save_consumer(record)
    return record


@dataclasses.dataclass(slots=True)
class RenewClaims(DriverOperation[None]):
    """Renew the leases of a consumer's open claims."""

    lease: float

    durable = False

    def run(self, tx: Transaction) -> None:
        queue, _ = self.driver(tx)
        tx.claims.renew(queue.queue_id, self.consumer, tx.now + round(self.lease * 1_000_000))


@dataclasses.dataclass(slots=True)
class TrimClaims(ConsumerOperation[None]):
    """Delete a consumer's ended claims up to a number."""

    last: int

    durable = False

    def run(self, tx: Transaction) -> None:
        queue = require_claims(tx, self.path)
        tx.claims.delete(queue.queue_id, self.consumer, self.last)
