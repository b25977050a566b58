"""`python -m bench`: measure, print the tables, and keep the figures."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from bench import goals, hosts, polling
from bench.depth import room_for
from bench.machine import Machine
from bench.measure import Measurement, Result, Scale, take
from bench.report import Run, to_json, to_markdown, to_terminal
from bench.scratch import scratch
from bench.systems import SYSTEMS
from bench.tables import number
from bench.workloads import GROUPS, WORKLOADS

_DEPTHS = (10_000, 1_000_000, 5_000_000)
_DEPTH_SYSTEM = "lazaretto"
_INTERRUPTED = 130
_FILE_COLUMNS = 150


def _listed(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a reader of comma-separated names that says which names there are."""

    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, got {name!r}")
        return names

    return read


def _depths(text: str) -> list[int]:
    return sorted({int(part.replace("_", "")) for part in text.split(",")})


def _arguments() -> argparse.Namespace:
    ordinary = [name for name in WORKLOADS if not name.startswith("depth")]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=["all", "goals", "served", "depth", "hosts", "polling", "waiting"],
        default="all",
        help="all: the workloads, side by side; goals: in ten minutes, one table of all that users have (its "
        "options: goals --help); served: the same on PostgreSQL; hosts: many processes on one "
        "PostgreSQL (its options: hosts --help); "
        "polling: processes that wait on one PostgreSQL (its options: polling --help); "
        "waiting: blocked receivers, and several processes on one file; "
        "depth: receiving while very many messages wait (lazaretto, or lazaretto-postgres by --systems)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="show in short that everything runs; no figures to keep"
    )
    parser.add_argument(
        "--only",
        type=_listed([*ordinary, *GROUPS]),
        metavar="W1,W4",
        help=f"workloads: {', '.join(ordinary)}",
    )
    parser.add_argument("--systems", type=_listed(list(SYSTEMS)), metavar="A,B", help=", ".join(SYSTEMS))
    parser.add_argument("--rounds", type=int, help="rounds (3; with --quick 1)")
    parser.add_argument(
        "--seconds", type=float, help="seconds of each timed measurement (3; with --quick 0.5)"
    )
    parser.add_argument(
        "--depths", type=_depths, default=list(_DEPTHS), metavar="N,N", help="waiting messages, for depth"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the raw figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="keep the tables as Markdown")
    parser.add_argument(
        "--dir", type=Path, default=Path(".bench"), help="where the databases go meanwhile (.bench)"
    )
    return parser.parse_args()


def _scale(arguments: argparse.Namespace) -> Scale:
    scale = Scale.quick() if arguments.quick else Scale()
    if arguments.seconds is None:
        return scale
    return scale.lasting(arguments.seconds)


def _plan(systems: Sequence[str], workloads: Sequence[str], rounds: int, scale: Scale) -> list[Measurement]:
    """Return the measurements in their order: all systems of a workload together, round by round."""
    return [
        Measurement(system=system, workload=workload, round=number, scale=scale)
        for number in range(1, rounds + 1)
        for workload in workloads
        for system in systems
        if workload in SYSTEMS[system].workloads
    ]


def _depth_plan(
    system: str, depths: Sequence[int], folder: Path, rounds: int, scale: Scale
) -> list[Measurement]:
    """Return the measurements of the depths: each store filled once, then all depths round by round."""
    homes = {depth: folder / f"depth-{depth}" for depth in depths}
    for home in homes.values():
        home.mkdir()

    def one(workload: str, depth: int, number: int) -> Measurement:
        home = str(homes[depth])
        return Measurement(
            system=system, workload=workload, round=number, scale=scale, depth=depth, home=home
        )

    return [one("depth-fill", depth, 0) for depth in depths] + [
        one(workload, depth, number)
        for number in range(1, rounds + 1)
        for workload in ("depth-W4", "depth-W5")
        for depth in depths
    ]


def _measure(plan: Sequence[Measurement], folder: Path, console: Console) -> Iterator[Result]:
    for index, measurement in enumerate(plan, 1):
        result = take(measurement, folder)
        workload = WORKLOADS[measurement.workload]
        depth = "" if measurement.depth is None else f" {measurement.depth:,}"
        outcome = (
            f"failed: {result.error.splitlines()[-1]}"
            if result.error is not None
            else number(result.figures[workload.figure], workload.unit) + workload.unit
        )
        where = f"[{index}/{len(plan)}] round {measurement.round} {measurement.workload}{depth}"
        console.print(f"{where} {measurement.system}: {outcome}", markup=False, highlight=False)
        yield result


def _wide(console: Console) -> Console:
    # A file has no width of its own, and the tables do not fit in the 80 columns that are assumed.
    return console if console.is_terminal else Console(width=_FILE_COLUMNS)


def main() -> int:
    """Run what the command line asks for."""
    if sys.argv[1:2] == ["goals"]:
        return goals.main(sys.argv[2:])
    if sys.argv[1:2] == ["hosts"]:
        return hosts.main(sys.argv[2:])
    if sys.argv[1:2] == ["polling"]:
        return polling.main(sys.argv[2:])
    arguments = _arguments()
    # Being told to end is like Ctrl-C: servers are stopped and folders removed first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=True)
    scale = _scale(arguments)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    left_out = {name: why for name, cls in SYSTEMS.items() if (why := cls.missing()) is not None}
    served = arguments.what == "served"
    asked = arguments.systems or [
        name for name, cls in SYSTEMS.items() if cls.served is served and cls.by_default
    ]
    left_out = {name: why for name, why in left_out.items() if name in asked}
    systems = [name for name in SYSTEMS if name in asked and name not in left_out]
    ordinary = [name for name in WORKLOADS if not name.startswith("depth")]
    names = arguments.only or (["waiting"] if arguments.what == "waiting" else ordinary)
    chosen = {member for name in names for member in GROUPS.get(name, (name,))}
    workloads = [name for name in WORKLOADS if name in chosen]

    results: list[Result] = []
    interrupted = False
    with scratch(arguments.dir, "run-") as folder:
        machine = Machine.here(folder)
        if machine.in_memory:
            console.print(
                f"{folder} has no disk under it ({machine.filesystem}): these are not durable figures"
            )
        if arguments.what == "depth":
            left_out = {f"{d:,}": "no room on the disk" for d in arguments.depths if not room_for(d, folder)}
            depths = [depth for depth in arguments.depths if f"{depth:,}" not in left_out]
            deep = (arguments.systems or [_DEPTH_SYSTEM])[0]
            plan = _depth_plan(deep, depths, folder, rounds, scale)
        else:
            plan = _plan(systems, workloads, rounds, scale)
        for name, why in left_out.items():
            console.print(f"{name}: {why}, left out", markup=False, highlight=False)
        try:
            results.extend(_measure(plan, folder, console))
        except KeyboardInterrupt:
            interrupted = True
            console.print("interrupted: the report is of what was measured until then")

    run = Run(machine=machine.after(), scale=scale, rounds=rounds, results=results, left_out=left_out)
    to_terminal(run, _wide(Console()))
    if arguments.json is not None:
        arguments.json.write_text(to_json(run))
    if arguments.markdown is not None:
        arguments.markdown.write_text(to_markdown(run))
    if interrupted:
        return _INTERRUPTED
    return 1 if any(result.error is not None for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
