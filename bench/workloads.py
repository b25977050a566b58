"""The workloads: what each one asks of a system, and which figure it is judged by."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import waiting
from bench.flow import flow, paced
from bench.measure import Measurement, Meter, latencies
from bench.payload import bodies, body, number
from bench.systems.contract import ATTEMPTS, Receiver, Sender, System

BATCH = 100
PRODUCERS = 16
_WARM_SECONDS = 0.2
_WARM_MESSAGES = 100
#: One in so many messages of the drill fails.
_POISON = 100

Figures = dict[str, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """A workload: its title, the figure it is judged by, that figure's unit, and how it is run."""

    title: str
    figure: str
    unit: str
    run: Callable[[System[Any], Measurement], Figures]
    #: Whether less is better.
    less: bool = False


def _repeat(call: Callable[[], None], seconds: float) -> list[int]:
    """Call until the time is over, and return how long each call took, in nanoseconds."""
    took: list[int] = []
    clock = time.perf_counter_ns
    now = clock()
    end = now + int(seconds * 1e9)
    while now < end:
        start = now
        call()
        now = clock()
        took.append(now - start)
    return took


def _numbered(sender: Sender, start: int = 0) -> Callable[[], None]:
    count = start

    def call() -> None:
        nonlocal count
        sender.send(body(count))
        count += 1

    return call


def send_one(system: System[Any], measurement: Measurement) -> Figures:
    """W1: one thread sends one message a call."""
    sender = system.sender()
    call = _numbered(sender)
    _repeat(call, _WARM_SECONDS)
    with Meter() as meter:
        took = _repeat(call, measurement.scale.seconds)
    sender.close()
    return {"rate": len(took) / meter.elapsed} | latencies(took) | meter.figures()


def send_together(system: System[Any], measurement: Measurement) -> Figures:
    """W2: sixteen threads of one process each send one message a call."""
    senders = [system.shared_sender() for _ in range(PRODUCERS)]
    together = threading.Barrier(PRODUCERS + 1)
    took: list[list[int]] = [[] for _ in senders]
    starts, ends = [0] * PRODUCERS, [0] * PRODUCERS
    errors: list[BaseException] = []

    def produce(index: int) -> None:
        call = _numbered(senders[index], index * 1_000_000)
        try:
            _repeat(call, _WARM_SECONDS)
            together.wait()
            starts[index] = time.perf_counter_ns()
            took[index] = _repeat(call, measurement.scale.seconds)
            ends[index] = time.perf_counter_ns()
        except BaseException as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=produce, args=(index,), daemon=True) for index in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    together.wait()
    with Meter() as meter:
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    for sender in senders:
        sender.close()
    every = [one for several in took for one in several]
    # By the threads' own clocks: this one may have been kept waiting after the barrier.
    return {"rate": len(every) / ((max(ends) - min(starts)) / 1e9)} | latencies(every) | meter.figures()


def send_batches(system: System[Any], measurement: Measurement) -> Figures:
    """W3: one thread sends a hundred messages a call, in one commit."""
    sender = system.sender()
    batch = list(bodies(BATCH))
    _repeat(lambda: sender.send_batch(batch), _WARM_SECONDS)
    with Meter() as meter:
        took = _repeat(lambda: sender.send_batch(batch), measurement.scale.seconds)
    sender.close()
    return {"rate": BATCH * len(took) / meter.elapsed} | latencies(took) | meter.figures()


def receive_one(system: System[Any], measurement: Measurement) -> Figures:
    """W4: one thread receives and completes one by one, from a full queue."""
    count = measurement.scale.one_by_one
    system.fill(bodies(count))
    return _receive(system.receiver(), 1, count, measurement.scale.seconds)


def receive_batches(system: System[Any], measurement: Measurement) -> Figures:
    """W5: one thread receives a hundred and completes them in one call, from a full queue."""
    count = measurement.scale.in_batches
    system.fill(bodies(count))
    return _receive(system.batch_receiver(), BATCH, count, measurement.scale.seconds)


def _receive(receiver: Receiver[Any], limit: int, count: int, seconds: float) -> Figures:
    """Receive and complete until the time is over or all of the `count` messages are done."""

    def step() -> int:
        handles = receiver.receive(limit, 0.0)
        if not handles:
            raise RuntimeError("the queue gave nothing though messages are left")
        receiver.complete(handles)
        return len(handles)

    warm = 0
    while warm < _WARM_MESSAGES:
        warm += step()
    done = warm
    took: list[int] = []
    clock = time.perf_counter_ns
    with Meter() as meter:
        now = clock()
        last, end = now, now + int(seconds * 1e9)
        while last < end and done < count:
            done += step()
            now = clock()
            took.append(now - last)
            last = now
    receiver.close()
    return {"rate": (done - warm) / meter.elapsed} | latencies(took) | meter.figures()


class Poison(Exception):
    """The handler of the drill cannot process this message."""


def drain(system: System[Any], measurement: Measurement) -> Figures:
    """W7: one in a hundred messages always fails; time until all are handled or set aside."""
    total = measurement.scale.drill
    poison = total // _POISON
    system.fill_drill(bodies(total))
    calls = 0

    def handler(payload: bytes) -> None:
        nonlocal calls
        calls += 1
        if number(payload) % _POISON == _POISON - 1:
            raise Poison(f"order {number(payload)} names a customer that does not exist")

    with Meter() as meter:
        system.drill(handler, total, poison)
    dead = system.set_aside()
    expected = total - poison + poison * ATTEMPTS
    if (calls, dead) != (expected, poison):
        raise RuntimeError(f"{calls} calls and {dead} set aside, where {expected} and {poison} were due")
    return {"seconds": meter.elapsed} | meter.figures()


WORKLOADS: dict[str, Workload] = {
    "W1": Workload("send one", "rate", "/s", send_one),
    "W2": Workload("send one, 16 threads", "rate", "/s", send_together),
    "W3": Workload("send 100", "rate", "/s", send_batches),
    "W4": Workload("receive, complete one", "rate", "/s", receive_one),
    "W5": Workload("receive, complete 100", "rate", "/s", receive_batches),
    "W6": Workload("4 send, 4 receive", "rate", "/s", flow),
    "W6-paced": Workload("W6 at 200/s: p50", "p50_ms", "ms", paced, less=True),
    "W7": Workload("drain, 1 % poison", "seconds", "s", drain, less=True),
    "idle": Workload("idle: share of a core", "percent", "%", waiting.idle, less=True),
    "wake-threads": Workload("wake-up between threads: p50", "p50_ms", "ms", waiting.wake_threads, less=True),
    "wake-processes": Workload(
        "wake-up between processes: p50", "p50_ms", "ms", waiting.wake_processes, less=True
    ),
    "wake-paced": Workload("the same at 200/s: p50", "p50_ms", "ms", waiting.wake_paced, less=True),
    "processes": Workload("send, receive, complete in 4 processes", "rate", "/s", waiting.cycles),
}

#: What `--only` names that is several workloads.
GROUPS: dict[str, Sequence[str]] = {
    "W6": ("W6", "W6-paced"),
    "wake": ("wake-threads", "wake-processes", "wake-paced"),
    "waiting": ("idle", "wake-threads", "wake-processes", "wake-paced", "processes"),
}
