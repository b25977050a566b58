"""`python -m bench hosts`: many processes on one PostgreSQL, near and over a network, beside pgmq.

Each thread of each process sends a message of 1 KiB, receives one and completes it, again and again. The
network is a proxy on this machine that keeps each piece for half a millisecond in each direction. Three
more systems are ours. `topic`: the message is sent to a topic and received from a subscription; another one
does not want it. `host`: it is taken and settled as a service host does. `sql`: it is received and completed
by a transaction that inserts a row. CPU is in microseconds a cycle, of the server and all hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lazaretto
from bench.crew import crew
from bench.delay import delayed
from bench.figures import Figure
from bench.payload import body
from bench.rounds import names, options, private
from bench.rounds import run as run_rounds
from bench.servers import PostgresServer
from bench.systems.contract import QUEUE, Client
from bench.systems.lazaretto import LazarettoClient
from bench.systems.pgmq import PgmqClient, PgmqSystem, connect
from lazaretto import CorrelationFilter, QueueOptions, Rule
from lazaretto.broker.broker import Broker, store_of
from lazaretto.engine.messages.settle import COMPLETE, Settled
from lazaretto.engine.unit_of_work import FinishHandover

_LAYOUTS = "1x1,1x8,4x1,4x4,8x4,16x2"
_ONE_WAY = 0.0005
_TOPIC = "news"
_ANSWER_SECONDS = 120.0
_WAIT = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How many processes, and threads in each; and whether they only send."""

    processes: int
    threads: int
    sends: bool = dataclasses.field(default=False, kw_only=True)

    def __str__(self) -> str:
        return f"{self.processes} x {self.threads}{' sends' if self.sends else ''}"


def _layouts(text: str) -> list[Layout]:
    return [Layout(*(int(number) for number in part.split("x"))) for part in text.split(",")]


class _Topic(LazarettoClient):
    """Sends to a topic and receives from its subscription."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, _TOPIC, f"{_TOPIC}/subscriptions/all")


class _Host(LazarettoClient):
    """Takes and settles as a service host does, without its handlers."""

    def receive(self, limit: int, wait: float) -> Sequence[Any]:
        found = self.receiver.take(limit, wait)
        return [] if found is None else [found]

    def complete(self, handles: Sequence[Any]) -> None:
        for handover in handles:
            done = [Settled(message, COMPLETE) for message in handover.messages]
            store_of(self.broker).run(FinishHandover(done, token=handover.lock.token))


class _Sql(LazarettoClient):
    """Receives and completes by transactions that insert a row each."""

    def receive(self, limit: int, wait: float) -> Sequence[Any]:
        tx = self.broker.transaction()
        if tx.receive(QUEUE, limit, wait):
            tx.execute("INSERT INTO ledger (body) VALUES ('done')")
            return [tx]
        return []

    def complete(self, handles: Sequence[Any]) -> None:
        for tx in handles:
            tx.commit()


#: What a thread of ours does, by the name of the system.
_OURS = {"lazaretto": LazarettoClient, "topic": _Topic, "host": _Host, "sql": _Sql}
SYSTEMS = (*_OURS, "pgmq")


@contextlib.contextmanager
def _clients(system: str, address: str) -> Iterator[Callable[[], Client[Any]]]:
    """Give what makes a client for each thread of a process."""
    if system == "pgmq":
        yield lambda: PgmqClient(connect(address))
        return
    with lazaretto.connect(address, timeout=60.0) as broker:
        yield lambda: _OURS[system](broker)


def _host(
    ready: Callable[[], None], system: str, address: str, layout: Layout, seconds: float
) -> tuple[int, float]:
    """Run one process; return how many cycles it made, and its processor time."""
    counts: list[int] = []
    failed: list[BaseException] = []
    together = threading.Barrier(layout.threads + 1)

    def run() -> None:
        try:
            client = make()

            def cycle() -> None:
                client.send(body(1))
                if layout.sends:
                    return
                while not (found := client.receive(1, _WAIT)):
                    pass
                client.complete(found)

            cycle()
            together.wait()
            # The second time when all processes are ready.
            together.wait()
            count, end = 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                cycle()
                count += 1
            counts.append(count)
        except BaseException as error:
            failed.append(error)
            together.abort()

    with _clients(system, address) as make:
        threads = [threading.Thread(target=run) for _ in range(layout.threads)]
        for thread in threads:
            thread.start()
        try:
            together.wait()
            ready()
            together.wait()
        except threading.BrokenBarrierError:
            pass
        began = time.process_time()
        for thread in threads:
            thread.join()
        own = time.process_time() - began
    if failed:
        raise failed[0]
    return sum(counts), own


def _measure(
    system: str, server: PostgresServer, address: str, layout: Layout, seconds: float
) -> tuple[float, float]:
    """Return the cycles a second of one system in one layout, and the processor time of one."""
    with crew(layout.processes, _host, system, address, layout, seconds) as hosts:
        before = server.processor_time()
        hosts.start()
        said = hosts.answers(seconds + _ANSWER_SECONDS)
        server_time = server.processor_time() - before
    count = sum(some for some, _ in said)
    return count / seconds, (server_time + sum(own for _, own in said)) / count * 1e6


@contextlib.contextmanager
def _serving(system: str, folder: Path, partitions: int) -> Iterator[PostgresServer]:
    """Run a server with the system's queue on it, ours with so many partitions."""
    with private(folder) as home:
        if system == "pgmq":
            peer = PgmqSystem(home)
            peer.open()
            server = peer.server
        else:
            server = PostgresServer(home)
        try:
            if system != "pgmq":
                _lay_out(server.url, QueueOptions(lock_duration=30, partitions=partitions))
            yield server
        finally:
            server.stop()


def _lay_out(url: str, options: QueueOptions) -> None:
    with lazaretto.connect(url) as broker:
        broker.create_queue(QUEUE, options)
        broker.create_topic(_TOPIC)
        broker.create_subscription(_TOPIC, "all", options)
        rule = Rule("red", CorrelationFilter(subject="red"))
        broker.create_subscription(_TOPIC, "red", QueueOptions(), rules=[rule])
        with broker.transaction() as tx:
            tx.execute("CREATE TABLE ledger (id BIGSERIAL PRIMARY KEY, body TEXT)")


def _address(system: str, server: PostgresServer, port: int | None) -> str:
    """Return where a system's server is, near or behind the port of a proxy."""
    if system == "pgmq":
        return server.address if port is None else f"host=127.0.0.1 port={port} user=drill dbname=postgres"
    return server.url if port is None else f"postgresql://drill@127.0.0.1:{port}/postgres"


def several(
    folder: Path, systems: Sequence[str], layouts: Sequence[Layout], seconds: float, where: str,
    *, far: bool = False, partitions: int = 1,
) -> Iterator[Figure]:  # fmt: skip
    """Measure what several hosts do on one server of each system."""
    with contextlib.ExitStack() as stack:
        servers = {system: stack.enter_context(_serving(system, folder, partitions)) for system in systems}
        ports = {
            system: stack.enter_context(delayed(server.socket, _ONE_WAY)) if far else None
            for system, server in servers.items()
        }
        for layout in layouts:
            for system, server in servers.items():
                address = _address(system, server, ports[system])
                try:
                    cycles, cost = _measure(system, server, address, layout, seconds)
                except RuntimeError as error:
                    # One that fails leaves the others their place in the table.
                    print(f"{where} {layout}, {system}: {error}", file=sys.stderr)
                    continue
                yield Figure(f"{where}, {layout}", system, cycles, "/s", cost=cost)


def with_peer(systems: Sequence[str]) -> list[str]:
    """Return those of some systems that are there, and say why pgmq is not."""
    why = PgmqSystem.missing()
    if why is not None and "pgmq" in systems:
        print(f"pgmq: {why}, left out", file=sys.stderr)
    return [system for system in systems if why is None or system != "pgmq"]


def main(words: Sequence[str]) -> int:
    """Run what the command line asks for."""
    parser = options("bench hosts", __doc__, 3)
    parser.add_argument("--layouts", type=_layouts, default=_layouts(_LAYOUTS), help=f"({_LAYOUTS})")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    parser.add_argument("--partitions", type=int, default=1, help="of Lazaretto's queue (1)")
    parser.add_argument("--where", choices=["near", "far", "both"], default="both")
    parser.add_argument(
        "--systems", type=names(SYSTEMS), default=["lazaretto", "pgmq"], metavar="A,B",
        help=f"A beside B (lazaretto,pgmq): {', '.join(SYSTEMS)}",
    )  # fmt: skip
    given = parser.parse_args(words)
    systems = with_peer(given.systems)
    places = [far for far in (False, True) if given.where in ("both", "far" if far else "near")]

    def measure(folder: Path, _number: int) -> Iterator[Figure]:
        for far in places:
            where = "1 ms away" if far else "near"
            yield from several(
                folder, systems, given.layouts, given.seconds, where, far=far, partitions=given.partitions
            )

    return run_rounds(given, measure)
