"""The workloads: what each one asks of a system, and which figure it is judged by."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from bench import waiting
from bench.flow import flow
from bench.measure import Result, Scale, rate
from bench.payload import bodies, body, number
from bench.processor import Meter
from bench.systems.contract import ATTEMPTS, Client, System

BATCH = 100
PRODUCERS = 16
_WARM_SECONDS = 0.2
#: One in so many messages of the drill fails.
_POISON = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """A workload: its title, the unit of its figure, and how it is run. `less`: whether less is better."""

    title: str
    run: Callable[[System[Any], Scale], Result]
    unit: str = "/s"
    less: bool = False


def _repeat(call: Callable[[], object], seconds: float) -> int:
    """Call until the time is over, and return how often."""
    count, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        call()
        count += 1
    return count


def _send(client: Client[Any], start: int = 0) -> Callable[[], None]:
    numbers = itertools.count(start)
    return lambda: client.send(body(next(numbers)))


def _measure(call: Callable[[], object], seconds: float, messages: int = 1) -> Result:
    """Return the rate of what is called again and again, with so many messages each time."""
    _repeat(call, _WARM_SECONDS)
    with Meter() as meter:
        count = _repeat(call, seconds)
    return rate(count * messages, meter.elapsed, meter)


def send_one(system: System[Any], scale: Scale) -> Result:
    """W1: one thread sends one message a call."""
    return _measure(_send(system.client()), scale.seconds)


def send_together(system: System[Any], scale: Scale) -> Result:
    """W2: sixteen threads of one process each send one message a call."""
    clients = [system.client() for _ in range(PRODUCERS)]
    together = threading.Barrier(PRODUCERS + 1)
    counts, starts, ends = [0] * PRODUCERS, [0.0] * PRODUCERS, [0.0] * PRODUCERS
    errors: list[BaseException] = []

    def produce(index: int) -> None:
        call = _send(clients[index], index * 1_000_000)
        try:
            _repeat(call, _WARM_SECONDS)
            together.wait()
            starts[index] = time.perf_counter()
            counts[index] = _repeat(call, scale.seconds)
            ends[index] = time.perf_counter()
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
    # By the threads' own clocks: this one may have been kept waiting after the barrier.
    return rate(sum(counts), max(ends) - min(starts), meter)


def send_batches(system: System[Any], scale: Scale) -> Result:
    """W3: one thread sends a hundred messages a call, in one commit."""
    client, batch = system.client(), list(bodies(BATCH))
    return _measure(lambda: client.send_batch(batch), scale.seconds, BATCH)


def receive_one(system: System[Any], scale: Scale) -> Result:
    """W4: one thread receives and completes one by one, from a full queue."""
    return _receive(system, 1, scale.one_by_one, scale.seconds)


def receive_batches(system: System[Any], scale: Scale) -> Result:
    """W5: one thread receives a hundred and completes them in one call, from a full queue."""
    return _receive(system, BATCH, scale.in_batches, scale.seconds)


def _receive(system: System[Any], limit: int, count: int, seconds: float) -> Result:
    """Receive and complete until the time is over or all of the `count` messages are done."""
    system.fill(bodies(count))
    client = system.client(limit)

    def step() -> int:
        handles = client.receive(limit, 0.0)
        if not handles:
            raise RuntimeError("the queue gave nothing though messages are left")
        client.complete(handles)
        return len(handles)

    warm = 0
    while warm < BATCH:
        warm += step()
    done = warm
    with Meter() as meter:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and done < count:
            done += step()
    return rate(done - warm, meter.elapsed, meter)


class Poison(Exception):
    """The handler of the drill cannot process this message."""


def drain(system: System[Any], scale: Scale) -> Result:
    """W7: one in a hundred messages always fails; time until all are handled or set aside."""
    total, poison = scale.drill, scale.drill // _POISON
    system.fill(bodies(total))
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
    return Result(meter.elapsed)


WORKLOADS: dict[str, Workload] = {
    "W1": Workload("send one", send_one),
    "W2": Workload("send one, 16 threads", send_together),
    "W3": Workload("send 100", send_batches),
    "W4": Workload("receive, complete one", receive_one),
    "W5": Workload("receive, complete 100", receive_batches),
    "W6": Workload("4 send, 4 receive", flow),
    "W7": Workload("drain, 1 % poison", drain, "s", less=True),
    "idle": Workload("share of a core", waiting.idle, "%", less=True),
    "wake": Workload("two processes, 200/s: p50", waiting.wake, "ms", less=True),
    "processes": Workload("send, receive, complete in 4 processes", waiting.cycles),
}
