"""Waiting: what an idle broker costs, how soon a blocked receiver has a message, and several processes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.crew import crew
from bench.measure import Result, Scale, latencies
from bench.payload import body, number
from bench.processor import Meter
from bench.systems.contract import System

_SETTLE_SECONDS = 0.5
#: Between two messages, at 200 a second: never in step with a timer.
_PAUSE_SECONDS = (0.002_5, 0.007_5)
_PATIENCE_SECONDS = 60.0
_PROCESSES = 4


def idle(system: System[Any], scale: Scale) -> Result:
    """The share of a core that an open broker takes while a receiver of its is blocked, for nothing."""
    wait = scale.idle_seconds + 2 * _SETTLE_SECONDS
    blocked = threading.Thread(target=system.client().receive, args=(1, wait))
    blocked.start()
    time.sleep(_SETTLE_SECONDS)
    with Meter() as meter:
        time.sleep(scale.idle_seconds)
    blocked.join()
    return Result(100 * meter.own / meter.elapsed)


def wake(system: System[Any], scale: Scale) -> Result:
    """How soon a blocked receiver has what another process sends, at 200 messages a second."""
    client = system.client()
    took: list[int] = []
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with crew(1, _ping, type(system), str(system.home), system.place, scale.wakes) as sender:
        sender.start()
        while len(took) < scale.wakes:
            handles = client.receive(1, 1.0)
            now = time.monotonic_ns()
            if handles:
                took.append(now - number(client.body(handles[0])))
                client.complete(handles)
            elif time.monotonic() > deadline:
                raise RuntimeError(f"{len(took)} of {scale.wakes} messages came")
        sender.answers(_PATIENCE_SECONDS)
    return latencies(took)


def _ping(
    ready: Callable[[], None], kind: type[System[Any]], home: str, place: str | None, count: int
) -> None:
    """Send messages that carry the time, with pauses."""
    system = kind(Path(home))
    system.join(place)
    client, pause = system.client(), random.Random(7)
    ready()
    due = time.monotonic()
    for _ in range(count):
        due = max(due + pause.uniform(*_PAUSE_SECONDS), time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        # The monotonic clock is one for all processes of the machine.
        client.send(body(time.monotonic_ns()))
    system.close()


def cycles(system: System[Any], scale: Scale) -> Result:
    """Four processes of one thread: each sends, receives and completes one message, again and again."""
    given = (type(system), str(system.home), system.place, scale.seconds)
    with crew(_PROCESSES, _cycle, *given) as processes:
        processes.start()
        took = [one for some in processes.answers(scale.seconds + _PATIENCE_SECONDS) for one in some]
    return Result(len(took) / scale.seconds, p99_ms=latencies(took).p99_ms)


def _cycle(
    ready: Callable[[], None], kind: type[System[Any]], home: str, place: str | None, seconds: float
) -> list[int]:
    system = kind(Path(home))
    system.join(place)
    client = system.client()
    took: list[int] = []
    ready()
    end = time.monotonic_ns() + int(seconds * 1e9)
    while (start := time.monotonic_ns()) < end:
        client.send(body(start))
        # Another process may have taken it; it has left its own.
        client.complete(client.receive(1, 1.0))
        took.append(time.monotonic_ns() - start)
    system.close()
    return took
