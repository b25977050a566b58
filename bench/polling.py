"""`python -m bench polling`: how soon processes that wait on one PostgreSQL have what another one sends.

Each process waits for one message with a long poll, completes it, and waits again.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machine import Machine
from bench.measure import percentile
from bench.payload import number
from bench.postgres import PostgresServer
from bench.scratch import scratch
from bench.systems.contract import QUEUE
from bench.waiting import ping

_POLL = 30.0
_READY_SECONDS = 120.0
#: Between two messages: 200 a second, and never in step with a timer.
_PAUSES = (0.002_5, 0.007_5)


def _receive(url: str, ready: Any, over: Any, out: Any) -> None:
    """Run a process that waits for messages: tell how old each was in nanoseconds."""
    import lazaretto

    with lazaretto.connect(url, timeout=60.0) as broker, broker.receiver(QUEUE) as receiver:
        ages: list[int] = []

        def end() -> None:
            over.wait()
            broker.close()

        threading.Thread(target=end, daemon=True).start()
        receiver.receive(1, 0.0)
        ready.release()
        with contextlib.suppress(lazaretto.BrokerClosed):
            while True:
                for message in receiver.receive(1, _POLL):
                    ages.append(time.monotonic_ns() - number(message.body))
                    receiver.complete(message)
        out.put(ages)


def _measure(url: str, processes: int, count: int) -> tuple[list[int], list[int]]:
    import lazaretto
    from bench.systems.lazaretto import LazarettoSender

    context = multiprocessing.get_context("spawn")
    ready, over, out = context.Semaphore(0), context.Event(), context.Queue()
    given = (url, ready, over, out)
    receivers = [context.Process(target=_receive, args=given) for _ in range(processes)]
    for receiver in receivers:
        receiver.start()
    with lazaretto.connect(url, timeout=60.0) as broker:
        for _ in receivers:
            if not ready.acquire(timeout=_READY_SECONDS):
                raise RuntimeError("a receiver did not start")
        sends = ping(LazarettoSender(broker.sender(QUEUE)), count, _PAUSES)
        while broker.queue(QUEUE).counts.total:
            time.sleep(0.05)
    over.set()
    ages = [age for _ in receivers for age in out.get(timeout=_READY_SECONDS)]
    for receiver in receivers:
        receiver.join(10)
    return ages, sends


def _figures(took: Sequence[int]) -> str:
    return f"p50 {percentile(took, 0.5) / 1e6:.2f} ms, p99 {percentile(took, 0.99) / 1e6:.2f} ms"


def main(words: Sequence[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench polling", description=__doc__)
    parser.add_argument("--processes", type=int, default=8, help="that wait (8)")
    parser.add_argument("--messages", type=int, default=2000, help="in each round, 200 a second (2000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="where the database goes (.bench)")
    arguments = parser.parse_args(words)
    with scratch(arguments.dir, "polling-") as folder:
        machine = Machine.here(folder)
        folder.chmod(0o755)
        server = PostgresServer(folder)
        try:
            import lazaretto

            with lazaretto.connect(server.url) as broker:
                broker.create_queue(QUEUE)
            for _ in range(arguments.rounds):
                ages, sends = _measure(server.url, arguments.processes, arguments.messages)
                print(
                    f"{arguments.processes} processes wait, {len(ages)} messages: "
                    f"hand-over {_figures(ages)}; send {_figures(sends)}",
                    flush=True,
                )
        finally:
            server.stop()
    machine = machine.after()
    print(
        f"{machine.cpu}, {machine.cores} cores, load {machine.load_before} before, {machine.load_after} after"
    )
    return 0
