"""Repairs: `python -m bench.repairs --letters 150000` measures all their steps, and senders meanwhile.

`--by-turns` measures the same job by hand beside a repair, here and in pgmq; `--edit` edits each letter.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lazaretto
from bench.scratch import scratch
from bench.systems.contract import QUEUE
from bench.systems.pgmq import PgmqSystem, connect
from lazaretto import Broker, DeadLetterFilter, Message, Repair

_BODY = b'{"order": %d, "region": "eu", "pad": "' + b"x" * 200 + b'"}'
_REASON = DeadLetterFilter(reason="why")


def fill(broker: Broker, path: str, letters: int) -> None:
    """Make dead letters."""
    broker.create_queue(path)
    sender, receiver = broker.sender(path), broker.receiver(path)
    for start in range(0, letters, 1000):
        sender.send([Message(_BODY % n) for n in range(start, min(start + 1000, letters))])
        receiver.dead_letter(receiver.receive(1000), reason="why", description="the region is wrong")


def timed(what: str, letters: int, call: Callable[[], object]) -> float:
    """Print how long a call takes, by the clock and in this process; return the seconds."""
    wall, own = time.perf_counter(), time.process_time()
    call()
    took, cpu = time.perf_counter() - wall, time.process_time() - own
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{what:34} {took:8.2f} s  {letters / took:10,.0f} /s  {1e6 * cpu / letters:6.1f} us CPU a letter  "
        f"{memory:5.0f} MiB at most",
        flush=True,
    )
    return took


def as_it_is(body: bytes) -> bytes:
    """Change nothing."""
    return body


def by_hand(broker: Broker, path: str, edit: Callable[[bytes], bytes] = as_it_is) -> int:
    """Send dead letters back as one does in Service Bus: receive, send, complete, in one transaction each."""
    done = 0
    while True:
        with broker.transaction() as tx:
            messages = tx.receive(path, 100, subqueue="dead_letter")
            if not messages:
                return done
            tx.send(path, [Message(edit(m.body), properties=m.properties) for m in messages])
            tx.complete(messages)
            done += len(messages)


def send_for(store: str, seconds: float) -> None:
    """Send one message after another, and print how long the calls took."""
    with lazaretto.connect(store) as broker:
        sender, took = broker.sender("live"), []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            sender.send(Message(b"x" * 200))
            took.append(time.perf_counter() - began)
            time.sleep(0.002)
        took.sort()
        at = [1000 * took[min(len(took) - 1, int(len(took) * share))] for share in (0.5, 0.99, 1.0)]
        print(f"{len(took)} sends: p50 {at[0]:.2f} ms, p99 {at[1]:.2f} ms, most {at[2]:.2f} ms", flush=True)


def beside(store: str, seconds: float, what: str) -> subprocess.Popen[bytes]:
    """Start a process that sends."""
    print(f"{what:34} ", end="", flush=True)
    return subprocess.Popen([sys.executable, "-m", "bench.repairs", "--send", store, str(seconds)])


def run(repair: Repair) -> None:
    """Run a repair to its end."""
    repair.run()


def measure(store: str, letters: int) -> None:
    """Measure all of it on a new store."""
    with lazaretto.connect(store) as broker:
        broker.create_queue("live")
        fill(broker, "q", letters)
        print(f"{letters:,} dead letters; load {os.getloadavg()[0]:.1f}", flush=True)
        made: list[Repair] = []
        timed("freeze", letters, lambda: made.append(broker.plan_repair("q", _REASON)))
        (repair,) = made
        repair.apply(in_flight=None)
        timed("apply", letters, lambda: run(repair))
        repair.undo()
        timed("undo", letters, lambda: run(repair))
        beside(store, 5.0, "senders alone").wait()
        second = broker.plan_repair("q", _REASON)
        second.apply(in_flight=None)
        sends = beside(store, 5.0, "senders while a repair is applied")
        time.sleep(1.5)
        second.run()
        sends.wait()
        second.undo()
        second.run()
        timed("resubmit", letters, lambda: broker.resubmit("q", _REASON))
        broker.delete_queue("q")
        hand = min(letters, 20_000)
        fill(broker, "hand", hand)
        timed("receive, send, complete, by hundred", hand, lambda: by_hand(broker, "hand"))


# -- by turns, beside the same job by hand ----------------------------------------------------------

#: What is done to every letter.
_EDIT = '{"region": "us"}'


def _mended(body: bytes) -> bytes:
    return json.dumps(json.loads(body) | json.loads(_EDIT)).encode()


def _repair(broker: Broker, path: str, edit: str | None) -> None:
    repair = broker.plan_repair(path, _REASON, edit=edit, canary=0, in_flight=None)
    repair.apply()
    repair.run()


class InPgmq:
    """The same letters in a queue of pgmq, whose dead letters are in another one as its users do it."""

    def __init__(self, system: PgmqSystem, letters: int) -> None:
        self._letters = letters
        self._connection: Any = connect(system.server.address)

    def fill(self) -> None:
        """Make dead letters."""
        for start in range(0, self._letters, 1000):
            bodies = [(_BODY % n).decode() for n in range(start, min(start + 1000, self._letters))]
            self._connection.execute("SELECT pgmq.send_batch('dead', %s::jsonb[])", (bodies,))

    def send_back(self, edit: Callable[[bytes], bytes]) -> None:
        """Read, edit, send and delete a hundred in one transaction each."""
        while True:
            with self._connection.transaction():
                found = self._connection.execute(
                    "SELECT msg_id, message::text FROM pgmq.read('dead', 30, 100)"
                ).fetchall()
                if not found:
                    return
                bodies = [edit(body.encode()).decode() for _, body in found]
                self._connection.execute("SELECT pgmq.send_batch(%s, %s::jsonb[])", (QUEUE, bodies))
                numbers = [number for number, _ in found]
                self._connection.execute("SELECT pgmq.delete('dead', %s::bigint[])", (numbers,))


def measure_by_turns(broker: Broker, letters: int, rounds: int, pgmq: InPgmq | None, *, edited: bool) -> None:
    """Send letters back in each way, by turns, and print letters a second and ratios."""
    edit, change = (_EDIT, _mended) if edited else (None, as_it_is)
    ways: dict[str, Callable[[str], object]] = {
        "repair": lambda path: _repair(broker, path, edit),
        "resubmit": lambda path: broker.resubmit(path, _REASON, edit=edit),
        "receive, send, complete, by hundred": lambda path: by_hand(broker, path, change),
    }
    if pgmq is not None:
        ways["pgmq: read, send_batch, delete, by hundred"] = lambda path: pgmq.send_back(change)
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for place, (way, send_back) in enumerate(ways.items()):
            path = f"q{number}-{place}"
            if way.startswith("pgmq") and pgmq is not None:
                pgmq.fill()
            else:
                fill(broker, path, letters)
            began = time.perf_counter()
            send_back(path)
            found[way].append(letters / (time.perf_counter() - began))
            if not way.startswith("pgmq"):
                broker.delete_queue(path)
    _print_rates(found)
    print(f"{rounds} rounds of {letters:,} letters; load {os.getloadavg()[0]:.1f}")


def _print_rates(found: Mapping[str, list[float]]) -> None:
    for way, rates in found.items():
        ratios = sorted(ours / theirs for ours, theirs in zip(found["repair"], rates, strict=True))
        print(
            f"{way:42} {statistics.median(rates):8,.0f} /s ({min(rates):,.0f} to {max(rates):,.0f})  "
            f"repair: {statistics.median(ratios):.2f} times as many ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def by_turns(letters: int, rounds: int, *, postgres: bool, edited: bool) -> None:
    """Measure by turns on a new store: a file, or a server that pgmq is on too."""
    with scratch(Path(".bench"), "repairs") as folder:
        if not postgres:
            with lazaretto.connect(f"sqlite:///{folder / 'repairs.db'}") as broker:
                measure_by_turns(broker, letters, rounds, None, edited=edited)
            return
        peer = PgmqSystem(folder)
        peer.open()
        try:
            with lazaretto.connect(peer.server.url) as broker:
                measure_by_turns(broker, letters, rounds, InPgmq(peer, letters), edited=edited)
        finally:
            peer.close()


def main() -> None:
    """Measure, or send beside a measurement."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(prog="python -m bench.repairs", description=__doc__)
    parser.add_argument("--letters", type=int, default=150_000)
    parser.add_argument("--store", help="the URL of a new store, such as one of a server; default: a file")
    parser.add_argument("--by-turns", choices=("file", "server"), help="beside the same job by hand")
    parser.add_argument("--edit", action="store_true", help="edit each letter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--send", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.send:
        send_for(given.send[0], float(given.send[1]))
    elif given.by_turns:
        by_turns(given.letters, given.rounds, postgres=given.by_turns == "server", edited=given.edit)
    elif given.store:
        measure(given.store, given.letters)
    else:
        with scratch(Path(".bench"), "repairs") as folder:
            measure(f"sqlite:///{folder / 'repairs.db'}", given.letters)


if __name__ == "__main__":
    main()
