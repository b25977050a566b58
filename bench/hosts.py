"""`python -m bench hosts`: many processes on one PostgreSQL, near and over a network, beside pgmq.

Each thread of each process sends a message of 1 KiB, receives one and completes it, again and again. The
network is a proxy on this machine that keeps each piece for half a millisecond in each direction. Three
more systems are ours. `topic`: the message is sent to a topic and received from a subscription; another one
does not want it. `host`: it is taken and settled as a service host does. `sql`: it is received and completed
by a transaction that inserts a row.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.delay import delayed
from bench.machine import Machine
from bench.measure import percentile
from bench.payload import body
from bench.postgres import PostgresServer
from bench.scratch import scratch
from bench.systems.contract import QUEUE, Receiver, Sender
from bench.systems.pgmq import PgmqSystem
from lazaretto.broker.broker import Broker, store_of
from lazaretto.broker.transaction import BrokerTransaction
from lazaretto.engine.messages.settle import COMPLETE, Settled
from lazaretto.engine.unit_of_work import FinishHandover
from lazaretto.engine.workers.leases import Handover

_LAYOUTS = "1x1,1x8,4x1,4x4,8x4,16x2"
ONE_WAY = 0.0005
TOPIC = "news"
_SYSTEMS = ("lazaretto", "pgmq")
_READY_SECONDS = 120.0
_WAIT = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How many processes, and threads in each; and whether they only send."""

    processes: int
    threads: int
    sends: bool = dataclasses.field(default=False, kw_only=True)

    def __str__(self) -> str:
        return f"{self.processes} x {self.threads}{' sends' if self.sends else ''}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one system did in one layout."""

    system: str
    layout: str
    far: bool
    cycles: float
    p50_ms: float
    p99_ms: float
    #: The processor time of a cycle in microseconds: of all the server's processes, and of all hosts.
    server_us: float
    hosts_us: float


def _layouts(text: str) -> list[Layout]:
    return [Layout(*(int(number) for number in part.split("x"))) for part in text.split(",")]


class _Lazaretto:
    """A host of ours."""

    def __init__(self, address: str) -> None:
        import lazaretto

        self._broker = lazaretto.connect(address, timeout=60.0)

    def pair(self) -> tuple[Sender, Receiver[Any]]:
        from bench.systems.lazaretto import LazarettoReceiver, LazarettoSender

        return LazarettoSender(self._broker.sender(QUEUE)), LazarettoReceiver(self._broker.receiver(QUEUE))

    def close(self) -> None:
        self._broker.close()


class _Topic(_Lazaretto):
    """A host of ours that sends to a topic and receives from its subscription."""

    def pair(self) -> tuple[Sender, Receiver[Any]]:
        from bench.systems.lazaretto import LazarettoReceiver, LazarettoSender

        sender, receiver = self._broker.sender(TOPIC), self._broker.receiver(f"{TOPIC}/subscriptions/all")
        return LazarettoSender(sender), LazarettoReceiver(receiver)


class _Taker(Receiver[Handover]):
    """Takes and settles as a service host does, without its handlers."""

    def __init__(self, broker: Broker) -> None:
        self._store = store_of(broker)
        self._receiver = broker.receiver(QUEUE)

    def receive(self, limit: int, wait: float) -> Sequence[Handover]:
        found = self._receiver.take(limit, wait)
        return [] if found is None else [found]

    def complete(self, handles: Sequence[Handover]) -> None:
        for handover in handles:
            done = [Settled(message, COMPLETE) for message in handover.messages]
            self._store.run(FinishHandover(done, token=handover.lock.token))

    def body(self, handle: Handover) -> bytes:
        return handle.messages[0].body


class _WithSql(Receiver[BrokerTransaction]):
    """Receives and completes by transactions that insert a row each."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def receive(self, limit: int, wait: float) -> Sequence[BrokerTransaction]:
        tx = self._broker.transaction()
        if tx.receive(QUEUE, limit, wait):
            tx.execute("INSERT INTO ledger (body) VALUES ('done')")
            return [tx]
        return []

    def complete(self, handles: Sequence[BrokerTransaction]) -> None:
        for tx in handles:
            tx.commit()

    def body(self, handle: BrokerTransaction) -> bytes:
        raise NotImplementedError


class _Served(_Lazaretto):
    """A host of ours that takes and settles as a service host does."""

    def pair(self) -> tuple[Sender, Receiver[Any]]:
        from bench.systems.lazaretto import LazarettoSender

        return LazarettoSender(self._broker.sender(QUEUE)), _Taker(self._broker)


class _Sql(_Lazaretto):
    """A host of ours whose transactions have SQL of their own."""

    def pair(self) -> tuple[Sender, Receiver[Any]]:
        from bench.systems.lazaretto import LazarettoSender

        return LazarettoSender(self._broker.sender(QUEUE)), _WithSql(self._broker)


class _Pgmq:
    """A host with pgmq's functions and a connection for each thread."""

    def __init__(self, address: str) -> None:
        self._address = address

    def pair(self) -> tuple[Sender, Receiver[Any]]:
        from bench.systems.pgmq import PgmqReceiver, PgmqSender, connect

        connection = connect(self._address)
        return PgmqSender(connection), PgmqReceiver(connection)

    def close(self) -> None:
        pass


_HOSTS: dict[str, type[_Lazaretto] | type[_Pgmq]] = {
    "lazaretto": _Lazaretto,
    "topic": _Topic,
    "host": _Served,
    "sql": _Sql,
    "pgmq": _Pgmq,
}


def _host(system: str, address: str, layout: Layout, seconds: float, ready: Any, go: Any, out: Any) -> None:
    """Run one process: say when it is ready, and then how long each cycle took."""
    host = _HOSTS[system](address)
    took: list[float] = []
    failed: list[str] = []
    began: list[float] = []

    def run() -> None:
        try:
            sender, receiver = host.pair()

            def cycle() -> None:
                sender.send(body(1))
                if layout.sends:
                    return
                while not (found := receiver.receive(1, _WAIT)):
                    pass
                receiver.complete(found)

            cycle()
            ready.release()
            go.wait()
            began.append(time.process_time())
            end = (start := time.perf_counter()) + seconds
            while start < end:
                cycle()
                now = time.perf_counter()
                took.append(now - start)
                start = now
        except BaseException as error:
            failed.append(repr(error))
            ready.release()

    threads_ = [threading.Thread(target=run) for _ in range(layout.threads)]
    for thread in threads_:
        thread.start()
    for thread in threads_:
        thread.join()
    out.put((took, failed, time.process_time() - min(began, default=0.0)))
    host.close()


def measure(
    system: str, server: PostgresServer, address: str, layout: Layout, seconds: float, *, far: bool
) -> Figure:
    """Measure one system in one layout."""
    context = multiprocessing.get_context("spawn")
    ready, go, out = context.Semaphore(0), context.Event(), context.Queue()
    arguments = (system, address, layout, seconds, ready, go, out)
    hosts = [context.Process(target=_host, args=arguments) for _ in range(layout.processes)]
    for host in hosts:
        host.start()
    try:
        for _ in range(layout.processes * layout.threads):
            if not ready.acquire(timeout=_READY_SECONDS):
                raise RuntimeError(f"{system} {layout}: a host did not start")
        before = server.processor_time()
        go.set()
        said = [out.get(timeout=seconds + _READY_SECONDS) for _ in hosts]
        server_time = server.processor_time() - before
    finally:
        for host in hosts:
            host.join(10)
            if host.is_alive():
                host.terminate()
    failed = [error for _, errors, _ in said for error in errors]
    if failed:
        raise RuntimeError(f"{system} {layout}: {failed[0]}")
    took = [second for some, _, _ in said for second in some]
    return Figure(
        system=system,
        layout=str(layout),
        far=far,
        cycles=len(took) / seconds,
        p50_ms=percentile(took, 0.5) * 1e3,
        p99_ms=percentile(took, 0.99) * 1e3,
        server_us=server_time / len(took) * 1e6,
        hosts_us=sum(cpu for _, _, cpu in said) / len(took) * 1e6,
    )


@contextlib.contextmanager
def serving(system: str, folder: Path, partitions: int) -> Iterator[PostgresServer]:
    """Run a server with the system's queue on it, ours with so many partitions."""
    home = folder / system
    home.mkdir()
    home.chmod(0o755)
    if system == "pgmq":
        peer = PgmqSystem(home)
        peer.open()
        try:
            yield peer.server
        finally:
            peer.close()
        return
    import lazaretto
    from lazaretto import CorrelationFilter, QueueOptions, Rule

    server = PostgresServer(home)
    try:
        with contextlib.closing(lazaretto.connect(server.url)) as broker:
            broker.create_queue(QUEUE, QueueOptions(lock_duration=30, partitions=partitions))
            broker.create_topic(TOPIC)
            broker.create_subscription(TOPIC, "all", QueueOptions(lock_duration=30, partitions=partitions))
            with broker.transaction() as tx:
                tx.execute("CREATE TABLE ledger (id BIGSERIAL PRIMARY KEY, body TEXT)")
            rule = Rule("red", CorrelationFilter(subject="red"))
            broker.create_subscription(TOPIC, "red", QueueOptions(), rules=[rule])
        yield server
    finally:
        server.stop()


def address_of(system: str, server: PostgresServer, port: int | None) -> str:
    """Return where a system's server is, near or behind the port of a proxy."""
    if system == "pgmq":
        return server.address if port is None else f"host=127.0.0.1 port={port} user=drill dbname=postgres"
    return server.url if port is None else f"postgresql://drill@127.0.0.1:{port}/postgres"


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench hosts", description=__doc__)
    parser.add_argument("--layouts", type=_layouts, default=_layouts(_LAYOUTS), help=f"({_LAYOUTS})")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    parser.add_argument("--rounds", type=int, default=3, help="systems take turns in each (3)")
    parser.add_argument("--partitions", type=int, default=1, help="of Lazaretto's queue (1)")
    parser.add_argument("--where", choices=["near", "far", "both"], default="both")
    parser.add_argument(
        "--systems", default=",".join(_SYSTEMS), help=f"({','.join(_SYSTEMS)}); also topic, host, sql"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the raw figures")
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="where the databases go (.bench)")
    return parser.parse_args(words)


def _rows(figures: Sequence[Figure], systems: Sequence[str]) -> Iterator[str]:
    """Yield a line for each place and layout: medians of the rounds, and the ratio to pgmq."""
    for far, layout in dict.fromkeys((f.far, f.layout) for f in figures):
        parts, rates, costs = [], {}, {}
        for system in systems:
            own = [f for f in figures if (f.far, f.layout, f.system) == (far, layout, system)]
            if own:
                rates[system] = statistics.median(f.cycles for f in own)
                names = ("p50_ms", "p99_ms", "server_us", "hosts_us")
                p50, p99, there, here = (statistics.median(getattr(f, n) for f in own) for n in names)
                costs[system] = there + here
                parts.append(
                    f"{system} {rates[system]:,.0f}/s (p50 {p50:.1f} ms, p99 {p99:.1f} ms, "
                    f"server {there:.0f} + hosts {here:.0f} us)"
                )
        if len(rates) > 1:
            first, *_, last = rates
            parts.append(
                f"{first} / {last} {rates[first] / rates[last]:.2f}, by cost {costs[last] / costs[first]:.2f}"
            )
        yield f"{'1 ms away' if far else 'near':9}  {layout:6}  " + "  ".join(parts)


def main(words: Sequence[str]) -> int:
    """Run what the command line asks for."""
    arguments = _arguments(words)
    systems = arguments.systems.split(",")
    why = PgmqSystem.missing()
    if "pgmq" in systems and why is not None:
        print(f"pgmq: {why}, left out", file=sys.stderr)
        systems.remove("pgmq")
    figures: list[Figure] = []
    with scratch(arguments.dir, "hosts-") as folder, contextlib.ExitStack() as stack:
        machine = Machine.here(folder)
        servers = {
            system: stack.enter_context(serving(system, folder, arguments.partitions)) for system in systems
        }
        ports = {system: stack.enter_context(delayed(servers[system].socket, ONE_WAY)) for system in systems}
        for _ in range(arguments.rounds):
            for far in {"near": [False], "far": [True], "both": [False, True]}[arguments.where]:
                for layout in arguments.layouts:
                    for system in systems:
                        address = address_of(system, servers[system], ports[system] if far else None)
                        server = servers[system]
                        figure = measure(system, server, address, layout, arguments.seconds, far=far)
                        figures.append(figure)
                        print(next(_rows([figure], [system])), file=sys.stderr)
    machine = machine.after()
    for row in _rows(figures, systems):
        print(row)
    print(
        f"{machine.cpu}, {machine.cores} cores, load {machine.load_before} before, {machine.load_after} after"
    )
    if arguments.json is not None:
        said = {"machine": dataclasses.asdict(machine), "figures": [dataclasses.asdict(f) for f in figures]}
        arguments.json.write_text(json.dumps(said, indent=2))
    return 0
