"""Repairs: `python -m bench.repairs --letters 150000` measures all their steps, and senders meanwhile."""

from __future__ import annotations

import argparse
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import lazaretto
from bench.scratch import scratch
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


def by_hand(broker: Broker, path: str) -> int:
    """Send dead letters back as one does in Service Bus: receive, send, complete, in one transaction each."""
    done = 0
    while True:
        with broker.transaction() as tx:
            messages = tx.receive(path, 100, subqueue="dead_letter")
            if not messages:
                return done
            tx.send(path, [Message(m.body, properties=m.properties) for m in messages])
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


def main() -> None:
    """Measure, or send beside a measurement."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(prog="python -m bench.repairs", description=__doc__)
    parser.add_argument("--letters", type=int, default=150_000)
    parser.add_argument("--store", help="the URL of a new store, such as one of a server; default: a file")
    parser.add_argument("--send", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.send:
        send_for(given.send[0], float(given.send[1]))
    elif given.store:
        measure(given.store, given.letters)
    else:
        with scratch(Path(".bench"), "repairs") as folder:
            measure(f"sqlite:///{folder / 'repairs.db'}", given.letters)


if __name__ == "__main__":
    main()
