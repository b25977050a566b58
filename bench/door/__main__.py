"""`python -m bench.door`: the door for AMQP 1.0 clients, side by side with the Python API and with others.

Every figure is one of a pair that takes turns, in the same minutes on the same machine: the median of the
rounds, and of their ratios. Servers are processes of their own; so are the SDK's clients. Where the
processor of a server counts, it is read from /proc, so that the client's own does not matter.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.door.durable import measure_durable
from bench.door.waiting import measure_idle, measure_wake
from bench.machine import Machine

_PARTS: Final = ("durable", "idle", "wake")


def main() -> None:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000, help="messages of a round")
    parser.add_argument("--connections", type=int, default=1_000, help="idle connections")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which they are watched")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="folder for the stores")
    parser.add_argument("--part", choices=_PARTS, action="append", help="measure this alone")
    given = parser.parse_args()
    rounds, count, folder = given.rounds, given.count, given.folder
    machine = Machine.here(folder)
    parts: dict[str, Callable[[], list[str]]] = {
        "durable": lambda: [pair.row() for pair in measure_durable(rounds, count, folder)],
        "idle": lambda: [measure_idle(given.connections, given.seconds, folder)],
        "wake": lambda: [measure_wake(max(20, count // 40), folder)],
    }
    rows = [row for name, measure in parts.items() if name in (given.part or parts) for row in measure()]
    machine = machine.after()
    load = f"load {machine.load_before} before, {machine.load_after} after"
    print(f"{machine.date}, {machine.cores} cores, {load}")
    print("\n| what | | | ratio (least-most) | goal |\n|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
