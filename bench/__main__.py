"""`python -m bench`: the workloads on Lazaretto beside other queues, in turn; one table.

A ratio above 1: Lazaretto is better. CPU is in microseconds a message, or a cycle of send, receive and
complete, of the whole machine: leave it alone meanwhile.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import goals, hosts
from bench.figures import Figure, table
from bench.machine import Machine
from bench.measure import Scale
from bench.scratch import scratch
from bench.side_by_side import Row, alone
from bench.systems import SYSTEMS
from bench.workloads import GROUPS, WORKLOADS

_INTERRUPTED = 130
#: What has options of its own.
_OTHERS = {"goals": goals.main, "hosts": hosts.main}


def _listed(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a reader of comma-separated names that says which names there are."""

    def read(text: str) -> list[str]:
        some = [name.strip() for name in text.split(",") if name.strip()]
        for name in some:
            if name not in names:
                raise argparse.ArgumentTypeError(f"expected some of {', '.join(names)}, got {name!r}")
        return some

    return read


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=["all", "served", "waiting", *_OTHERS],
        default="all",
        help="all: the workloads, in a file; served: the same on PostgreSQL; waiting: blocked receivers, and "
        "several processes on one file; goals: in ten minutes, one table of all that users have (goals "
        "--help); hosts: many processes on one PostgreSQL (hosts --help)",
    )
    parser.add_argument("--quick", action="store_true", help="show in short that all runs")
    workloads = [*WORKLOADS, *(name for name in GROUPS if name not in WORKLOADS)]
    parser.add_argument("--only", type=_listed(workloads), metavar="W1,W4", help=", ".join(workloads))
    parser.add_argument(
        "--systems", type=_listed(list(SYSTEMS)), metavar="A,B", help=f"A beside B: {', '.join(SYSTEMS)}"
    )
    parser.add_argument("--rounds", type=int, help="rounds (3; with --quick 1)")
    parser.add_argument("--seconds", type=float, help="of each timed measurement (3; with --quick 0.5)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="keep the table")
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="where the databases go (.bench)")
    return parser.parse_args()


def _rows(arguments: argparse.Namespace) -> list[Row]:
    """Return what is to be measured: each workload on the systems that have it."""
    served = arguments.what == "served"
    systems = arguments.systems or [
        name for name, cls in SYSTEMS.items() if cls.served is served and cls.by_default
    ]
    names = arguments.only or (["waiting"] if arguments.what == "waiting" else list(WORKLOADS))
    chosen = {member for name in names for member in GROUPS.get(name, (name,))}
    rows = []
    for workload in WORKLOADS:
        able = [name for name in systems if workload in SYSTEMS[name].workloads]
        if workload in chosen and able:
            rows.append(Row(workload, able[0], able[1:]))
    return rows


def main() -> int:
    """Run what the command line asks for."""
    if sys.argv[1:2] and sys.argv[1] in _OTHERS:
        return _OTHERS[sys.argv[1]](sys.argv[2:])
    arguments = _arguments()
    # Being told to end is like Ctrl-C: servers are stopped and folders removed first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    scale = Scale.quick() if arguments.quick else Scale()
    if arguments.seconds is not None:
        scale = scale.lasting(arguments.seconds)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    figures: list[Figure] = []
    code = 0
    with scratch(arguments.dir, "run-") as folder:
        machine = Machine.here(folder)
        if machine.in_memory:
            print(f"{folder} has no disk under it: these are not durable figures", file=sys.stderr)
        try:
            for number in range(1, rounds + 1):
                for figure in alone(_rows(arguments), folder, scale, number):
                    figures.append(figure)
                    print(f"[{number}] {figure}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            code = _INTERRUPTED
            print("interrupted: the table is of what was measured until then", file=sys.stderr)
    said = table(figures, machine.after())
    print(said)
    if arguments.markdown is not None:
        arguments.markdown.write_text(f"{said}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
