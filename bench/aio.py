"""Coroutines beside threads and Redis: each sends one message at a time, in a loop. `python -m bench.aio`."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import lazaretto
import lazaretto.aio
from bench.systems.redis import RedisSystem
from lazaretto import Message

_COROUTINES, _THREADS = 1_000, 16
#: Messages that each coroutine sends; the threads send as many together.
_EACH = 16
_TURNS = 5
_BODY = b"x" * 1024


async def coroutines(url: str) -> float:
    """Return how many messages a second the coroutines send."""
    async with await lazaretto.aio.connect(url) as broker:
        await broker.create_queue("coroutines")
        sender = broker.sender("coroutines")

        async def send(messages: int) -> None:
            for _ in range(messages):
                await sender.send(Message(_BODY))

        await asyncio.gather(*[send(1) for _ in range(_COROUTINES)])
        begun = time.perf_counter()
        await asyncio.gather(*[send(_EACH) for _ in range(_COROUTINES)])
        return _COROUTINES * _EACH / (time.perf_counter() - begun)


def in_threads(loops: list[Callable[[int], object]]) -> float:
    """Return how many messages a second some loops send, each in a thread of its own."""
    each = _COROUTINES * _EACH // len(loops)
    started = [threading.Thread(target=loop, args=(each,)) for loop in loops]
    begun = time.perf_counter()
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return each * len(loops) / (time.perf_counter() - begun)


def threads(url: str) -> float:
    """Return how many messages a second threads send."""
    with lazaretto.connect(url) as broker:
        broker.create_queue("threads")
        sender = broker.sender("threads")

        def send(messages: int) -> None:
            for _ in range(messages):
                sender.send(Message(_BODY))

        return in_threads([send] * _THREADS)


def redis(folder: Path) -> float:
    """Return how many messages a second threads send to Redis, which syncs each before it answers."""
    system = RedisSystem(folder)
    system.open()
    try:
        senders = [system.sender() for _ in range(_THREADS)]

        def loop(number: int) -> Callable[[int], object]:
            def send(messages: int) -> None:
                for _ in range(messages):
                    senders[number].send(_BODY)

            return send

        found = in_threads([loop(number) for number in range(_THREADS)])
        for sender in senders:
            sender.close()
        return found
    finally:
        system.close()


def main() -> None:
    """Measure all in turns, each time on a new store; without Redis if it is not installed."""
    missing = RedisSystem.missing()
    names = ["coroutines", "threads"] + ([] if missing else ["redis"])
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(_TURNS):
        with tempfile.TemporaryDirectory() as folder:
            url = f"{folder}/aio.db"
            found["coroutines"].append(asyncio.run(coroutines(url)))
            found["threads"].append(threads(url))
            if not missing:
                found["redis"].append(redis(Path(folder)))
        _say(f"turn {turn + 1}", {name: rates[-1] for name, rates in found.items()})
    _say("median", {name: statistics.median(rates) for name, rates in found.items()})
    if missing:
        sys.stdout.write(f"redis: {missing}\n")
    else:
        pairs = zip(found["coroutines"], found["redis"], strict=True)
        ratios = sorted(ours / theirs for ours, theirs in pairs)
        middle = statistics.median(ratios)
        sys.stdout.write(f"coroutines to redis: {middle:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})\n")


def _say(what: str, rates: dict[str, float]) -> None:
    said = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rates.items())
    sys.stdout.write(f"{what}: {said}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
