"""`python -m bench`: the workloads on Lazaretto beside other queues, in turn; one table.

A ratio above 1: Lazaretto is better. CPU is in microseconds a message, or a cycle of send, receive and
complete, of the whole machine: leave it alone meanwhile.

all: the workloads, in a file; served: the same on PostgreSQL; waiting: blocked receivers, and several
processes on one file. `goals` and `hosts` have options of their own: goals --help, hosts --help.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator

from bench import goals, hosts
from bench.measure import Scale
from bench.rounds import names, options, run
from bench.side_by_side import Row, alone
from bench.systems import SYSTEMS
from bench.workloads import WORKLOADS

_OTHERS = {"goals": goals.main, "hosts": hosts.main}
_WAITING = ("idle", "wake", "processes")


def _arguments() -> argparse.Namespace:
    parser = options("bench", __doc__, 3)
    parser.add_argument("what", nargs="?", choices=["all", "served", "waiting", *_OTHERS], default="all")
    parser.add_argument("--only", type=names(WORKLOADS), metavar="W1,W4", help=", ".join(WORKLOADS))
    parser.add_argument(
        "--systems", type=names(SYSTEMS), metavar="A,B", help=f"A beside B: {', '.join(SYSTEMS)}"
    )
    parser.add_argument("--seconds", type=float, help="of each timed measurement (3; with --quick 0.5)")
    return parser.parse_args()


def _rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield what is to be measured: each workload on the systems that have it."""
    served = given.what == "served"
    systems = given.systems or [name for name, cls in SYSTEMS.items() if cls.served is served]
    for workload in given.only or (_WAITING if given.what == "waiting" else WORKLOADS):
        able = [name for name in systems if workload in SYSTEMS[name].workloads]
        if able:
            yield Row(workload, able[0], able[1:])


def main() -> int:
    """Run what the command line asks for."""
    if sys.argv[1:2] and sys.argv[1] in _OTHERS:
        return _OTHERS[sys.argv[1]](sys.argv[2:])
    given = _arguments()
    scale = Scale.quick() if given.quick else Scale()
    if given.seconds is not None:
        scale = dataclasses.replace(scale, seconds=given.seconds)
    return run(given, lambda folder, _: alone(_rows(given), folder, scale))


if __name__ == "__main__":
    raise SystemExit(main())
