"""`python -m bench.repairs`: all steps of a repair of many letters, beside the same by hand, and senders.

By hand: receive, send and complete a hundred in one transaction each, as one does in Service Bus.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lazaretto
from bench.crew import crew
from bench.figures import Figure, percentile
from bench.processor import spend
from bench.rounds import options, private, run
from lazaretto import Broker, DeadLetterFilter, Message

_BODY = b'{"order": %d, "region": "eu", "pad": "' + b"x" * 200 + b'"}'
_REASON = DeadLetterFilter(reason="why")
_ANSWER_SECONDS = 600.0


def fill(broker: Broker, path: str, letters: int) -> None:
    """Make dead letters."""
    broker.create_queue(path)
    sender, receiver = broker.sender(path), broker.receiver(path)
    for start in range(0, letters, 1000):
        sender.send([Message(_BODY % n) for n in range(start, min(start + 1000, letters))])
        receiver.dead_letter(receiver.receive(1000), reason="why", description="the region is wrong")


def by_hand(broker: Broker, path: str) -> None:
    """Send dead letters back."""
    while True:
        with broker.transaction() as tx:
            messages = tx.receive(path, 100, subqueue="dead_letter")
            if not messages:
                return
            tx.send(path, [Message(m.body, properties=m.properties) for m in messages])
            tx.complete(messages)


def send(ready: Callable[[], None], store: Path, seconds: float) -> list[float]:
    """Send one message after another, and return how long each call took."""
    took = []
    with lazaretto.connect(store) as broker:
        sender = broker.sender("live")
        ready()
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            sender.send(Message(b"x" * 200))
            took.append(time.perf_counter() - began)
            time.sleep(0.002)
    return took


def measure(folder: Path, letters: int, seconds: float) -> Iterator[Figure]:
    """Measure a round on a new store."""

    def figure(name: str, system: str, call: Callable[[], object]) -> Figure:
        took, cpu = spend(call)
        return Figure(name, system, letters / took, "/s", cost=cpu / letters * 1e6)

    with private(folder) as home, lazaretto.connect(home / "repairs.db") as broker:
        broker.create_queue("live")
        fill(broker, "q", letters)
        began = time.perf_counter()
        repair = broker.plan_repair("q", _REASON)
        yield Figure("freeze", "repair", letters / (time.perf_counter() - began), "/s")
        repair.apply(in_flight=None)
        yield figure("sent back", "repair", repair.run)
        repair.undo()
        yield figure("taken back", "repair", repair.run)
        for work in ("a repair", "nothing"):
            second = broker.plan_repair("q", _REASON)
            second.apply(in_flight=None)
            with crew(1, send, home / "repairs.db", seconds) as senders:
                senders.start()
                if work == "a repair":
                    second.run()
                (took,) = senders.answers(_ANSWER_SECONDS)
            second.run()
            second.undo()
            second.run()
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                yield Figure(f"a send beside: {name}", work, percentile(took, share) * 1e3, "ms", less=True)
        yield figure("sent back", "resubmit", lambda: broker.resubmit("q", _REASON))
        broker.delete_queue("q")
        fill(broker, "hand", letters)
        yield figure("sent back", "by hand", lambda: by_hand(broker, "hand"))


def main() -> int:
    """Measure and print."""
    parser = options("bench.repairs", __doc__, 1)
    parser.add_argument("--letters", type=int, default=150_000)
    given = parser.parse_args()
    logging.disable()
    letters, seconds = (min(given.letters, 2_000), 1.0) if given.quick else (given.letters, 5.0)
    return run(given, lambda folder, _: measure(folder, letters, seconds))


if __name__ == "__main__":
    raise SystemExit(main())
