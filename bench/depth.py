"""Depth: whether receiving gets slower as more messages wait, in one store for each depth."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from bench.measure import Measurement, Meter, latencies
from bench.payload import bodies
from bench.systems.contract import System
from bench.systems.lazaretto import LazarettoSystem

#: Messages received before the queue is filled up again: a fifth of the smallest depth.
_BURST = 2_000
_BATCH = 100
#: What a waiting message of 1 KiB takes on disk with its indexes, and the log beside it, with room to spare.
_BYTES_EACH = 2_500


def room_for(depth: int, folder: Path) -> bool:
    """Return whether a store of this depth fits on the disk."""
    return shutil.disk_usage(folder).free > depth * _BYTES_EACH * 1.2


def fill(system: System[Any], measurement: Measurement) -> dict[str, float]:
    """Bring the queue to its depth, in commits of 1,000."""
    missing = _missing(system, measurement)
    with Meter() as meter:
        system.fill(bodies(missing))
    return {"rate": missing / meter.elapsed} | meter.figures()


def receive_one(system: System[Any], measurement: Measurement) -> dict[str, float]:
    """W4 at this depth."""
    return _receive(system, measurement, 1)


def receive_batches(system: System[Any], measurement: Measurement) -> dict[str, float]:
    """W5 at this depth."""
    return _receive(system, measurement, _BATCH)


def _missing(system: System[Any], measurement: Measurement) -> int:
    assert isinstance(system, LazarettoSystem)
    assert measurement.depth is not None
    return max(0, measurement.depth - system.waiting())


def _receive(system: System[Any], measurement: Measurement, limit: int) -> dict[str, float]:
    """Receive and complete in bursts; between them, not timed, the queue is brought back to its depth."""
    receiver = system.batch_receiver() if limit > 1 else system.receiver()
    took: list[int] = []
    done = 0
    end = int(measurement.scale.seconds * 1e9)
    clock = time.perf_counter_ns
    own = 0.0
    system.fill(bodies(_missing(system, measurement)))
    while sum(took) < end:
        with Meter() as meter:
            last = clock()
            for _ in range(0, _BURST, limit):
                handles = receiver.receive(limit, 0.0)
                receiver.complete(handles)
                now = clock()
                took.append(now - last)
                last = now
                done += len(handles)
        own += meter.own
        system.fill(bodies(_BURST))
    receiver.close()
    spent = sum(took) / 1e9
    return {"rate": done / spent} | latencies(took) | {"cpu_client": own / spent}
