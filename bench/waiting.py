"""Waiting: what an idle broker costs, and how soon a blocked receiver has what was sent."""

from __future__ import annotations

import multiprocessing
import random
import resource
import threading
import time
from pathlib import Path
from typing import Any

from bench.measure import Measurement, Meter, latencies
from bench.payload import body, number
from bench.systems.contract import Sender, System

_SETTLE_SECONDS = 0.5
#: Between two messages: long enough for the receiver to be blocked again, and never in step with a timer.
_PAUSE_SECONDS = (0.02, 0.06)
#: The same for 200 messages a second.
_PACED_SECONDS = (0.002_5, 0.007_5)
_PATIENCE_SECONDS = 20.0
_PROCESSES = 4


def idle(system: System[Any], measurement: Measurement) -> dict[str, float]:
    """The share of a core that an open broker takes while a receiver of its is blocked, for nothing."""
    receiver = system.receiver()
    blocked = threading.Thread(
        target=receiver.receive, args=(1, measurement.scale.idle_seconds + 2 * _SETTLE_SECONDS)
    )
    blocked.start()
    time.sleep(_SETTLE_SECONDS)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    with Meter() as meter:
        time.sleep(measurement.scale.idle_seconds)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - switches
    blocked.join()
    return {"percent": 100 * meter.own / meter.elapsed, "wakeups_per_second": switches / meter.elapsed}


def ping(sender: Sender, count: int, pauses: tuple[float, float] = _PAUSE_SECONDS) -> list[int]:
    """Send messages that carry the time, with pauses, and return how long each send took."""
    pause = random.Random(7)
    took = []
    next_at = time.monotonic()
    for _ in range(count):
        next_at = max(next_at + pause.uniform(*pauses), time.monotonic())
        time.sleep(max(0.0, next_at - time.monotonic()))
        # The monotonic clock is one for all processes of the machine.
        start = time.monotonic_ns()
        sender.send(body(start))
        took.append(time.monotonic_ns() - start)
    return took


def _pong(system: System[Any], count: int) -> list[int]:
    """Receive, blocked each time, and return how long each message took from the start of its send."""
    receiver = system.receiver()
    took: list[int] = []
    deadline = time.monotonic() + _PATIENCE_SECONDS + count * _PAUSE_SECONDS[1]
    while len(took) < count:
        handles = receiver.receive(1, 1.0)
        now = time.monotonic_ns()
        if handles:
            took.append(now - number(receiver.body(handles[0])))
            receiver.complete(handles)
        elif time.monotonic() > deadline:
            raise RuntimeError(f"{len(took)} of {count} messages came")
    return took


def wake_threads(system: System[Any], measurement: Measurement) -> dict[str, float]:
    """How soon a receiver blocked in one thread has what another thread of the process sends."""
    count = measurement.scale.wakes
    sends: list[int] = []
    thread = threading.Thread(target=lambda: sends.extend(ping(system.sender(), count)))
    thread.start()
    waits = _pong(system, count)
    thread.join()
    return latencies(waits) | latencies(sends, "send_")


def wake_processes(system: System[Any], measurement: Measurement) -> dict[str, float]:
    """How soon a blocked receiver has what another process sends."""
    return _wake_processes(system, measurement.scale.wakes, _PAUSE_SECONDS)


def wake_paced(system: System[Any], measurement: Measurement) -> dict[str, float]:
    """The same at 200 messages a second: the receiver is blocked again most of the time."""
    return _wake_processes(system, 4 * measurement.scale.wakes, _PACED_SECONDS)


def _wake_processes(system: System[Any], count: int, pauses: tuple[float, float]) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    answer: Any = context.SimpleQueue()
    given = (type(system), str(system.home), system.place, count, pauses, answer)
    process = context.Process(target=_ping_from_outside, args=given)
    process.start()
    waits = _pong(system, count)
    sends = answer.get()
    process.join()
    return latencies(waits) | latencies(sends, "send_")


def _ping_from_outside(
    kind: type[System[Any]],
    home: str,
    place: str | None,
    count: int,
    pauses: tuple[float, float],
    answer: Any,
) -> None:
    system = kind(Path(home))
    system.join(place)
    answer.put(ping(system.sender(), count, pauses))
    system.close()


def cycles(system: System[Any], measurement: Measurement) -> dict[str, float]:
    """Four processes of one thread: each sends, receives and completes one message, again and again."""
    context = multiprocessing.get_context("spawn")
    answer: Any = context.SimpleQueue()
    together = context.Barrier(_PROCESSES)
    given = (type(system), str(system.home), system.place, measurement.scale.seconds, together, answer)
    processes = [context.Process(target=_cycle, args=given) for _ in range(_PROCESSES)]
    for process in processes:
        process.start()
    took = [one for _ in processes for one in answer.get()]
    for process in processes:
        process.join()
    return {"rate": len(took) / measurement.scale.seconds} | latencies(took)


def _cycle(
    kind: type[System[Any]], home: str, place: str | None, seconds: float, together: Any, answer: Any
) -> None:
    system = kind(Path(home))
    system.join(place)
    sender, receiver = system.sender(), system.receiver()
    took: list[int] = []
    together.wait()
    end = time.monotonic_ns() + int(seconds * 1e9)
    while (start := time.monotonic_ns()) < end:
        sender.send(body(start))
        # Another process may have taken it; it has left its own.
        receiver.complete(receiver.receive(1, 1.0))
        took.append(time.monotonic_ns() - start)
    answer.put(took)
    system.close()
