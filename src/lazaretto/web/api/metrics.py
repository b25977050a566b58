"""Metrics in Prometheus's format: how the store stands, and its queues in trouble by name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.responses import Response

import lazaretto
from lazaretto.engine.entities.overview import Status
from lazaretto.engine.workers.list_workers import Worker
from lazaretto.model.permissions import Permission
from lazaretto.model.repairs import RepairStatus
from lazaretto.web.routes import Call, route

#: Queues that are told by name: those in most trouble, then others in the order of their paths.
MOST_QUEUES: Final = 100
#: Repairs that are counted, the newest.
_MOST_REPAIRS: Final = 100


class _Standing(Collector):
    """Tells how a store stood when it was looked at."""

    def __init__(self, status: Status, workers: list[Worker], repairs: list[RepairStatus]) -> None:
        self._status, self._workers, self._repairs = status, workers, repairs

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("lazaretto_build", "The version.", {"version": lazaretto.__version__})
        status = self._status
        queues = GaugeMetricFamily(
            "lazaretto_queues", "Queues and subscriptions: all, in trouble, standing still.", labels=["which"]
        )
        for which, number in ("all", status.total), ("troubled", status.troubled), ("severe", status.severe):
            queues.add_metric([which], number)
        yield queues
        yield from self._of_queues()
        workers = GaugeMetricFamily("lazaretto_workers", "Processes that take messages.", labels=["state"])
        alive = sum(worker.alive for worker in self._workers)
        workers.add_metric(["alive"], alive)
        workers.add_metric(["dead"], len(self._workers) - alive)
        yield workers
        yield self._of_repairs()

    def _of_queues(self) -> Iterator[Metric]:
        messages = GaugeMetricFamily(
            "lazaretto_queue_messages",
            "Messages that wait, about, and dead letters.",
            labels=["queue", "state"],
        )
        oldest = GaugeMetricFamily(
            "lazaretto_queue_oldest_message_age_seconds", "How old the oldest message is.", labels=["queue"]
        )
        growing = GaugeMetricFamily(
            "lazaretto_queue_dead_letters_this_hour", "Dead letters since the full hour.", labels=["queue"]
        )
        trouble = GaugeMetricFamily(
            "lazaretto_queue_trouble", "1 for each kind of trouble of a queue.", labels=["queue", "kind"]
        )
        for glance in self._status.queues:
            messages.add_metric([glance.path, "waiting"], glance.waiting)
            messages.add_metric([glance.path, "dead_letter"], glance.dead_letters)
            growing.add_metric([glance.path], glance.died_this_hour)
            if glance.oldest is not None:
                oldest.add_metric([glance.path], _seconds(self._status.time, glance.oldest))
            for kind in {one.kind for one in glance.troubles}:
                trouble.add_metric([glance.path, kind], 1)
        yield from (messages, oldest, growing, trouble)

    def _of_repairs(self) -> Metric:
        letters = GaugeMetricFamily(
            "lazaretto_repair_messages", "Letters of repairs that have not ended.", labels=["state"]
        )
        running = [repair.counts for repair in self._repairs if repair.ended is None]
        for state in ("left", "waiting", "processed", "failed", "skipped", "undone"):
            letters.add_metric([state], sum(getattr(counts, state) for counts in running))
        return letters


def _seconds(now: datetime, then: datetime) -> float:
    return max(0.0, (now - then).total_seconds())


@route("GET", "/metrics", Permission.SEE, media_types=("text/plain",))
async def show_metrics(call: Call) -> Response:
    """Show how the store stands, in Prometheus's format.

    At most 100 queues are told by name: those in most trouble, then others in the order of their paths.
    """
    broker = call.broker
    registry = CollectorRegistry(auto_describe=False)
    registry.register(
        _Standing(
            await broker.status(limit=MOST_QUEUES),
            await broker.workers(),
            await broker.repairs(limit=_MOST_REPAIRS),
        )
    )
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)
