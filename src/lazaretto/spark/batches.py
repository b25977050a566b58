"""`settle`: for foreachBatch, which gets the messages of a claim as a table."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark.sql import DataFrame

from lazaretto.broker.broker import store_of
from lazaretto.broker.claims import ClaimConsumer
from lazaretto.errors import InvalidMessage, InvalidOption
from lazaretto.model.checks import shown
from lazaretto.model.failure import Failure, failure_of
from lazaretto.model.policy import Outcome
from lazaretto.spark.bodies import PROBLEM
from lazaretto.spark.source_options import parse
from lazaretto.spark.store_access import broker_at
from lazaretto.store.records.claims import REVOKED

_log = logging.getLogger(__name__)


def settle(
    batch: DataFrame,
    *,
    store: str,
    queue: str,
    consumer: str = "spark",
    failed: Mapping[int, BaseException] | None = None,
) -> dict[str, int]:
    """Settle a micro-batch at the end of foreachBatch; return its messages by outcome.

    `batch`: as foreachBatch got it. `store`, `queue`, `consumer`: as the stream was loaded with. `failed`:
    what went wrong, by sequence number: those are failures, for the queue's policy to decide on. An
    InvalidMessage, as every message with a `problem` has, can never succeed. All others are completed. A
    batch that is settled already stays as it is. Raises ClaimFenced: another query has the consumer.
    """
    for name in ("claim", "epoch"):
        if name not in batch.columns:
            raise InvalidOption(
                f"the batch has no column {name!r}: settle the batch exactly as foreachBatch received it"
            )
    options = parse({"store": store, "queue": queue, "consumer": consumer})
    failures = {number: _failure(number, error) for number, error in (failed or {}).items()}
    if PROBLEM in batch.columns:
        for number, problem in (
            batch.where(f"{PROBLEM} IS NOT NULL").select("sequence_number", PROBLEM).collect()
        ):
            failures.setdefault(number, _failure(number, InvalidMessage(problem)))
    row = batch.select("claim", "epoch").first()
    if row is None:
        return {}
    with broker_at(options.url()) as broker:
        claims = ClaimConsumer(store_of(broker), options.queue, options.consumer, epoch=row["epoch"])
        summary = claims.settle_whole(row["claim"], failures)
    if summary is None:
        return {}
    if summary.state == REVOKED:
        _log.warning(
            "claim %d of consumer %r of %r was revoked before it was settled: its messages return",
            summary.number,
            consumer,
            queue,
        )
    return dict(summary.outcomes)


def _failure(number: object, error: object) -> tuple[Outcome, Failure]:
    if not isinstance(number, int) or not isinstance(error, BaseException):
        raise InvalidOption(
            f"expected failed to be exceptions by sequence number, got {shown(error)} for {shown(number)}"
        )
    failure = failure_of(error)
    assert failure is not None
    return Outcome.INVALID if isinstance(error, InvalidMessage) else Outcome.FAILED, failure
