"""`python -m bench.traces`: what traces cost, and what they cost when nobody traces.

A process sends, receives and completes messages one by one, in a store whose folder `--folder` should be in
memory, so that the disk's time does not hide the program's. The variants take turns, each in a process of its
own. Figures are microseconds of the processor a message: median and least, and the median of the ratios to
the first variant of the round. `--before` names the sources of an earlier version: then the first variant.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_PROGRAM = """
import sys, time
kind, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind != "off":
    from opentelemetry import trace
if kind == "on":
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())
import lazaretto
from lazaretto import Message
body = b"x" * 230
with lazaretto.connect(folder + "/traces.db") as broker:
    broker.create_queue("q")
    sender, receiver = broker.sender("q"), broker.receiver("q")

    def work(count):
        for _ in range(count):
            sender.send(Message(body))
        for _ in range(count):
            receiver.complete(receiver.receive())

    work(count // 10)
    began = time.process_time()
    work(count)
    print((time.process_time() - began) / count * 1e6)
"""
#: What is traced: nothing, also where OpenTelemetry is imported; or everything, without an exporter.
_KINDS = {"off": "not imported", "imported": "imported, no provider", "on": "traced, not exported"}


def measure(sources: Path, kind: str, folder: str, count: int) -> float:
    """Return the microseconds that a message takes."""
    with tempfile.TemporaryDirectory(dir=folder) as store:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, kind, store, str(count)],
            env={**os.environ, "PYTHONPATH": str(sources)},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="sources of an earlier version")
    parser.add_argument("--folder", default="/dev/shm", help="folder for the stores")
    parser.add_argument("--count", type=int, default=5000, help="messages")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    here = Path(__file__).parents[1] / "src"
    variants = [(kind, here, told) for kind, told in _KINDS.items()]
    if given.before is not None:
        variants.insert(0, ("off", given.before, "before"))
    rounds = [
        [measure(sources, kind, given.folder, given.count) for kind, sources, _ in variants]
        for _ in range(given.rounds)
    ]
    for place, (_, _, told) in enumerate(variants):
        each = statistics.median(one[place] for one in rounds)
        ratio = statistics.median(one[place] / one[0] for one in rounds)
        least = min(one[place] for one in rounds)
        sys.stdout.write(f"{told:24} {each:7.1f} µs, least {least:7.1f}, ratio {ratio:.3f}\n")


if __name__ == "__main__":
    main()
