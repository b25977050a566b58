"""Coroutines beside threads: 1,000 coroutines send one message each in a loop. `python -m bench.aio`."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
import time

import lazaretto
import lazaretto.aio
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


def threads(url: str) -> float:
    """Return how many messages a second the threads send."""
    with lazaretto.connect(url) as broker:
        broker.create_queue("threads")
        sender = broker.sender("threads")

        def send(messages: int) -> None:
            for _ in range(messages):
                sender.send(Message(_BODY))

        started = [
            threading.Thread(target=send, args=(_COROUTINES * _EACH // _THREADS,)) for _ in range(_THREADS)
        ]
        begun = time.perf_counter()
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        return _COROUTINES * _EACH / (time.perf_counter() - begun)


def main() -> None:
    """Measure both in turns, each time on a new store in a file."""
    found = []
    for turn in range(_TURNS):
        with tempfile.TemporaryDirectory() as folder:
            url = f"{folder}/aio.db"
            found.append((asyncio.run(coroutines(url)), threads(url)))
            sys.stdout.write(
                "turn {}: coroutines {:,.0f}/s, threads {:,.0f}/s\n".format(turn + 1, *found[-1])
            )
    both = [statistics.median(rates) for rates in zip(*found, strict=True)]
    sys.stdout.write("median: coroutines {:,.0f}/s, threads {:,.0f}/s\n".format(*both))


if __name__ == "__main__":
    main()
