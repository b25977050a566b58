"""State of a store as metrics in Prometheus's format: the same over HTTP and on the command line."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

import lazaretto
from lazaretto.engine.entities.overview import QueueGlance, Status
from lazaretto.engine.workers.list_workers import Worker
from lazaretto.model.breaker import BreakerStatus
from lazaretto.model.entities import QueueStatus
from lazaretto.model.rates import Totals
from lazaretto.model.repairs import RepairStatus
from lazaretto.store.runtime.measures import switch_on

MEDIA_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
#: The counters: their name, the field of Totals, and what they count.
_TOTALS: Final = (
    ("messages_sent", "sent", "Messages that came"),
    ("messages_received", "received", "Deliveries of messages"),
    ("messages_completed", "completed", "Messages that were completed"),
    ("attempts_failed", "failed", "Attempts that failed, or lost their lock or their worker"),
    ("messages_dead_lettered", "dead", "Messages that became dead letters"),
)
#: Repairs that are counted, the newest.
MOST_REPAIRS: Final = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """A look at a store. `facts`: its settings and sizes. `seconds`: how long it took to read all that."""

    status: Status
    workers: Sequence[Worker]
    repairs: Sequence[RepairStatus]
    facts: Mapping[str, Any]
    seconds: float


def exposition(look: Look) -> bytes:
    """Return how a store stood in Prometheus's format."""
    return generate_latest(_registry_of(_Standing(look)))


def samples(look: Look) -> list[dict[str, Any]]:
    """Return the same as records: the name, the labels and the value of each sample."""
    samples_ = (sample for family in _Standing(look).collect() for sample in family.samples)
    return [{"name": one.name, "labels": one.labels, "value": one.value} for one in samples_]


class ProcessMetrics(Collector):
    """How long commits and handlers of this process take, and how old messages are that its hosts handle.

    It measures from when the first is made. `sees`: whether a queue is told of.
    """

    def __init__(self, sees: Callable[[str], bool] = lambda path: True) -> None:
        self._measures = switch_on()
        self._sees = sees

    def collect(self) -> Iterator[Metric]:
        """Yield the histograms."""
        for one in self._measures.all:
            made = HistogramMetricFamily(f"lazaretto_{one.name}", one.text, labels=one.labels)
            for labels, value in one.read().items():
                if labels and not self._sees(labels[0]):
                    continue
                sums = itertools.accumulate(value.counts)
                bounds = [*(str(float(bound)) for bound in one.bounds), "+Inf"]
                made.add_metric(labels, list(zip(bounds, sums, strict=True)), value.sum)
            yield made


def process_exposition(sees: Callable[[str], bool]) -> bytes:
    """Return what this process has measured since this was first called, in Prometheus's format."""
    return generate_latest(_registry_of(ProcessMetrics(sees)))


def listen(address: str, port: int) -> WSGIServer:
    """Answer Prometheus with what this process measures, in a thread of its own; return the server."""
    server, _ = start_http_server(port, address, _registry_of(ProcessMetrics()))
    return server


def _registry_of(collector: Collector) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


class _Standing(Collector):
    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        look, status = self._look, self._look.status
        labels = {"version": lazaretto.__version__, "schema": str(look.facts.get("schema", ""))}
        yield InfoMetricFamily("lazaretto_build", "The version, and that of the store's tables.", labels)
        yield _gauge(
            "queues", "Queues and subscriptions: all, in trouble, standing still.", ("which",),
            [(("all",), status.total), (("troubled",), status.troubled), (("severe",), status.severe)],
        )  # fmt: skip
        yield from _of_queues(status.time, status.queues)
        yield from _totals("", [((), status.totals)])
        yield from _totals("queue_", [((one.path,), one.totals) for one in status.queues])
        yield _gauge(
            "open_claims", "Claims of pipelines that are not settled.", (), [((), status.open_claims)]
        )
        alive = sum(worker.alive for worker in look.workers)
        yield _gauge(
            "workers", "Processes that take messages.", ("state",),
            [(("alive",), alive), (("dead",), len(look.workers) - alive)],
        )  # fmt: skip
        yield _of_repairs(look.repairs)
        yield _gauge("store_read_seconds", "How long reading all this took.", (), [((), look.seconds)])
        yield from _of_room(look.facts)


def _gauge(
    name: str, what: str, labels: Sequence[str], rows: Sequence[tuple[Sequence[str], float]]
) -> Metric:
    made = GaugeMetricFamily(f"lazaretto_{name}", what, labels=labels)
    for values, value in rows:
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
    for name, what, value in (
        ("queue_held_sessions", "Sessions that a poison message holds back.", "held_sessions"),
        ("queue_fingerprints", "Fingerprints of the dead letters that wait.", "fingerprints"),
    ):
        yield _gauge(name, what, ("queue",), [((one.path,), getattr(one, value)) for one in queues])
    yield _states(
        "queue_status", "1 for the status of a queue.", QueueStatus,
        [(one.path, one.status) for one in queues],
    )  # fmt: skip
    yield _states(
        "queue_breaker_status", "1 for the status of a queue's breaker.", BreakerStatus,
        [(one.path, one.breaker) for one in queues],
    )  # fmt: skip
    yield _gauge(
        "queue_trouble", "1 for each kind of trouble of a queue.", ("queue", "kind"),
        [((one.path, kind), 1) for one in queues for kind in sorted({t.kind for t in one.troubles})],
    )  # fmt: skip


def _totals(prefix: str, rows: Sequence[tuple[Sequence[str], Totals]]) -> Iterator[Metric]:
    """Tell what was counted ever, which outlives every process."""
    of, labels = (" of a queue", ("queue",)) if prefix else ("", ())
    for name, field, what in _TOTALS:
        made = CounterMetricFamily(f"lazaretto_{prefix}{name}", f"{what}{of}.", labels=labels)
        for values, totals in rows:
            made.add_metric(values, getattr(totals, field))
        yield made


def _states(
    name: str, what: str, states: Iterable[enum.Enum], rows: Sequence[tuple[str, enum.Enum]]
) -> Metric:
    """Tell which of some states each queue is in: 1 for that, and 0 for the others."""
    values = [((path, one.value), one is state) for path, state in rows for one in states]
    return _gauge(name, what, ("queue", "status"), values)


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
