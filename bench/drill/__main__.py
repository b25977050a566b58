"""`python -m bench.drill`: run the drills, and print the table."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from bench.drill.drills import FULL_OUTAGE_SECONDS, OUTAGE_SECONDS, drills
from bench.drill.report import report
from bench.drill.run import Outcome, take
from bench.drill.systems import SYSTEMS
from bench.machine import Machine
from bench.rounds import INTERRUPTED, names, scratch


def _arguments() -> argparse.Namespace:
    known = drills()
    parser = argparse.ArgumentParser(prog="python -m bench.drill", description=__doc__)
    parser.add_argument(
        "--only", type=names(known), default=list(known), metavar="a,f",
        help="; ".join(f"{key}: {drill.title}" for key, drill in known.items()),
    )  # fmt: skip
    parser.add_argument(
        "--systems", type=names(SYSTEMS), default=list(SYSTEMS), metavar="A,B", help=", ".join(SYSTEMS)
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"an outage of {FULL_OUTAGE_SECONDS:g} s instead of {OUTAGE_SECONDS:g} s",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="keep the table")
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="where the queues go (.bench)")
    return parser.parse_args()


def main() -> int:
    """Run what the command line asks for."""
    given = _arguments()
    # Being told to end is like Ctrl-C: workers and servers are stopped and folders removed first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    known = drills(FULL_OUTAGE_SECONDS if given.full else OUTAGE_SECONDS)
    chosen = [drill for key, drill in known.items() if key in given.only]
    systems = [system for name, system in SYSTEMS.items() if name in given.systems]
    outcomes: list[Outcome] = []
    code = 0
    with scratch(given.dir) as folder:
        machine = Machine.here(folder)
        try:
            # Each drill on all systems before the next, so that what is compared is measured within minutes.
            for drill in chosen:
                for name in [system.name for system in systems if system.missing() is None]:
                    outcome = take(drill, name, folder)
                    outcomes.append(outcome)
                    figures = ", ".join(f"{title}: {said}" for title, said in outcome.figures.items())
                    print(f"{drill.key}, {name}: {outcome.error or figures}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            code = INTERRUPTED
            print("interrupted: the report is of what was run until then", file=sys.stderr)
        said = report(machine.line(), chosen, systems, outcomes)
    print(said)
    if given.markdown is not None:
        given.markdown.write_text(f"{said}\n")
    return code or int(any(outcome.error is not None for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
