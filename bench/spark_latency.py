"""How long after it was sent a message has its result where readers see it, while a query runs."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

import lazaretto
from bench.spark_places import SIZE, Places
from lazaretto import Message
from lazaretto.spark import process

#: How many times a second messages are sent: many at once where there are many.
_TURNS = 100
_LEFT_SECONDS = 60.0


class Latencies(NamedTuple):
    """Seconds from each message to its result, and of each micro-batch that had messages."""

    seconds: list[float]
    batches: list[float]


def note(message: Any) -> dict[str, Any]:
    """Be the handler: return when the message was sent."""
    import json

    return {"sent": json.loads(message.body).get("sent")}


def send(url: str, rate: int, seconds: float) -> None:
    """Send so many messages a second."""
    turns = min(_TURNS, rate)
    with lazaretto.connect(url) as broker:
        sender = broker.sender("work")
        began = time.monotonic()
        for turn in range(round(seconds * turns)):
            time.sleep(max(0.0, began + turn / turns - time.monotonic()))
            said = {"sent": time.time_ns(), "note": "x" * (SIZE - 50)}
            sender.send([Message(json.dumps(said).encode())] * (rate // turns))


def latencies(spark: Any, places: Places, rate: int, seconds: float) -> Latencies:
    """Send while a query runs; return how long each result took.

    The file that a result is in gets its name when its claim is settled, and the file system notes when.
    """
    place = places.copy("warm")
    results = place.home / "results"
    query = process(
        spark, note, store=place.url, queue="work", checkpoint=str(place.home / "checkpoint"),
        results=str(results), schema="sent bigint", breaker=None, trigger={"processingTime": "0 seconds"},
    )  # fmt: skip
    with lazaretto.connect(place.url) as broker:
        _wait_until_empty(broker, query)
        before = set(_files(results))
        passed = len(query.recentProgress)
        sender = multiprocessing.get_context("spawn").Process(target=send, args=(place.url, rate, seconds))
        sender.start()
        sender.join()
        assert sender.exitcode == 0
        _wait_until_empty(broker, query)
    batches = [
        one["durationMs"]["triggerExecution"] / 1_000
        for one in list(query.recentProgress)[passed:]
        if one["numInputRows"]
    ]
    query.stop()
    found = []
    for path in _files(results):
        if path not in before:
            seen = path.stat().st_ctime_ns
            found += [(seen - sent) / 1e9 for sent in pq.read_table(path).column("sent").to_pylist()]
    places.remove(place)
    return Latencies(found, batches)


def _files(results: Path) -> list[Path]:
    return list(results.glob("claim=*/part-*"))


def _wait_until_empty(broker: lazaretto.Broker, query: Any) -> None:
    """Wait for the query to have settled all there is. Raises its error, or TimeoutError."""
    deadline = time.monotonic() + _LEFT_SECONDS
    while broker.queue("work").counts.total:
        if query.exception() is not None:
            raise query.exception()
        if time.monotonic() > deadline:
            raise TimeoutError("messages are left in the queue")
        time.sleep(0.2)
