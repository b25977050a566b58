"""The door with breaker and blame for clients beside the same door without: what sparing attempts costs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import lazaretto
from bench.door.client import Client
from bench.door.pairs import Pair
from bench.door.processes import Server, connected, serving
from lazaretto import BreakerPolicy, QueueOptions

_WINDOW: Final = 100
#: Messages that each of the two gets before the other's turn.
_TURN: Final = 500
_OPTIONS: Final = {
    "spared": QueueOptions(breaker=BreakerPolicy(clients=True), blame_clients=True),
    "charged": QueueOptions(),
}


def measure_spared(rounds: int, count: int, folder: Path) -> list[Pair]:
    """Return what the processor of one server takes for a message of either queue, in short turns."""
    pair = Pair("breaker and blame for clients, 100 credits", ("on", "off"), "µs of CPU", "1.03")
    with tempfile.TemporaryDirectory(dir=folder) as here:
        store = Path(here) / "spared.db"
        with lazaretto.connect(store) as broker:
            for queue, options in _OPTIONS.items():
                broker.create_queue(queue, options)
        with serving(store) as server, connected(server) as spared, connected(server) as charged:
            clients = dict(zip(_OPTIONS, (spared, charged), strict=True))
            _round(server, clients, count // 10)
            for _ in range(rounds):
                pair.add(*_round(server, clients, count))
    return [pair]


def _round(server: Server, clients: dict[str, Client], count: int) -> tuple[float, float]:
    """Return the microseconds that a message costs to send, receive and complete, of either queue."""
    spent = dict.fromkeys(clients, 0.0)
    for turn in range(max(1, count // _TURN)):
        # Who comes second finds warmer caches: they take turns at that, too.
        for queue, client in sorted(clients.items(), reverse=turn % 2 == 1):
            before = server.cpu()
            client.send(client.sender(queue), _TURN, _WINDOW)
            client.receive(client.receiver(queue), _TURN, _WINDOW)
            spent[queue] += server.cpu() - before
    turns = max(1, count // _TURN)
    spared, charged = (spent[queue] / (turns * _TURN) * 1e6 for queue in _OPTIONS)
    return spared, charged
