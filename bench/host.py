"""`python -m bench.host`: the service host end to end, isolated beside inline.

Messages of 230 bytes of JSON are sent, then a host works the queue off; the time from the host's start
to the last commit counts. The handler parses the body. What is compared takes turns, so that a
noisy moment of the machine hits all of it; the figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import lazaretto
from bench.isolation import body
from lazaretto import Message, PoisonPolicy, QueueOptions, ReceivedMessage
from lazaretto.host import Handler, HandlerOptions, ServiceHost

_CPU_LOOPS = 20_000


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
    """Parse, or crash."""
    import os

    if message.body == b"crash":
        os.abort()


class Run:
    """A way to work a queue off."""

    def __init__(
        self,
        title: str,
        handler: Callable[[ReceivedMessage], None],
        bodies: list[bytes],
        **options: object,
    ) -> None:
        self.title = title
        self.seconds: list[float] = []
        self.messages = len(bodies)
        self._handler = handler
        self._bodies = bodies
        self._options = HandlerOptions(**options)  # type: ignore[arg-type]

    def once(self, folder: Path) -> None:
        """Send the messages, and time the host."""
        with tempfile.TemporaryDirectory(dir=folder) as here, lazaretto.connect(Path(here, "b.db")) as broker:
            # Retried at once and set aside: what poison costs, without the waiting.
            policy = PoisonPolicy(receive_retry_count=0)
            broker.create_queue("work", QueueOptions(policy=policy))
            sender = broker.sender("work")
            for at in range(0, len(self._bodies), 1_000):
                sender.send([Message(text) for text in self._bodies[at : at + 1_000]])
            handler = Handler.with_options("work", self._handler, self._options)
            host = ServiceHost(broker, handler, on_output=lambda text: None)
            begun = 0.0
            with host:
                # The sandboxes are warm when the host has started.
                begun = time.perf_counter()
                report = host.reports()[0]
                while report.completed + report.dead < len(self._bodies):
                    time.sleep(0.002)
                    report = host.reports()[0]
                self.seconds.append(time.perf_counter() - begun)

    @property
    def rate(self) -> float:
        """The median of messages per second."""
        return self.messages / statistics.median(self.seconds)

    def ratio(self, other: Run) -> float:
        """The median of this one's rate as a share of the other's, round by round."""
        pairs = zip(self.seconds, other.seconds, strict=True)
        return statistics.median((self.messages / mine) / (other.messages / theirs) for mine, theirs in pairs)


def runs(count: int) -> list[Run]:
    """Return what is measured."""
    clean = [body(n) for n in range(count)]
    spoilt = [b"{" if n % 100 == 50 else text for n, text in enumerate(clean)]
    crashing = [b"crash" if n % 100 == 50 else b"" for n in range(2_000)]
    heavy = [b""] * 2_000
    made = [
        Run(f"{isolation}, batches of {size:,}", parse, clean, isolation=isolation, batch_size=size)
        for size in (100, 1_000)
        for isolation in ("inline", "process")
    ]
    made += [
        Run("process, batches of 100, 1 % poison", parse, spoilt),
        Run("process, good messages that do nothing", die, [b""] * 2_000),
        Run("process, the same with 1 % crashes", die, crashing),
        Run("a processor's work, one process", reckon, heavy, concurrency=1),
        Run("a processor's work, two processes", reckon, heavy, concurrency=2),
    ]
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--dir", type=Path, default=Path())
    arguments = parser.parse_args()
    made = runs(arguments.messages)
    for _ in range(arguments.rounds):
        for run in made:
            run.once(arguments.dir)
    console = Console()
    table = Table("service host", "messages/s", "least-most")
    for run in made:
        rates = [run.messages / seconds for seconds in run.seconds]
        table.add_row(run.title, f"{run.rate:,.0f}", f"{min(rates):,.0f}-{max(rates):,.0f}")
    console.print(table)
    inline, process, inline_big, process_big, spoilt, plain, crashing, one, two = made
    crashes = crashing.messages / 100
    lost = [b - a for a, b in zip(plain.seconds, crashing.seconds, strict=True)]
    for text, figure in (
        ("time per message, process to inline, batches of 100", 1 / process.ratio(inline)),
        ("time per message, process to inline, batches of 1,000", 1 / process_big.ratio(inline_big)),
        ("throughput with 1 % poison, of clean", spoilt.ratio(process)),
        ("milliseconds a crash", statistics.median(lost) / crashes * 1e3),
        ("two processes on two cores, of one", two.ratio(one)),
    ):
        console.print(f"{text}: {figure:.2f}")


if __name__ == "__main__":
    main()
