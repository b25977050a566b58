"""`python -m bench goals`: in about ten minutes, one table of what users have, beside what they might have.

A file with one process and with several; PostgreSQL with several hosts, near and over a network; and a disk
whose syncs take 3 ms longer. Systems take turns in each round. A ratio above 1: Lazaretto is better. CPU is
in microseconds a message, or a cycle of send, receive and complete: of the whole machine in a file, of
servers and hosts on PostgreSQL. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.figures import Figure
from bench.hosts import Layout, several, with_peer
from bench.measure import Scale
from bench.rounds import options, run
from bench.side_by_side import Row, alone
from bench.slow_disk import compiler, slow_disk

_ALONE: Final = (
    Row("W1", "lazaretto", ("litequeue", "redis", "rabbitmq")),
    Row("W2", "lazaretto", ("redis",)),
    Row("W3", "lazaretto", ("redis",)),
    Row("W4", "lazaretto", ("redis", "rabbitmq")),
    Row("W5", "lazaretto", ("redis", "rabbitmq")),
    Row("W6", "lazaretto", ("redis", "rabbitmq")),
    Row("W7", "lazaretto", ("redis",)),
    Row("wake", "lazaretto", ("litequeue", "redis")),
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
_LAYOUT_OF_OTHERS = (Layout(4, 4),)


def _served(folder: Path, seconds: float) -> Iterator[Figure]:
    """Measure several hosts near, at 1 ms, and on a slow disk."""
    ours_and_peer = with_peer(["lazaretto", "pgmq"])
    for far, layouts in ((False, _NEAR), (True, _FAR)):
        where = "PostgreSQL 1 ms away" if far else "PostgreSQL near"
        yield from several(folder, ours_and_peer, layouts, seconds, where, far=far)
        for other in _OTHERS:
            yield from several(folder, [other], _LAYOUT_OF_OTHERS, seconds, f"{where}, {other}", far=far)
    if compiler() is None:
        print("no C compiler, so no slow disk", file=sys.stderr)
        return
    with slow_disk(folder):
        yield from several(folder, ours_and_peer, _SLOW, seconds, "PostgreSQL, syncs 3 ms longer")


def main(words: Sequence[str]) -> int:
    """Run what the command line asks for."""
    parser = options("bench goals", __doc__, 2)
    parser.add_argument("--part", choices=["all", "alone", "served"], default="all", help="(all)")
    given = parser.parse_args(words)
    scale = Scale(seconds=1.5, flow=8_000, flow_seconds=10.0, wakes=400)
    if given.quick:
        scale = dataclasses.replace(Scale.quick(), flow=500, flow_seconds=3.0)

    def measure(folder: Path, _number: int) -> Iterator[Figure]:
        if given.part != "served":
            yield from alone(_ALONE, folder, scale)
        if given.part != "alone":
            yield from _served(folder, scale.seconds)

    return run(given, measure)
