"""Producers and consumers at the same time: as fast as they can, and at a steady pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from bench.measure import Measurement, Meter, latencies
from bench.payload import body, number
from bench.systems.contract import Receiver, Sender, System

_THREADS = 4
_PACE = 200
#: How long a consumer blocks before it looks whether all is done.
_WAIT_SECONDS = 0.05

_clock = time.perf_counter_ns


class _Flow:
    """Four threads that send numbered messages and four that receive and complete them one by one."""

    def __init__(self, system: System[Any], count: int) -> None:
        self.count = count
        self.sent = [0] * count
        #: When each message was first in a consumer's hands; 0: not yet.
        self.handed = [0] * count
        self.finished = [0] * _THREADS
        self._done = [0] * _THREADS
        self._errors: list[BaseException] = []
        self._stop = threading.Event()
        # One after another: some make their connection's settings here, which takes the write lock.
        self._senders = [system.shared_sender() for _ in range(_THREADS)]
        self._receivers = [system.receiver() for _ in range(_THREADS)]

    def _produce(self, index: int, sender: Sender, due: Callable[[int], float | None]) -> None:
        for message in range(index, self.count, _THREADS):
            if self._stop.is_set():
                return
            moment = due(message)
            if moment is not None and (early := moment - time.perf_counter()) > 0:
                time.sleep(early)
            payload = body(message)
            self.sent[message] = _clock()
            sender.send(payload)

    def _consume(self, index: int, receiver: Receiver[Any]) -> None:
        while not self._stop.is_set():
            handles = receiver.receive(1, _WAIT_SECONDS)
            if not handles:
                if sum(self._done) >= self.count:
                    return
                continue
            now = _clock()
            message = number(receiver.body(handles[0]))
            first = self.handed[message] == 0
            if first:
                self.handed[message] = now
            receiver.complete(handles)
            self.finished[index] = _clock()
            self._done[index] += first

    def _guard(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self._errors.append(error)
            self._stop.set()

    def run(self, seconds: float, due: Callable[[int], float | None]) -> int:
        """Run until all are handled, or for so many seconds; return how many were handled."""
        threads = []
        for index in range(_THREADS):
            works: list[tuple[object, ...]] = [
                (self._consume, index, self._receivers[index]),
                (self._produce, index, self._senders[index], due),
            ]
            threads += [threading.Thread(target=self._guard, args=work, daemon=True) for work in works]
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stop.set()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        for sender in self._senders:
            sender.close()
        for receiver in self._receivers:
            receiver.close()
        return sum(self._done)

    def waits(self) -> list[int]:
        """Return how long each handled message took from the start of its send to a consumer's hands."""
        return [handed - sent for sent, handed in zip(self.sent, self.handed, strict=True) if handed]


def flow(system: System[Any], measurement: Measurement) -> dict[str, float]:
    """W6: four producers and four consumers, one by one, as fast as they can."""
    scale = measurement.scale
    stream = _Flow(system, scale.flow)
    start = _clock()
    with Meter() as meter:
        done = stream.run(scale.flow_seconds, lambda _: None)
    elapsed = (max(stream.finished) - start) / 1e9
    late = {"unhandled": float(scale.flow - done)}
    return {"rate": done / elapsed} | latencies(stream.waits()) | late | meter.figures()


def paced(system: System[Any], measurement: Measurement) -> dict[str, float]:
    """W6 at a steady 200 messages a second: how long a message takes when nothing is saturated."""
    count = int(_PACE * measurement.scale.paced_seconds)
    stream = _Flow(system, count)
    start = time.perf_counter() + 0.1
    with Meter() as meter:
        done = stream.run(measurement.scale.paced_seconds + 10, lambda message: start + message / _PACE)
    late = {"unhandled": float(count - done)}
    return latencies(stream.waits()) | late | meter.figures()
