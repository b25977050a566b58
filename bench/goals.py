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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.delay import delayed
from bench.figures import Spread
from bench.hosts import ONE_WAY, Layout, address_of, measure, serving
from bench.machine import Machine
from bench.measure import Measurement, Result, Scale, take
from bench.scratch import scratch
from bench.slow_disk import compiler, slow_disk
from bench.systems import SYSTEMS
from bench.systems.pgmq import PgmqSystem
from bench.workloads import WORKLOADS

#: Each workload, on which of our systems, and beside which others.
_ALONE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("W1", "lazaretto", ("litequeue", "redis", "rabbitmq")),
    ("W2", "lazaretto", ("redis",)),
    ("W3", "lazaretto", ("redis",)),
    ("W4", "lazaretto", ("redis", "rabbitmq")),
    ("W5", "lazaretto", ("redis", "rabbitmq")),
    ("W6", "lazaretto", ("redis", "rabbitmq")),
    ("W7", "lazaretto", ("redis",)),
    ("wake-paced", "lazaretto", ("litequeue", "redis")),
    ("processes", "lazaretto", ("litequeue", "redis")),
    ("W2", "lazaretto-postgres", ("pgmq",)),
    ("W3", "lazaretto-postgres", ("pgmq",)),
    ("W6", "lazaretto-postgres", ("pgmq",)),
    ("W7", "lazaretto-postgres", ("pgmq",)),
)
#: Workloads that are judged by their 99th percentile, too.
_TAILS = ("wake-paced", "processes")
_NEAR = (Layout(4, 1), Layout(4, 4), Layout(8, 4), Layout(16, 2))
_FAR = (Layout(1, 16), Layout(4, 4), Layout(8, 4), Layout(16, 2))
_SLOW = (Layout(8, 1, sends=True), Layout(16, 1, sends=True), Layout(16, 1))
#: What else is measured with several hosts, near and far, and in which layout.
_OTHERS = ("topic", "host", "sql")
_LAYOUT_OF_OTHERS = Layout(4, 4)
_PEER = "pgmq"
_MICROSECONDS = 1e6


class _Figure(NamedTuple):
    """What one system did in one round of a row. `cost`: microseconds of processors, if that is known."""

    row: str
    system: str
    value: float
    unit: str
    less: bool
    cost: float | None


def _figures(row: str, result: Result) -> Iterator[_Figure]:
    """Give what a measurement in one process says."""
    workload = WORKLOADS[result.workload]
    value = result.figures[workload.figure]
    cores = result.figures.get("cpu_client")
    cost = None
    if cores is not None and workload.unit == "/s":
        cost = (cores + result.figures["cpu_rest"]) / value * _MICROSECONDS
    yield _Figure(row, result.system, value, workload.unit, workload.less, cost)
    if result.workload in _TAILS:
        yield _Figure(f"{row}, p99", result.system, result.figures["p99_ms"], "ms", less=True, cost=None)


def _alone(folder: Path, scale: Scale, number: int) -> Iterator[_Figure]:
    """Measure what one or two processes do."""
    for workload, ours, peers in _ALONE:
        where = "PostgreSQL, " if SYSTEMS[ours].served else ""
        row = f"{where}{workload}: {WORKLOADS[workload].title}"
        for system in (ours, *peers):
            if SYSTEMS[system].missing() is None:
                result = take(
                    Measurement(system=system, workload=workload, round=number, scale=scale), folder
                )
                if result.error is None:
                    yield from _figures(row, result)
                else:
                    print(f"{row}, {system}: {result.error}", file=sys.stderr)


def _several(
    folder: Path, systems: Sequence[str], layouts: Sequence[Layout], seconds: float, *, far: bool, where: str
) -> Iterator[_Figure]:
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
                yield _Figure(f"{where}, {layout}", system, figure.cycles, "/s", less=False, cost=cost)


def _served(folder: Path, scale: Scale, number: int) -> Iterator[_Figure]:
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


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.2f} {unit}".strip()


def _lines(figures: Sequence[_Figure]) -> Iterator[str]:
    """Yield the table's lines: medians of the rounds, ratios of each round and their spread."""
    yield "| | Lazaretto | CPU | beside | its figure | its CPU | ratio (rounds) | ratio of CPU |"
    yield "|---|---:|---:|---|---:|---:|---:|---:|"
    for row in dict.fromkeys(figure.row for figure in figures):
        own = [figure for figure in figures if figure.row == row]
        ours, *peers = dict.fromkeys(figure.system for figure in own)
        if not ours.startswith(("lazaretto", *_OTHERS)):
            continue
        for peer in peers or [""]:
            yield f"| {row} | {' | '.join(_cells(own, ours, peer))} |"


def _cells(figures: Sequence[_Figure], ours: str, peer: str) -> Iterator[str]:
    mine = [figure for figure in figures if figure.system == ours]
    other = [figure for figure in figures if figure.system == peer]
    costs = []
    for name, some in (("", mine), (peer, other)):
        if some is other:
            yield name
        value = Spread.of(figure.value for figure in some)
        cost = Spread.of(figure.cost for figure in some if figure.cost is not None)
        costs.append(cost)
        yield "" if value is None else _number(value.median, some[0].unit)
        yield "" if cost is None else f"{cost.median:,.0f}"
    ratios = Spread.of(
        b.value / a.value if a.less else a.value / b.value for a, b in zip(mine, other, strict=False)
    )
    yield "" if ratios is None else f"{ratios.median:.2f} ({ratios.low:.2f}–{ratios.high:.2f})"
    first, second = costs
    yield "" if first is None or second is None else f"{second.median / first.median:.2f}"


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
    parts = {"alone": _alone, "served": _served}
    figures: list[_Figure] = []
    with scratch(arguments.dir, "goals-") as folder:
        machine = Machine.here(folder)
        for system in dict.fromkeys(peer for _, _, peers in _ALONE for peer in peers):
            why = SYSTEMS[system].missing()
            if why is not None:
                print(f"{system}: {why}, left out", file=sys.stderr)
        try:
            for number in range(1, (1 if arguments.quick else arguments.rounds) + 1):
                for name, part in parts.items():
                    if arguments.part in ("all", name):
                        for figure in part(folder, scale, number):
                            figures.append(figure)
                            said = f"{figure.system} {_number(figure.value, figure.unit)}"
                            print(f"[{number}] {figure.row}: {said}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            print("interrupted: the table is of what was measured until then", file=sys.stderr)
    machine = machine.after()
    about = (
        f"{machine.date}, {machine.cpu}, {machine.cores} cores, {machine.filesystem.split(' (')[0]}, "
        f"Python {machine.python}, load {machine.load_before} before, {machine.load_after} after"
    )
    table = "\n".join([about, "", *_lines(figures)])
    print(table)
    if arguments.markdown is not None:
        arguments.markdown.write_text(f"{table}\n")
    return 0
