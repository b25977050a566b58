"""`python -m bench goals`: in about ten minutes, one table of what users have, beside what they might have.

A file with one process and with several; PostgreSQL with several hosts, near and over a network; and a disk
whose syncs take 3 ms longer. Systems take turns in each round. A ratio above 1: Lazaretto is better. CPU is
in microseconds a message, or a cycle of send, receive and complete: of the whole machine in a file, of
servers and hosts on PostgreSQL. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from bench.delay import delayed
from bench.figures import Figure, table
from bench.hosts import ONE_WAY, Layout, address_of, measure, serving
from bench.machine import Machine
from bench.measure import Scale
from bench.scratch import scratch
from bench.side_by_side import Row, alone
from bench.slow_disk import compiler, slow_disk
from bench.systems.pgmq import PgmqSystem

_ALONE: Final[tuple[Row, ...]] = (
    Row("W1", "lazaretto", ("litequeue", "redis", "rabbitmq")),
    Row("W2", "lazaretto", ("redis",)),
    Row("W3", "lazaretto", ("redis",)),
    Row("W4", "lazaretto", ("redis", "rabbitmq")),
    Row("W5", "lazaretto", ("redis", "rabbitmq")),
    Row("W6", "lazaretto", ("redis", "rabbitmq")),
    Row("W7", "lazaretto", ("redis",)),
    Row("wake-paced", "lazaretto", ("litequeue", "redis")),
    Row("processes", "lazaretto", ("litequeue", "redis")),
    Row("W2", "lazaretto-postgres", ("pgmq",)),
    Row("W3", "lazaretto-postgres", ("pgmq",)),
    Row("W6", "lazaretto-postgres", ("pgmq",)),
    Row("W7", "lazaretto-postgres", ("pgmq",)),
)
_NEAR = (Layout(4, 1), Layout(4, 4), Layout(8, 4), Layout(16, 2))
_FAR = (Layout(1, 16), Layout(4, 4), Layout(8, 4), Layout(16, 2))
_SLOW = (Layout(8, 1, sends=True), Layout(16, 1, sends=True), Layout(16, 1))
#: What else is measured with several hosts, near and far, and in which layout.
_OTHERS = ("topic", "host", "sql")
_LAYOUT_OF_OTHERS = Layout(4, 4)
_PEER = "pgmq"


def _several(
    folder: Path, systems: Sequence[str], layouts: Sequence[Layout], seconds: float, *, far: bool, where: str
) -> Iterator[Figure]:
    """Measure what several hosts do on one server."""
    folder.mkdir()
    folder.chmod(0o755)
    with contextlib.ExitStack() as stack:
        servers = {system: stack.enter_context(serving(system, folder, 1)) for system in systems}
        ports = {
            system: stack.enter_context(delayed(server.socket, ONE_WAY)) if far else None
            for system, server in servers.items()
        }
        for layout in layouts:
            for system, server in servers.items():
                address = address_of(system, server, ports[system])
                try:
                    figure = measure(system, server, address, layout, seconds, far=far)
                except Exception as error:
                    # One that fails leaves the others their place in the table.
                    print(f"{where} {layout}, {system}: {error!r}", file=sys.stderr)
                    continue
                cost = figure.server_us + figure.hosts_us
                yield Figure(f"{where}, {layout}", system, figure.cycles, "/s", less=False, cost=cost)


def _served(folder: Path, scale: Scale, number: int) -> Iterator[Figure]:
    """Measure several hosts near, at 1 ms, and on a slow disk."""
    ours_and_peer = ["lazaretto", *([_PEER] if PgmqSystem.missing() is None else [])]
    for far, layouts in ((False, _NEAR), (True, _FAR)):
        where = "PostgreSQL 1 ms away" if far else "PostgreSQL near"
        home = folder / f"round-{number}-{'far' if far else 'near'}"
        yield from _several(home, ours_and_peer, layouts, scale.seconds, far=far, where=where)
        for other in _OTHERS:
            home = folder / f"round-{number}-{'far' if far else 'near'}-{other}"
            layout = (_LAYOUT_OF_OTHERS,)
            yield from _several(home, [other], layout, scale.seconds, far=far, where=f"{where}, {other}")
    if compiler() is None:
        print("no C compiler, so no slow disk", file=sys.stderr)
        return
    home = folder / f"round-{number}-slow"
    with slow_disk(folder):
        where = "PostgreSQL, syncs 3 ms longer"
        yield from _several(home, ours_and_peer, _SLOW, scale.seconds, far=False, where=where)


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench goals", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="systems take turns in each (2)")
    parser.add_argument("--quick", action="store_true", help="show in short that all runs")
    parser.add_argument("--part", choices=["all", "alone", "served"], default="all", help="(all)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="keep the table")
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="where the databases go (.bench)")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Run what the command line asks for."""
    arguments = _arguments(words)
    # Being told to end is like Ctrl-C: servers are stopped and folders removed first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    scale = Scale(seconds=1.5, flow=8_000, flow_seconds=10.0, wakes=100)
    if arguments.quick:
        scale = dataclasses.replace(Scale.quick(), flow=500, flow_seconds=3.0, wakes=20)
    parts: dict[str, Callable[[Path, Scale, int], Iterator[Figure]]] = {
        "alone": partial(alone, _ALONE),
        "served": _served,
    }
    figures: list[Figure] = []
    with scratch(arguments.dir, "goals-") as folder:
        machine = Machine.here(folder)
        try:
            for number in range(1, (1 if arguments.quick else arguments.rounds) + 1):
                for name, part in parts.items():
                    if arguments.part in ("all", name):
                        for figure in part(folder, scale, number):
                            figures.append(figure)
                            print(f"[{number}] {figure}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            print("interrupted: the table is of what was measured until then", file=sys.stderr)
    said = table(figures, machine.after())
    print(said)
    if arguments.markdown is not None:
        arguments.markdown.write_text(f"{said}\n")
    return 0
