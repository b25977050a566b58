"""`python -m bench.drill`: run the drills, print the table, and keep the figures."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from bench.drill.drills import FULL_OUTAGE_SECONDS, OUTAGE_SECONDS, Drill, drills
from bench.drill.report import Run, System, to_json, to_markdown, to_terminal
from bench.drill.run import Outcome, take
from bench.drill.systems import SYSTEMS
from bench.machine import Machine
from bench.scratch import scratch
from lazaretto.errors import InvalidOption
from lazaretto.model.checks import refuse_unknown

_INTERRUPTED = 130
_FILE_COLUMNS = 180


def names_of(known: Iterable[str], what: str) -> Callable[[str], list[str]]:
    """Return a reader of comma-separated names that refuses unknown ones with a suggestion."""

    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        try:
            refuse_unknown(names, known, what)
        except InvalidOption as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return names

    return read


def _arguments() -> argparse.Namespace:
    known = drills()
    parser = argparse.ArgumentParser(prog="python -m bench.drill", description=__doc__)
    parser.add_argument(
        "--only",
        type=names_of(list(known), "the drills"),
        metavar="a,f",
        help="; ".join(f"{key}: {drill.title}" for key, drill in known.items()).replace("%", "%%"),
    )
    parser.add_argument(
        "--systems", type=names_of(list(SYSTEMS), "the systems"), metavar="A,B", help=", ".join(SYSTEMS)
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"an outage of {FULL_OUTAGE_SECONDS:g} s instead of {OUTAGE_SECONDS:g} s",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="keep the table as Markdown")
    parser.add_argument(
        "--dir", type=Path, default=Path(".bench"), help="where the queues go meanwhile (.bench)"
    )
    return parser.parse_args()


def _column(name: str) -> System:
    system = SYSTEMS[name]
    why = system.missing()
    if why is not None:
        return System(name=name, missing=why)
    return System(name=name, version=system.version(), settings=system.settings)


def _run(
    chosen: Sequence[Drill], systems: Sequence[System], folder: Path, console: Console
) -> Iterator[Outcome]:
    """Run each drill on all systems before the next, so that what is compared is measured within minutes."""
    plan = [
        (drill, system.name)
        for drill in chosen
        for system in systems
        if system.missing is None and drill.runs_on(system.name)
    ]
    for index, (drill, name) in enumerate(plan, 1):
        outcome = take(drill, name, folder)
        figures = ", ".join(f"{key} {figure.text}" for key, figure in outcome.figures.items())
        said = f"failed: {outcome.error}" if outcome.error is not None else figures
        console.print(
            f"[{index}/{len(plan)}] {drill.key} {name}: {said}", markup=False, highlight=False, soft_wrap=True
        )
        yield outcome


def main() -> int:
    """Run what the command line asks for."""
    arguments = _arguments()
    # Being told to end is like Ctrl-C: workers and servers are stopped and folders removed first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = Console(stderr=True)
    known = drills(FULL_OUTAGE_SECONDS if arguments.full else OUTAGE_SECONDS)
    chosen = [drill for key, drill in known.items() if arguments.only is None or key in arguments.only]
    systems = [_column(name) for name in SYSTEMS if arguments.systems is None or name in arguments.systems]
    for system in systems:
        if system.missing is not None:
            progress.print(f"{system.name}: {system.missing}, left out", markup=False, highlight=False)

    outcomes: list[Outcome] = []
    interrupted = False
    with scratch(arguments.dir, "drill-") as folder:
        machine = Machine.here(folder)
        try:
            outcomes.extend(_run(chosen, systems, folder, progress))
        except KeyboardInterrupt:
            interrupted = True
            progress.print("interrupted: the report is of what was run until then")

    run = Run(machine=machine.after(), drills=chosen, systems=systems, outcomes=outcomes)
    console = Console()
    # A file has no width of its own, and the table does not fit in the 80 columns that are assumed.
    to_terminal(run, console if console.is_terminal else Console(width=_FILE_COLUMNS))
    if arguments.json is not None:
        arguments.json.write_text(to_json(run))
    if arguments.markdown is not None:
        arguments.markdown.write_text(to_markdown(run))
    if interrupted:
        return _INTERRUPTED
    return 1 if any(outcome.error is not None for outcome in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
