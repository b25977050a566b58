"""A process that runs repairs until it is killed, or kills itself at a named point."""

from __future__ import annotations

import contextlib
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import lazaretto
from lazaretto.engine.repairs import advance, runner
from lazaretto.errors import StoreUnavailable
from lazaretto.host import Handler, ServiceHost

from .child import _SCHEMA, Fuse, arm, die

#: A piece of the statement at each point; the process dies once it was run.
POINTS = {
    "in_messages": "UPDATE lazaretto_messages AS m",
    "in_letters": "lazaretto_dead_letters AS d SET",
    "in_items": "INSERT INTO lazaretto_repair_items",
    "in_repair": "UPDATE lazaretto_repairs SET",
    "in_undo": "UPDATE lazaretto_dead_letters SET resolution = NULL",
}


class RepairFuse(Fuse):
    """Kills the process at the n-th hit of a point of a repair."""

    def __init__(self, point: str, count: int) -> None:
        super().__init__(point, count)
        self._piece = POINTS.get(point)

    def run(self, statement: Any, sql: str, *values: Any) -> Any:
        if self._piece is None or self._piece not in " ".join(_SCHEMA.sub("", sql).split()):
            return super().run(statement, sql, *values)
        self._left -= 1
        answer = statement(sql, *values)
        if self._left <= 0:
            getattr(answer, "rowcount", None)
            die()
        return answer


def host(store: str, ready: Connection) -> None:
    """Run a service host that has another queue to care for, until it is killed."""
    advance.LEASE = 0.3
    runner._LOOK = 0.05
    with lazaretto.connect(store) as broker:
        handler = Handler("elsewhere", lambda message: None, isolation="inline")
        with ServiceHost(broker, [handler]):
            ready.send(None)
            time.sleep(60.0)


def main(store: str, point: str, count: int, ready: Connection) -> None:
    """Run repairs until nothing is left to do, under leases that are soon over."""
    if point == "host":
        host(store, ready)
        return
    advance.LEASE = 0.3
    with lazaretto.connect(store) as broker:
        if point != "none":
            arm(broker, RepairFuse(point, count))
        (status,) = broker.repairs(limit=1)
        repair = broker.repair(status.name)
        ready.send(None)
        watch = threading.Timer(60.0, die)
        watch.daemon = True
        watch.start()
        over = False
        while not over:
            # Somebody may cut the connection when it looks how the repair stands.
            with contextlib.suppress(StoreUnavailable):
                over = not repair.run().phase.value.endswith("ing")
