"""The engine and proton, each with a broker in memory: what the protocol costs a server."""

from __future__ import annotations

import contextlib

from bench.door.pairs import Pair
from bench.door.processes import Server, connected, in_memory, proton, proton_python

_WINDOW = 100


def measure_engine(rounds: int, count: int) -> list[Pair]:
    """Return what the processor of each server takes for a send, and for a delivery that is completed."""
    goal = "6"
    sends = Pair("engine in memory, 100 sends open", ("proton", "own"), "µs of CPU", goal)
    takes = Pair("engine in memory, 100 credits", ("proton", "own"), "µs of CPU", goal)
    python = proton_python()
    if python is None:
        print("proton is not installed: apt-get install python3-qpid-proton", flush=True)
        return [sends, takes]
    for _ in range(rounds):
        theirs, ours = _costs(proton(python), count), _costs(in_memory(), count)
        sends.add(theirs[0], ours[0])
        takes.add(theirs[1], ours[1])
    return [sends, takes]


def _costs(run: contextlib.AbstractContextManager[Server], count: int) -> tuple[float, float]:
    with run as server, connected(server) as client:
        sender = client.sender("q")
        client.send(sender, count // 10, _WINDOW)
        receiver = client.receiver("q")
        client.receive(receiver, count // 10, _WINDOW)
        before = server.cpu()
        client.send(sender, count, _WINDOW)
        between = server.cpu()
        client.receive(receiver, count, _WINDOW)
        after = server.cpu()
        return (between - before) / count * 1e6, (after - between) / count * 1e6
