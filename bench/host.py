"""`python -m bench.host`: the service host end to end, isolated beside inline.

Messages of 230 bytes of JSON are sent, then a host works the queue off; the time from the host's start
to the last commit counts. The handler parses the body, but where a crash or a processor's work is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import lazaretto
from bench.figures import Figure
from bench.isolation import SIZE
from bench.payload import order
from bench.rounds import options, private, run
from bench.systems.contract import chunks
from lazaretto import Message, PoisonPolicy, QueueOptions, ReceivedMessage
from lazaretto.host import Handler, HandlerOptions, ServiceHost

_CPU_LOOPS = 20_000
_FEW = 2_000


def parse(message: ReceivedMessage) -> None:
    """Be a handler that does next to nothing."""
    import json

    json.loads(message.body)


def reckon(message: ReceivedMessage) -> None:
    """Be a handler that needs a processor for about a millisecond."""
    total = 0
    for number in range(_CPU_LOOPS):
        total += number


def die(message: ReceivedMessage) -> None:
    """Do nothing, or crash."""
    import os

    if message.body == b"crash":
        os.abort()


def seconds(
    folder: Path, handle: Callable[[ReceivedMessage], None], bodies: Sequence[bytes], **options: object
) -> float:
    """Send the messages, and return how long a host takes for them."""
    with private(folder) as home, lazaretto.connect(home / "b.db") as broker:
        # Set aside at the first failure: what poison costs, without the waiting.
        broker.create_queue("work", QueueOptions(policy=PoisonPolicy(receive_retry_count=0)))
        sender = broker.sender("work")
        for chunk in chunks(bodies, 1_000):
            sender.send([Message(body) for body in chunk])
        settings = HandlerOptions(**options)  # type: ignore[arg-type]
        host = ServiceHost(
            broker, Handler.with_options("work", handle, settings), on_output=lambda text: None
        )
        with host:
            # The sandboxes are warm when the host has started.
            begun = time.perf_counter()
            while (report := host.reports()[0]).completed + report.dead < len(bodies):
                time.sleep(0.002)
            return time.perf_counter() - begun


def measure(folder: Path, count: int) -> Iterator[Figure]:
    """Measure a round: pairs that stand side by side."""
    clean = [order(n, SIZE) for n in range(count)]
    for size in (100, 1_000):
        for isolation in ("process", "inline"):
            took = seconds(folder, parse, clean, isolation=isolation, batch_size=size)
            yield Figure(f"isolated, inline; batches of {size:,}", isolation, count / took, "/s")
    spoilt = [b"{" if n % 100 == 50 else body for n, body in enumerate(clean)]
    yield Figure("1 % poison", "process", count / seconds(folder, parse, spoilt), "/s")
    crashing = [b"crash" if n % 100 == 50 else b"" for n in range(_FEW)]
    lost = seconds(folder, die, crashing) - seconds(folder, die, [b""] * _FEW)
    yield Figure("a crash, with its dead letter", "process", lost / (_FEW / 100) * 1e3, "ms", less=True)
    for processes in (2, 1):
        took = seconds(folder, reckon, [b""] * _FEW, concurrency=processes)
        yield Figure("a processor's work", f"{processes} processes", _FEW / took, "/s")


def main() -> int:
    """Measure and print."""
    parser = options("bench.host", __doc__, 7)
    parser.add_argument("--messages", type=int, default=30_000)
    given = parser.parse_args()
    count = min(given.messages, 3_000) if given.quick else given.messages
    return run(given, lambda folder, _: measure(folder, count))


if __name__ == "__main__":
    raise SystemExit(main())
