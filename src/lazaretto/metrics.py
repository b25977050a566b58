"""How a store stands, as metrics in Prometheus's format: the same over HTTP and on the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

import lazaretto
from lazaretto.engine.entities.overview import QueueGlance, Status
from lazaretto.engine.workers.list_workers import Worker
from lazaretto.model.repairs import RepairStatus

MEDIA_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
#: Repairs that are counted, the newest.
MOST_REPAIRS: Final = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """How a store stood. `facts`: its settings and sizes. `seconds`: how long it took to read all that."""

    status: Status
    workers: Sequence[Worker]
    repairs: Sequence[RepairStatus]
    facts: Mapping[str, Any]
    seconds: float


def exposition(look: Look) -> bytes:
    """Return how a store stood in Prometheus's format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Standing(look))
    return generate_latest(registry)


class _Standing(Collector):
    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        look, status = self._look, self._look.status
        told = {"version": lazaretto.__version__, "schema": str(look.facts.get("schema", ""))}
        yield InfoMetricFamily("lazaretto_build", "The version, and that of the store's tables.", told)
        yield _gauge(
            "queues", "Queues and subscriptions: all, in trouble, standing still.", ("which",),
            [(("all",), status.total), (("troubled",), status.troubled), (("severe",), status.severe)],
        )  # fmt: skip
        yield from _of_queues(status.time, status.queues)
        alive = sum(worker.alive for worker in look.workers)
        yield _gauge(
            "workers", "Processes that take messages.", ("state",),
            [(("alive",), alive), (("dead",), len(look.workers) - alive)],
        )  # fmt: skip
        yield _of_repairs(look.repairs)
        yield _gauge("store_read_seconds", "How long reading all this took.", (), [((), look.seconds)])
        yield from _of_room(look.facts)


def _gauge(
    name: str, what: str, labels: Sequence[str], found: Sequence[tuple[Sequence[str], float]]
) -> Metric:
    made = GaugeMetricFamily(f"lazaretto_{name}", what, labels=labels)
    for values, value in found:
        made.add_metric(values, value)
    return made


def _of_queues(now: datetime, queues: Sequence[QueueGlance]) -> Iterator[Metric]:
    messages = [((one.path, "waiting"), one.waiting) for one in queues]
    messages += [((one.path, "dead_letter"), one.dead_letters) for one in queues]
    yield _gauge(
        "queue_messages", "Messages that wait, about, and dead letters.", ("queue", "state"), messages
    )
    ages = [((one.path,), max(0.0, (now - one.oldest).total_seconds())) for one in queues if one.oldest]
    yield _gauge("queue_oldest_message_age_seconds", "How old the oldest message is.", ("queue",), ages)
    yield _gauge(
        "queue_messages_per_minute",
        "What happened to messages in the last five minutes, per minute.",
        ("queue", "event"),
        [
            ((one.path, event), getattr(one.rates, event))
            for one in queues
            for event in ("sent", "completed", "failed", "dead")
        ],
    )
    yield _gauge(
        "queue_dead_letters_this_hour", "Dead letters since the full hour.", ("queue",),
        [((one.path,), one.died_this_hour) for one in queues],
    )  # fmt: skip
    yield _gauge(
        "queue_trouble", "1 for each kind of trouble of a queue.", ("queue", "kind"),
        [((one.path, kind), 1) for one in queues for kind in sorted({t.kind for t in one.troubles})],
    )  # fmt: skip


def _of_repairs(repairs: Sequence[RepairStatus]) -> Metric:
    running = [repair.counts for repair in repairs if repair.ended is None]
    return _gauge(
        "repair_messages", "Letters of repairs that have not ended.", ("state",),
        [
            ((state,), sum(getattr(counts, state) for counts in running))
            for state in ("left", "waiting", "processed", "failed", "skipped", "undone")
        ],
    )  # fmt: skip


def _of_room(facts: Mapping[str, Any]) -> Iterator[Metric]:
    """Tell how much room a store takes, and of one that is a file, how much is left on its disk."""
    size = facts.get("file_bytes", facts.get("bytes"))
    if size is not None:
        yield _gauge("store_bytes", "Bytes of the store.", (), [((), size)])
    free = facts.get("disk_free_bytes")
    if free is not None:
        yield _gauge("disk_free_bytes", "Bytes that are free on the store's disk.", (), [((), free)])
