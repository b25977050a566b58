"""Producers and consumers at the same time, as fast as they can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from bench.measure import Result, Scale, rate
from bench.payload import body, number
from bench.processor import Meter
from bench.systems.contract import Client, System

_THREADS = 4
#: How long a consumer blocks before it looks whether all is done.
_WAIT_SECONDS = 0.05


class _Flow:
    """Four threads that send numbered messages and four that receive and complete them one by one."""

    def __init__(self, system: System[Any], count: int) -> None:
        self.count = count
        #: Which messages have been in a consumer's hands.
        self.handed = [False] * count
        self.finished = [0.0] * _THREADS
        self._done = [0] * _THREADS
        self._errors: list[BaseException] = []
        self._stop = threading.Event()
        # One after another: some make their connection's settings here, which takes the write lock.
        self._clients = [system.client() for _ in range(2 * _THREADS)]

    def _produce(self, index: int, client: Client[Any]) -> None:
        for message in range(index, self.count, _THREADS):
            if self._stop.is_set():
                return
            client.send(body(message))

    def _consume(self, index: int, client: Client[Any]) -> None:
        while not self._stop.is_set():
            handles = client.receive(1, _WAIT_SECONDS)
            if not handles:
                if sum(self._done) >= self.count:
                    return
                continue
            message = number(client.body(handles[0]))
            first = not self.handed[message]
            self.handed[message] = True
            client.complete(handles)
            self.finished[index] = time.perf_counter()
            self._done[index] += first

    def _guard(self, work: Callable[[int, Client[Any]], None], index: int, client: Client[Any]) -> None:
        try:
            work(index, client)
        except BaseException as error:
            self._errors.append(error)
            self._stop.set()

    def run(self, seconds: float) -> int:
        """Run until all are handled, or for so many seconds; return how many were handled."""
        threads = []
        for index, client in enumerate(self._clients):
            work = (self._consume, self._produce)[index // _THREADS]
            given = (work, index % _THREADS, client)
            threads.append(threading.Thread(target=self._guard, args=given, daemon=True))
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
        return sum(self._done)


def flow(system: System[Any], scale: Scale) -> Result:
    """W6: four producers and four consumers, one by one, as fast as they can."""
    stream = _Flow(system, scale.flow)
    start = time.perf_counter()
    with Meter() as meter:
        done = stream.run(scale.flow_seconds)
    return rate(done, max(stream.finished) - start, meter)
