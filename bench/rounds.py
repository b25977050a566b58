"""What every command does: options, rounds in a folder of their own, and one table in the end."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench.figures import Figure, table
from bench.machine import Machine

INTERRUPTED = 130


def options(name: str, doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser of the options that all commands have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="show in short that all runs")
    parser.add_argument("--rounds", type=int, help=f"all takes turns in each ({rounds}; with --quick 1)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="keep the table")
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="where the data goes (.bench)")
    parser.set_defaults(usual_rounds=rounds)
    return parser


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a reader of comma-separated names that says which names there are."""
    every = list(known)

    def read(text: str) -> list[str]:
        some = [name.strip() for name in text.split(",") if name.strip()]
        for name in some:
            if name not in every:
                raise argparse.ArgumentTypeError(f"expected some of {', '.join(every)}, got {name!r}")
        return some

    return read


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Make a folder within `parent` that servers of others can reach, and remove all trace of both."""
    parent.mkdir(parents=True, exist_ok=True)
    try:
        with private(parent) as folder:
            yield folder
    finally:
        with contextlib.suppress(OSError):
            parent.rmdir()


@contextlib.contextmanager
def private(parent: Path) -> Iterator[Path]:
    """Make a folder within another that servers of others can reach, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=parent)).resolve()
    # A server may run as another user.
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(given: argparse.Namespace, measure: Callable[[Path, int], Iterable[Figure]]) -> int:
    """Measure round by round, in one folder, and print the table. `measure`: gives the figures of a round."""
    # Being told to end is like Ctrl-C: servers are stopped and folders removed first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    figures: list[Figure] = []
    code = 0
    with scratch(given.dir) as folder:
        machine = Machine.here(folder)
        if machine.in_memory:
            print(f"{folder} has no disk under it: these are not durable figures", file=sys.stderr)
        try:
            for number in range(1, (given.rounds or (1 if given.quick else given.usual_rounds)) + 1):
                for figure in measure(folder, number):
                    figures.append(figure)
                    print(f"[{number}] {figure}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            code = INTERRUPTED
            print("interrupted: the table is of what was measured until then", file=sys.stderr)
        said = f"{machine.line()}\n\n{table(figures)}"
    print(said)
    if given.markdown is not None:
        given.markdown.write_text(f"{said}\n")
    return code
